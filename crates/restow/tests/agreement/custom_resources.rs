//! Custom resources whose storage version changes while servers are suspended until their leases expire. etcd's history shows
//! that every object was written in the version that its server had reported at that revision.

use crate::etcd_history;
use crate::fleet::{Addresses, Fleet, identity};
use crate::writers::{VIA, client_at};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use restow_store::{Key, Store, Txn};
use restow_testkit::{Crd, crds, eventually};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) const WIDGETS: &str = "example.com.widgets";
pub(crate) const CRD: &str = "widgets.example.com";
/// How long a client waits for a response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Widgets with two versions.
fn widget_crd() -> Crd {
    Crd::new(CRD, "Widget").versions(&["v1", "v2"])
}

pub(crate) fn widgets(client: &kube::Client) -> Api<DynamicObject> {
    widget_crd().api(client, "v1")
}

/// Creates the CRD of widgets, and waits until every server serves and reports them.
pub(crate) async fn create_crd(fleet: &Fleet, clients: &[kube::Client]) {
    let crd: DynamicObject = serde_json::from_value(widget_crd().manifest()).unwrap();
    crds(&clients[0]).create(&PostParams::default(), &crd).await.unwrap();
    for client in clients {
        let api = widgets(client);
        eventually("the server serves widgets", async || api.list(&Default::default()).await.is_ok()).await;
    }
    let agreed = async || fleet.status(WIDGETS).await["commonEncodingVersion"] == "example.com/v1";
    eventually("all servers report widgets", agreed).await;
}

/// Patches the CRD.
pub(crate) async fn patch_crd(client: &kube::Client, patch: Value) -> bool {
    let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
    let api = crds(client);
    let patched = tokio::time::timeout(REQUEST_TIMEOUT, api.patch(CRD, &PatchParams::default(), &patch)).await;
    match patched {
        Ok(Ok(_)) => return true,
        Ok(Err(error)) => println!("the CRD was not changed: {error}"),
        Err(_) => println!("the CRD was not changed in time"),
    }
    false
}

/// Changes the storage version; retries until the server accepts it.
async fn flip(client: &kube::Client, number: usize) {
    let patch = json!([
        {"op": "replace", "path": "/spec/versions/0/storage", "value": number % 2 == 1},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": number.is_multiple_of(2)},
    ]);
    eventually("the CRD is changed", async || patch_crd(client, patch.clone()).await).await;
}

/// Clients that each write one widget through one server, and continue after errors.
struct Writers {
    stop: Arc<AtomicBool>,
    done: Vec<Arc<AtomicU64>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Writers {
    fn start(clients: &[kube::Client]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let done: Vec<Arc<AtomicU64>> = clients.iter().map(|_| Arc::default()).collect();
        let write = |number: usize| {
            let (api, stop, done) = (widgets(&clients[number]), stop.clone(), done[number].clone());
            tokio::spawn(async move {
                let name = format!("widget-{number}");
                for count in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let widget = json!({
                        "apiVersion": "example.com/v1", "kind": "Widget",
                        "metadata": {"name": name, "annotations": {VIA: identity(number)}}, "spec": {"count": count},
                    });
                    let made: DynamicObject = serde_json::from_value(widget.clone()).unwrap();
                    let attempt = async {
                        match api.patch(&name, &PatchParams::default(), &Patch::Merge(&widget)).await {
                            Err(kube::Error::Api(status)) if status.code == 404 => {
                                api.create(&PostParams::default(), &made).await
                            }
                            answer => answer,
                        }
                    };
                    match tokio::time::timeout(REQUEST_TIMEOUT, attempt).await {
                        Ok(Ok(_)) => drop(done.fetch_add(1, Ordering::Relaxed)),
                        _ => tokio::time::sleep(Duration::from_millis(10)).await,
                    }
                }
            })
        };
        let tasks = (0..clients.len()).map(write).collect();
        Writers { stop, done, tasks }
    }

    /// Waits until each client has received so many more responses.
    async fn go_on(&self, more: u64) {
        let goals: Vec<u64> = self.done.iter().map(|done| done.load(Ordering::Relaxed) + more).collect();
        eventually("every server is written through", async || {
            self.done.iter().zip(&goals).all(|(done, goal)| done.load(Ordering::Relaxed) >= *goal)
        })
        .await;
    }

