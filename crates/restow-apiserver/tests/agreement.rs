//! Servers in one process on one store in memory: what they report, how they are shut out and come back, and what is
//! collected after them. Real processes on a real etcd are in the tests of the binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use async_trait::async_trait;
use restow_api::{GroupResource, GroupVersion};
use restow_apiserver::auth::authenticate::{AnonymousAccess, Authenticators};
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::conversion::RenameVersion;
use restow_apiserver::error::ApiError;
use restow_apiserver::object::Object;
use restow_apiserver::registry::Registry;
use restow_apiserver::release::Release;
use restow_apiserver::resource::{Names, Origin, Resource, Scope, Storage, Verb};
use restow_apiserver::strategy::Plain;
use restow_apiserver::{
    AccessConfig, AgreementConfig, ApiServer, Authorization, Change, Changed, Decision, Gates, Guarantee, LoadLimits,
    Place, ServerConfig, StorageVersions,
};
use restow_store::conformance::ModelStore;
use restow_store::{Entry, Key, RangeRequest, Store, StoreExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const LEASES: &str = "/coordination.k8s.io/leases/kube-system/";
const STORAGE_VERSIONS: &str = "/internal.apiserver.k8s.io/storageversions/";

/// Starts a server that reports what it stores.
async fn start(store: &Arc<dyn Store>, id: &str, release: &str, gates: &str) -> Arc<ApiServer> {
    start_with(store, id, builtins(release), gates, StorageVersions::Report).await
}

/// Starts a server that votes on what it stores.
async fn start_voting(store: &Arc<dyn Store>, id: &str, resources: Vec<Resource>, how: Guarantee) -> Arc<ApiServer> {
    start_with(store, id, resources, "StorageVersionVoting=true", StorageVersions::Vote(how)).await
}

fn builtins(release: &str) -> Vec<Resource> {
    let internal = GroupVersion::new("internal.apiserver.k8s.io", "v1alpha1").unwrap();
    let config = RuntimeConfig { versions: vec![(internal, true)], ..RuntimeConfig::default() };
    builtin::resources(release.parse().unwrap(), &config).unwrap()
}

async fn start_with(
    store: &Arc<dyn Store>,
    id: &str,
    resources: Vec<Resource>,
    gates: &str,
    storage_versions: StorageVersions,
) -> Arc<ApiServer> {
    let gates: Gates = gates.parse().unwrap();
    let authenticators = Authenticators {
        token_file: None,
        tokens: None,
        api_audiences: Vec::new(),
        anonymous: AnonymousAccess::health_and_version(),
    };
    let server = ApiServer::new(ServerConfig {
        store: store.clone(),
        registry: Registry::new(resources.into_iter().map(Arc::new)),
        release: Release::NEWEST,
        address: "127.0.0.1:6443".parse().unwrap(),
        access: AccessConfig { authenticators, authorization: Authorization::AllowAll },
        limits: LoadLimits::default(),
        audit: None,
        gates,
        agreement: AgreementConfig {
            renew_interval: Duration::from_millis(200),
            storage_versions,
            ..AgreementConfig::new(id.parse().unwrap(), "host", &gates)
        },
    })
    .await
    .unwrap();
    server.ready().await.unwrap();
    server
}

fn store() -> Arc<dyn Store> {
    Arc::new(ModelStore::default())
}

async fn objects(store: &Arc<dyn Store>, folder: &str) -> BTreeMap<String, Value> {
    let read = |entry: &Entry| {
        let key = String::from_utf8(entry.key.as_bytes().to_vec()).unwrap();
        (key.rsplit('/').next().unwrap().to_string(), serde_json::from_slice(&entry.value).unwrap())
    };
    let listed = store.range(RangeRequest::prefix(folder.to_string())).await.unwrap();
    listed.entries.iter().map(read).collect()
}

async fn status(store: &Arc<dyn Store>, name: &str) -> Value {
    objects(store, STORAGE_VERSIONS).await.remove(name).unwrap_or_default()["status"].take()
}

fn servers_of(status: &Value) -> Vec<&str> {
    let entries = status["storageVersions"].as_array().map_or(&[][..], Vec::as_slice);
    entries.iter().map(|entry| entry["apiServerID"].as_str().unwrap()).collect()
}

async fn lease(store: &Arc<dyn Store>, id: &str) -> Option<Entry> {
    store.get(&Key::try_from(format!("{LEASES}{id}")).unwrap()).await.unwrap()
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let patience = tokio::time::Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(tokio::time::Instant::now() < patience, "still not so after a minute: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Writes an object, whatever is there.
struct Put(Object);

#[async_trait]
impl Decision for Put {
    async fn decide(&mut self, _before: Option<&Object>) -> Result<Change, ApiError> {
        Ok(Change::Write(self.0.clone()))
    }
}

async fn write_slice(server: &ApiServer, name: &str) -> Result<Changed, ApiError> {
    let version: GroupVersion = "discovery.k8s.io/v1".parse().unwrap();
    let resource = server.registry().find(&version, "endpointslices").unwrap().clone();
    let place = Place { resource: &resource, version: &version, namespace: "default", name };
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default"}, "addressType": "IPv4", "endpoints": [],
    });
    server.objects().change(place, &mut Put(Object::from_value(object).unwrap())).await
}

#[tokio::test]
async fn a_single_server_reports_what_kubernetes_reports() {
    let store = store();
    let _server = start(&store, "a", "1.37", "").await;
    let mut ours = BTreeMap::new();
    for (name, object) in objects(&store, STORAGE_VERSIONS).await {
        let status = &object["status"];
        let entry = &status["storageVersions"][0];
        assert_eq!(entry["apiServerID"], "a");
        let mut conditions = status["conditions"].clone();
        conditions[0].as_object_mut().unwrap().remove("lastTransitionTime").unwrap();
        let comparable = json!({
            "name": name, "commonEncodingVersion": status["commonEncodingVersion"], "conditions": conditions,
            "encodingVersion": entry["encodingVersion"], "decodableVersions": entry["decodableVersions"],
            "servedVersions": entry["servedVersions"],
        });
        ours.insert(name, comparable);
    }
    let recorded = include_str!("recorded/storage-versions-1.37.jsonl").lines();
    let theirs: BTreeMap<String, Value> = recorded
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|object| (object["name"].as_str().unwrap().to_string(), object))
        .collect();
    assert_eq!(theirs.len(), 63);
    assert_eq!(ours, theirs);
}

