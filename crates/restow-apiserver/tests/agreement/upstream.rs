//! Servers that report to a main API server too. Here it records the reports, and fails when a test wants it to.

use crate::client_reports::request;
use crate::fixture::*;
use async_trait::async_trait;
use restow_api::GroupResource;
use restow_apiserver::resource::Membership;
use restow_apiserver::storage_version::Upstream;
use restow_rules::ServerReport;
use restow_rules::collect::{MainLease, OwnLease};
use restow_store::{Mutation, Store, Txn};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const WIDGETS: &str = "example.com.widgets";

#[derive(Debug, Default)]
struct Main {
    leases: Mutex<Vec<MainLease>>,
    reported: Mutex<BTreeSet<GroupResource>>,
    /// How many withdrawals fail from now on.
    failing: AtomicUsize,
    /// Whether its leases cannot be read, so that no server can join.
    is_down: AtomicBool,
    /// How many times a server released its lease.
    released: AtomicUsize,
    /// The server whose lease it refuses to delete.
    keeps: Mutex<Option<&'static str>>,
}

/// The lease at the main server of a server with this one in its own store.
fn lease(id: &str, own_lease: &str) -> MainLease {
    MainLease { id: id.into(), uid: format!("of {own_lease}"), own_lease: own_lease.into() }
}

impl Main {
    fn fail(&self) -> Result<(), String> {
        let less = |left: usize| left.checked_sub(1);
        match self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Err("it does not answer".into()),
            Err(_) => Ok(()),
        }
    }

    fn has(&self, resource: &str) -> bool {
        self.reported.lock().unwrap().contains(&resource.parse::<GroupResource>().unwrap())
    }
}

#[async_trait]
impl Upstream for Main {
    async fn join(&self, own_lease: &OwnLease) -> Result<(), String> {
        self.leases.lock().unwrap().push(lease("a", &own_lease.uid));
        Ok(())
    }

    async fn leases(&self, _store: &str) -> Result<Vec<MainLease>, String> {
        match self.is_down.load(Ordering::SeqCst) {
            true => Err("it does not answer".into()),
            false => Ok(self.leases.lock().unwrap().clone()),
        }
    }

    async fn delete_lease(&self, lease: &MainLease) -> Result<(), String> {
        if *self.keeps.lock().unwrap() == Some(lease.id.as_str()) {
            return Err("an admission webhook refuses".into());
        }
        self.leases.lock().unwrap().retain(|other| other != lease);
        Ok(())
    }

    fn stop_renewing(&self) {}

    async fn report(&self, resource: &GroupResource, _report: &ServerReport) -> Result<(), String> {
        self.reported.lock().unwrap().insert(resource.clone());
        Ok(())
    }

    async fn withdraw(&self, resource: &GroupResource) -> Result<(), String> {
        self.fail()?;
        self.reported.lock().unwrap().remove(resource);
        Ok(())
    }

    async fn withdraw_everything(&self) -> Result<(), String> {
        self.fail()?;
        self.reported.lock().unwrap().clear();
        Ok(())
    }

    fn holds(&self) -> bool {
        true
    }

    async fn lost(&self) {
        std::future::pending().await
    }