    async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

pub(crate) async fn clients_of(fleet: &Fleet, addresses: &Addresses) -> Vec<kube::Client> {
    let config = fleet.client_config().await;
    let addresses = addresses.read().unwrap().clone();
    addresses.iter().flatten().map(|address| client_at(&config, address)).collect()
}

async fn delete_leases(fleet: &Fleet) {
    for number in 0..3 {
        let key = format!("/coordination.k8s.io/leases/kube-system/{}", identity(number));
        fleet.store.txn(Txn::new().delete(&Key::try_from(key).unwrap())).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_custom_object_is_written_in_the_version_that_its_server_reported() {
    let mut fleet = Fleet::of(3).await;
    (0..3).for_each(|number| fleet.start(number, "1.37", &[]));
    let clients = clients_of(&fleet, &fleet.addresses).await;
    create_crd(&fleet, &clients).await;
    let writers = Writers::start(&clients);
    writers.go_on(5).await;
    let mut flips = 0;

    // Servers lose their leases while the storage version moves.
    for _ in 0..8 {
        for _ in 0..3 {
            let deletion = delete_leases(&fleet);
            tokio::join!(flip(&clients[flips % 3], flips), deletion);
            flips += 1;
        }
        writers.go_on(2).await;
    }
    // A server sleeps longer than its lease lasts; the storage version moves meanwhile, and again when it wakes.
    for sleeper in 0..2 {
        fleet.pause(sleeper);
        eventually("the sleeping server is released", async || !fleet.has_lease(sleeper).await).await;
        flip(&clients[2], flips).await;
        flips += 1;
        fleet.resume(sleeper);
        for _ in 0..3 {
            flip(&clients[2], flips).await;
            flips += 1;
        }
        writers.go_on(2).await;
    }
    writers.finish().await;
    let last = if flips % 2 == 1 { "example.com/v2" } else { "example.com/v1" };
    let agreed = async || fleet.status(WIDGETS).await["commonEncodingVersion"] == last;
    eventually("all agree on the last version", agreed).await;
    let findings = etcd_history::check(&fleet.store).await;
    println!("{flips} changes of the storage version: {findings:?}");
    for version in ["example.com/v1", "example.com/v2"] {
        assert!(findings.widgets_by_version[version] > 5, "both versions were written: {findings:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_follow_versions_that_are_added_and_no_longer_served() {
    let mut fleet = Fleet::of(2).await;
    (0..2).for_each(|number| fleet.start(number, "1.37", &[]));
    let clients = clients_of(&fleet, &fleet.addresses).await;
    create_crd(&fleet, &clients).await;
    let versions = async |field: &str| -> Vec<Value> {
        let entries = fleet.status(WIDGETS).await["storageVersions"].as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry[field].clone()).collect()
    };
    let third = json!([{"op": "add", "path": "/spec/versions/2", "value": widget_crd().versions(&["v3"]).stored_in("v1").spec_versions()[0]}]);
    assert!(patch_crd(&clients[0], third).await);
    let all = json!(["example.com/v3", "example.com/v2", "example.com/v1"]);
    let added = async || versions("decodableVersions").await == [all.clone(), all.clone()];
    eventually("both servers report that they read v3", added).await;
    assert_eq!(versions("servedVersions").await, [all.clone(), all]);
    let gone = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    assert!(patch_crd(&clients[1], gone).await);
    let rest = json!(["example.com/v3", "example.com/v1"]);
    let unserved = async || versions("servedVersions").await == [rest.clone(), rest.clone()];
    eventually("both servers report that v2 is not served", unserved).await;
    assert_eq!(fleet.status(WIDGETS).await["commonEncodingVersion"], "example.com/v1");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_crd_without_a_served_version_keep_their_finalizers() {
    let mut fleet = Fleet::of(1).await;
    fleet.start(0, "1.37", &[]);
    let clients = clients_of(&fleet, &fleet.addresses).await;
    create_crd(&fleet, &clients).await;
    let held = json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "held", "finalizers": ["example.com/hold"]},
    });
    let api = widgets(&clients[0]);
    api.create(&PostParams::default(), &serde_json::from_value(held).unwrap()).await.unwrap();
    let served = |served: bool| {
        json!([
            {"op": "replace", "path": "/spec/versions/0/served", "value": served},
            {"op": "replace", "path": "/spec/versions/1/served", "value": served},
        ])
    };
    assert!(patch_crd(&clients[0], served(false)).await);
    let crds = crds(&clients[0]);
    crds.delete(CRD, &DeleteParams::default()).await.unwrap();
    eventually("the definition waits for its objects", async || {
        let conditions = crds.get(CRD).await.unwrap().data["status"]["conditions"].clone();
        conditions.as_array().unwrap().iter().any(|condition| condition["reason"] == "InstanceDeletionInProgress")
    })
    .await;
    eventually("it is served again", async || patch_crd(&clients[0], served(true)).await).await;
    eventually("the object is served again", async || api.get_opt("held").await.is_ok_and(|found| found.is_some()))
        .await;
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("held", &PatchParams::default(), &free).await.unwrap();
    eventually("all is gone", async || crds.get_opt(CRD).await.unwrap().is_none()).await;
}