#[tokio::test]
async fn the_identity_lease_has_kubernetes_shape() {
    let store = store();
    let _server = start(&store, "a", "1.37", "").await;
    let lease = objects(&store, LEASES).await.remove("a").unwrap();
    assert_eq!(
        lease["metadata"]["labels"],
        json!({"apiserver.kubernetes.io/identity": "kube-apiserver", "kubernetes.io/hostname": "host"})
    );
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 10);
    assert!(lease["spec"]["holderIdentity"].as_str().unwrap().starts_with("a_"));
}

#[tokio::test]
async fn servers_disagree_while_two_releases_run_and_agree_when_one_leaves() {
    let store = store();
    let slices = "discovery.k8s.io.endpointslices";
    let old = start(&store, "old", "1.30", "").await;
    let _new = start(&store, "new", "1.31", "").await;
    let disagreement = status(&store, slices).await;
    assert_eq!(servers_of(&disagreement), ["old", "new"]);
    assert_eq!(disagreement["commonEncodingVersion"], Value::Null);
    assert_eq!(disagreement["conditions"][0]["status"], "False");
    old.leave().await;
    assert_eq!(lease(&store, "old").await, None, "who leaves gives its lease up");
    eventually("the rest agrees", || async {
        status(&store, slices).await["commonEncodingVersion"] == "discovery.k8s.io/v1"
    })
    .await;
    assert!(write_slice(&old, "late").await.is_err(), "who has left writes no more");
}

#[tokio::test]
async fn a_server_that_was_shut_out_reports_again_and_goes_on() {
    let store = store();
    let server = start(&store, "a", "1.30", "").await;
    write_slice(&server, "before").await.unwrap();
    let first = lease(&store, "a").await.unwrap();
    // What a collector does with a server that does not renew: the lease first, the entries after it.
    let listed = store.range(RangeRequest::prefix(STORAGE_VERSIONS)).await.unwrap().entries;
    store.txn(restow_store::Txn::new().delete(&first.key)).await.unwrap();
    for entry in listed {
        store.txn(restow_store::Txn::new().delete(&entry.key)).await.unwrap();
    }
    // The client notices nothing but a pause: the write waits until the server may write again.
    write_slice(&server, "after").await.unwrap();
    let second = lease(&store, "a").await.unwrap();
    assert!(second.create_revision > first.create_revision);
    assert_eq!(servers_of(&status(&store, "discovery.k8s.io.endpointslices").await), ["a"]);
    let slices = store.range(RangeRequest::prefix("/discovery.k8s.io/endpointslices/")).await.unwrap().entries;
    let after = slices.iter().find(|entry| entry.key.to_string().contains("after")).unwrap();
    assert!(after.create_revision > second.create_revision, "it reported before it wrote");
}