    async fn leave(&self) {
        self.released.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_server_with_its_gate_off_withdraws_its_reports_upstream() {
    for gates in ["StorageVersionAPI=false", "StorageVersionAPI=false,APIServerIdentity=false"] {
        let (store, main) = (store(), Arc::new(Main::default()));
        // An earlier process of the server reported these, with its gate on.
        let earlier = ["configmaps", "plants.garden.example.com"].map(|resource| resource.parse().unwrap());
        main.reported.lock().unwrap().extend(earlier);
        let server = start_with_upstream(&store, "a", gates, main.clone()).await;
        assert!(main.reported.lock().unwrap().is_empty(), "{gates}: it writes by now, and reports nothing");
        write_slice(&server, "s").await.unwrap();
    }
}

#[tokio::test]
async fn a_server_with_its_gate_off_does_not_write_before_its_reports_are_withdrawn_upstream() {
    let (store, main) = (store(), Arc::new(Main::default()));
    main.failing.store(3, Ordering::SeqCst);
    main.reported.lock().unwrap().insert("configmaps".parse().unwrap());
    let _server = start_with_upstream(&store, "a", "StorageVersionAPI=false", main.clone()).await;
    assert_eq!(main.failing.load(Ordering::SeqCst), 0, "it was tried until it was done");
    assert!(!main.has("configmaps"));
}

#[tokio::test]
async fn a_report_that_could_not_be_withdrawn_upstream_is_withdrawn_later() {
    let (store, main) = (store(), Arc::new(Main::default()));
    let server = start_with_upstream(&store, "a", "", main.clone()).await;
    let resource = widgets("example.com/v1");
    server.agreement().report(&resource).await.unwrap();
    assert!(matches!(resource.storage.as_ref().unwrap().encoding().membership, Membership::Registered(_)));
    assert!(main.has("widgets.example.com"));
    main.failing.store(1, Ordering::SeqCst);
    let location = &resource.storage.as_ref().unwrap().location;
    server.agreement().withdraw(location).await.unwrap_err();
    assert_eq!(servers_of(&status(&store, WIDGETS).await), ["a"], "the own entry says that something is left to do");
    server.agreement().withdraw(location).await.unwrap();
    assert!(!main.has("widgets.example.com"));
    assert!(servers_of(&status(&store, WIDGETS).await).is_empty());
}

#[tokio::test]
async fn a_lease_upstream_is_deleted_when_the_lease_in_the_own_store_is_gone() {
    let (store, main) = (store(), Arc::new(Main::default()));
    let _a = start_with_upstream(&store, "a", "", main.clone()).await;
    let own = main.leases.lock().unwrap().clone();
    main.leases.lock().unwrap().push(lease("b", "a lease that is gone"));
    eventually("the lease of b upstream is deleted", || async { *main.leases.lock().unwrap() == own }).await;
}

#[tokio::test]
async fn a_lease_upstream_that_cannot_be_deleted_holds_up_no_other_server() {
    let (store, main) = (store(), Arc::new(Main::default()));
    *main.keeps.lock().unwrap() = Some("b");
    main.leases.lock().unwrap().extend(["b", "c"].map(|id| lease(id, "a lease that is gone")));
    let server = start_with_upstream(&store, "a", "", main.clone()).await;
    write_slice(&server, "s").await.unwrap();
    let ids = || main.leases.lock().unwrap().iter().map(|lease| lease.id.clone()).collect::<Vec<_>>();
    eventually("the lease of c upstream is deleted", || async { ids() == ["b", "a"] }).await;
}

#[tokio::test]
async fn a_process_that_could_not_join_upstream_leaves_the_lease_of_its_successor_alone() {
    let (store, main) = (store(), Arc::new(Main::default()));
    main.is_down.store(true, Ordering::SeqCst);
    let upstream = main.clone();
    let server = begin_to_start(&store, "a", builtins("1.37"), "", |config| {
        config.agreement.upstream = Some(upstream);
    })
    .await;
    let (maps, map) = ("/api/v1/namespaces/default/configmaps", json!({"metadata": {"generateName": "m-"}}));
    let refuses = async |words: &str| {
        let (code, answer) = request(&server, "POST", maps, Some(&map)).await;
        code == 503 && answer["message"].as_str().is_some_and(|message| message.contains(words))
    };
    eventually("it has a lease in its own store, and cannot join", async || refuses("it does not answer").await).await;
    come_back(&store, "a", "kube-apiserver").await;
    eventually("it says that another process has its identity", async || refuses("with the identity a").await).await;
    main.is_down.store(false, Ordering::SeqCst);
    eventually("it has tried again", async || refuses("with the identity a").await).await;
    let held = crate::fixture::lease(&store, "a").await.unwrap();
    assert!(String::from_utf8_lossy(&held.value).contains("\"holderIdentity\":\"h\""), "its successor has the lease");
}

#[tokio::test]
async fn a_server_releases_its_lease_upstream_only_when_no_write_of_it_can_be_committed() {
    let releases = |txn: &Txn| {
        txn.then.iter().any(|it| matches!(it, Mutation::Delete(key) if key.to_string().ends_with("/kube-system/a")))
    };
    let store = store();
    let beneath: Arc<dyn Store> = Mute::to(&store, releases);
    for (store, released) in [(beneath, 0), (store, 1)] {
        let main = Arc::new(Main::default());
        let server = start_with_upstream(&store, "a", "", main.clone()).await;
        server.leave().await;
        assert_eq!(main.released.load(Ordering::SeqCst), released);
    }
}

#[tokio::test]
async fn a_server_that_cannot_join_refuses_writes_and_says_why() {
    let (store, main) = (store(), Arc::new(Main::default()));
    let server = start_with_upstream(&store, "a", "", main.clone()).await;
    let (maps, map) = ("/api/v1/namespaces/default/configmaps", json!({"metadata": {"generateName": "m-"}}));
    assert_eq!(request(&server, "POST", maps, Some(&map)).await.0, 201);
    main.is_down.store(true, Ordering::SeqCst);
    let held = crate::fixture::lease(&store, "a").await.unwrap();
    store.txn(Txn::new().delete(&held.key)).await.unwrap();
    let expected = "wait for storage version registration to complete for resource: configmaps, last seen error: ";
    eventually("a write is refused with the reason", || async {
        let (code, answer) = request(&server, "POST", maps, Some(&map)).await;
        let message = answer["message"].as_str().unwrap_or_default().to_owned();
        code == 503 && message.starts_with(expected) && message.contains("it does not answer")
    })
    .await;
    main.is_down.store(false, Ordering::SeqCst);
    eventually("it has joined again", || async { request(&server, "POST", maps, Some(&map)).await.0 == 201 }).await;
}