#[tokio::test]
async fn a_restart_shuts_out_the_earlier_life() {
    let store = store();
    let earlier = start(&store, "a", "1.30", "").await;
    let later = start(&store, "a", "1.31", "").await;
    write_slice(&later, "later").await.unwrap();
    let written = tokio::time::timeout(Duration::from_secs(20), write_slice(&earlier, "earlier")).await.unwrap();
    let Err(ApiError::Unavailable { .. }) = written else { panic!("the earlier life wrote: {written:?}") };
    assert!(!earlier.agreement().is_settled(), "it must not be sent requests any more");
    assert!(later.agreement().is_settled(), "and it must not fight the later one");
    let status = status(&store, "discovery.k8s.io.endpointslices").await;
    assert_eq!(status["commonEncodingVersion"], "discovery.k8s.io/v1");
}

#[tokio::test]
async fn the_dead_are_collected_and_the_unknown_are_not() {
    let store = store();
    let entry = |id: &str| json!({"apiServerID": id, "encodingVersion": "x/v1", "decodableVersions": ["x/v1"]});
    let object = |name: &str, ids: &[&str]| {
        let entries: Vec<Value> = ids.iter().map(|id| entry(id)).collect();
        json!({
            "apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion",
            "metadata": {"name": name}, "spec": {},
            "status": {"storageVersions": entries, "commonEncodingVersion": "x/v1"},
        })
    };
    let dead = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "dead", "namespace": "kube-system", "labels": {"apiserver.kubernetes.io/identity": "x"}},
        "spec": {"holderIdentity": "dead_1", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"},
    });
    let put = async |key: String, value: String| {
        store.put(&Key::try_from(key).unwrap(), value.into()).await.unwrap();
    };
    put(format!("{LEASES}dead"), dead.to_string()).await;
    put(format!("{LEASES}unreadable"), "{".to_string()).await;
    put(format!("{STORAGE_VERSIONS}x.gone"), object("x.gone", &["dead", "long-dead"]).to_string()).await;
    put(format!("{STORAGE_VERSIONS}x.kept"), object("x.kept", &["dead", "unreadable"]).to_string()).await;
    let _server = start(&store, "a", "1.37", "").await;
    eventually("the entries of the dead are gone", || async {
        let objects = objects(&store, STORAGE_VERSIONS).await;
        servers_of(&objects["x.gone"]["status"]).is_empty()
            && servers_of(&objects["x.kept"]["status"]) == ["unreadable"]
    })
    .await;
    assert_eq!(lease(&store, "dead").await, None);
    let unreadable = lease(&store, "unreadable").await.expect("what cannot be read is not gone");
    store.txn(restow_store::Txn::new().delete(&unreadable.key)).await.unwrap();
    eventually("objects without entries are gone", || async {
        let objects = objects(&store, STORAGE_VERSIONS).await;
        !objects.contains_key("x.gone") && !objects.contains_key("x.kept")
    })
    .await;
}

fn widgets(stored: &str) -> Arc<Resource> {
    Arc::new(widgets_of(stored, &["example.com/v1", "example.com/v2"], Origin::Custom))
}

fn widgets_of(stored: &str, versions: &[&str], origin: Origin) -> Resource {
    let location = GroupResource::new("example.com", "widgets").unwrap();
    let versions: Vec<GroupVersion> = versions.iter().map(|text| text.parse().unwrap()).collect();
    Resource {
        group_resource: location.clone(),
        names: Names { kind: "Widget".into(), ..Names::default() },
        scope: Scope::Namespaced,
        verbs: Verb::ALL.to_vec(),
        served: versions.clone(),
        subresources: Vec::new(),
        selectable_fields: Vec::new(),
        storage: Some(Arc::new(Storage::new(location, stored.parse().unwrap(), versions))),
        strategy: Arc::new(Plain),
        converter: Arc::new(RenameVersion),
        origin,
        custom: None,
    }
}

#[tokio::test]
async fn other_resources_are_reported_reported_anew_and_withdrawn() {
    let store = store();
    let server = start(&store, "a", "1.37", "").await;
    let name = "example.com.widgets";
    server.agreement().report(&widgets("example.com/v1")).await.unwrap();
    assert_eq!(status(&store, name).await["commonEncodingVersion"], "example.com/v1");
    let current = widgets("example.com/v2");
    server.agreement().report(&current).await.unwrap();
    assert_eq!(status(&store, name).await["commonEncodingVersion"], "example.com/v2");
    assert_eq!(current.storage.as_ref().unwrap().encoding().comparisons().len(), 1, "its writes carry the fence");

    // What is reported comes back with a new lease.
    let first = lease(&store, "a").await.unwrap();
    store.txn(restow_store::Txn::new().delete(&first.key)).await.unwrap();
    store
        .txn(restow_store::Txn::new().delete(&Key::try_from(format!("{STORAGE_VERSIONS}{name}")).unwrap()))
        .await
        .unwrap();
    eventually("it is reported again", || async {
        status(&store, name).await["commonEncodingVersion"] == "example.com/v2"
    })
    .await;

    eventually("the server is back", || async { server.agreement().is_settled() }).await;
    server.agreement().withdraw(&current.group_resource).await.unwrap();
    assert!(!objects(&store, STORAGE_VERSIONS).await.contains_key(name));
}

#[tokio::test]
async fn gates_can_be_closed_and_opened_without_losing_anything() {
    let store = store();
    for (round, gates) in ["StorageVersionAPI=false", "", "APIServerIdentity=false"].iter().enumerate() {
        let server = start(&store, "a", "1.30", gates).await;
        write_slice(&server, &format!("round-{round}")).await.unwrap();
        let reported = !objects(&store, STORAGE_VERSIONS).await.is_empty();
        assert_eq!(reported, round >= 1, "objects stay when the gate is closed, and none are made while it is");
        server.leave().await;
    }
    assert_eq!(objects(&store, "/discovery.k8s.io/endpointslices/").await.len(), 3);
}

/// The version in which a slice lies in the store.
async fn stored_version(store: &Arc<dyn Store>, name: &str) -> String {
    let slices = objects(store, "/discovery.k8s.io/endpointslices/default/").await;
    slices[name]["apiVersion"].as_str().unwrap().to_string()
}

/// The hash that discovery shows for endpoint slices on this server.
fn hash_of_slices(server: &ApiServer) -> String {
    let version: GroupVersion = "discovery.k8s.io/v1".parse().unwrap();
    server.registry().find(&version, "endpointslices").unwrap().storage_version_hash().unwrap()
}

async fn roll_by_votes(how: Guarantee) {
    let store = store();
    let (old, new) = ("discovery.k8s.io/v1beta1", "discovery.k8s.io/v1");
    let old_hash = restow_api::storage_version_hash("discovery.k8s.io", "v1beta1", "EndpointSlice");
    let new_hash = restow_api::storage_version_hash("discovery.k8s.io", "v1", "EndpointSlice");
    start_voting(&store, "a", builtins("1.30"), how).await.leave().await;
    let b = start_voting(&store, "b", builtins("1.30"), how).await;
    let a = start_voting(&store, "a", builtins("1.31"), how).await;
    write_slice(&a, "by-a").await.unwrap();
    assert_eq!(stored_version(&store, "by-a").await, old, "b still prefers the old version");
    assert_eq!(hash_of_slices(&a), old_hash);

    b.leave().await;
    let b = start_voting(&store, "b", builtins("1.31"), how).await;
    for (name, server) in [("later-by-a", &a), ("later-by-b", &b)] {
        if how == Guarantee::Loose {
            eventually("the server hears of the selection", || async { hash_of_slices(server) == new_hash }).await;
        }
        write_slice(server, name).await.unwrap();
        assert_eq!(stored_version(&store, name).await, new, "all prefer the new version now");
        assert_eq!(hash_of_slices(server), new_hash);
    }
    let report = status(&store, "discovery.k8s.io.endpointslices").await;
    assert_eq!(report["commonEncodingVersion"], new);
}

#[tokio::test]
async fn the_selected_version_moves_with_the_last_vote() {
    roll_by_votes(Guarantee::Strict).await;
}

#[tokio::test]
async fn the_selected_version_moves_soon_under_the_loose_guarantee() {
    roll_by_votes(Guarantee::Loose).await;
}

#[tokio::test]
async fn a_skipped_release_writes_nothing_until_the_old_one_is_gone() {
    let store = store();
    let only = |version: &str| vec![widgets_of(version, &[version], Origin::Builtin)];
    let old = start_voting(&store, "old", only("example.com/v1"), Guarantee::Strict).await;
    let new = start_voting(&store, "new", only("example.com/v2"), Guarantee::Strict).await;
    let write = async || {
        let version: GroupVersion = "example.com/v2".parse().unwrap();
        let resource = new.registry().find(&version, "widgets").unwrap().clone();
        let place = Place { resource: &resource, version: &version, namespace: "default", name: "w" };
        let object = json!({
            "apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "w", "namespace": "default"},
        });
        new.objects().change(place, &mut Put(Object::from_value(object).unwrap())).await
    };
    let refusal = write().await.unwrap_err().to_string();
    for words in ["cannot write widgets.example.com", "in example.com/v1", "supports example.com/v2"] {
        assert!(refusal.contains(words), "{refusal}");
    }
    assert_eq!(servers_of(&status(&store, "example.com.widgets").await), ["old"], "who does not write reports nothing");
    old.leave().await;
    eventually("the selection moves", || async { write().await.is_ok() }).await;
    assert_eq!(status(&store, "example.com.widgets").await["commonEncodingVersion"], "example.com/v2");
}
