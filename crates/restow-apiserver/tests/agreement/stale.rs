//! A server whose reflectors lag behind does nothing that the latest changes forbid.

use crate::fixture::*;
use async_trait::async_trait;
use futures::StreamExt;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_apiserver::error::ApiError;
use restow_apiserver::{ApiServer, ObjectChange, ObjectDecision, ObjectRef, ServerConfig};
use restow_store::conformance::ModelStore;
use restow_store::{
    Entry, Key, KeyRange, RangeRequest, RangeResponse, Revision, Store, StoreError, StoreExt, StoreStatus, Txn,
    TxnOutcome, Watch, WatchRequest,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

/// A store whose changes reach the server late, except for its garbage collector, which has a watch of its own. It counts
/// how often the server reads one key, or is about to write it.
struct Late {
    store: Arc<dyn Store>,
    is_open: watch::Sender<bool>,
    key: Key,
    looks: AtomicUsize,
    /// How often everything was read.
    scans: AtomicUsize,
}

impl Late {
    fn at(store: &Arc<dyn Store>, key: &str) -> Arc<Self> {
        let (is_open, key) = (watch::Sender::new(true), Key::try_from(key.to_string()).unwrap());
        Arc::new(Late { store: store.clone(), is_open, key, looks: AtomicUsize::new(0), scans: AtomicUsize::new(0) })
    }

    fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }

    fn scans(&self) -> usize {
        self.scans.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Store for Late {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let looks = request.range == RangeRequest::key(&self.key).range;
        let scans = request.range == KeyRange::all();
        let found = self.store.range(request).await;
        self.scans.fetch_add(usize::from(scans), Ordering::SeqCst);
        self.looks.fetch_add(usize::from(looks), Ordering::SeqCst);
        found
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.store.ready().await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let looks = txn.when.iter().any(|compare| compare.key == self.key);
        let done = self.store.txn(txn).await;
        self.looks.fetch_add(usize::from(looks), Ordering::SeqCst);
        done
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        let is_hub = request.progress.is_some() && request.range == KeyRange::all();
        let watch = self.store.watch(request).await?;
        if !is_hub {
            return Ok(watch);
        }
        let is_open = self.is_open.subscribe();
        let late = watch.then(move |batch| {
            let mut is_open = is_open.clone();
            async move {
                is_open.wait_for(|open| *open).await.unwrap();
                batch
            }
        });
        Ok(Watch::new(late))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.store.compact(revision).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.store.status().await
    }
}

struct Remove;

#[async_trait]
impl ObjectDecision for Remove {
    async fn decide(&mut self, _before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        Ok(ObjectChange::Remove)
    }
}

/// Changes a CRD as a request to this server would.
async fn define(server: &ApiServer, name: &str, decision: &mut dyn ObjectDecision) {
    let version: GroupVersion = "apiextensions.k8s.io/v1".parse().unwrap();
    let resource = server.registry().find(&version, "customresourcedefinitions").unwrap().clone();
    let place = ObjectRef { resource: &resource, version: &version, namespace: "", name };
    server.objects().change(place, decision).await.unwrap();
}

/// A CRD of the kind `A`.
fn definition(plural: &str, scope: &str, uid: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.ex.com"), "uid": uid, "generation": 1},
        "spec": {
            "group": "ex.com", "scope": scope, "conversion": {"strategy": "None"},
            "names": {"plural": plural, "singular": plural, "kind": "A", "listKind": "AList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
        "status": {"storedVersions": ["v1"], "conditions": [], "acceptedNames": {"plural": "", "kind": ""}},
    })
}

async fn put(store: &Arc<dyn Store>, key: &str, object: Value) {
    store.put(&Key::try_from(key.to_string()).unwrap(), object.to_string().into()).await.unwrap();
}

async fn get(store: &Arc<dyn Store>, key: &str) -> Option<Value> {
    let entry: Option<Entry> = store.get(&Key::try_from(key.to_string()).unwrap()).await.unwrap();
    entry.map(|entry| serde_json::from_slice(&entry.value).unwrap())
}

async fn delete(store: &Arc<dyn Store>, key: &str) {
    store.txn(Txn::new().delete(&Key::try_from(key.to_string()).unwrap())).await.unwrap();
}

async fn serves(server: &ApiServer, plural: &str) {
    let version: GroupVersion = "ex.com/v1".parse().unwrap();
    eventually("it is served", || async { server.registry().find(&version, plural).is_some() }).await;
}

fn config_map(owner: Option<&str>, finalizers: &[&str]) -> Value {
    let mut metadata = json!({"name": "cm", "namespace": "x", "uid": "cm", "finalizers": finalizers});
    if let Some(uid) = owner {
        metadata["ownerReferences"] = json!([{"apiVersion": "ex.com/v1", "kind": "A", "name": "o", "uid": uid}]);
    }
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

fn namespace(uid: &str, deleted: bool, finalizers: &[&str]) -> Value {
    let mut metadata = json!({"name": "x", "uid": uid, "finalizers": finalizers});
    if deleted {
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "spec": {"finalizers": ["kubernetes"]}})
}

const CONFIG_MAP: &str = "/core/configmaps/x/cm";
const NAMESPACE: &str = "/core/namespaces/x";

/// The CRD of an owner is replaced while the garbage collector's server sees no CRD events.
async fn owner_of_a_kind_that_moved(plural: &'static str, scope: &str, owner: &str) {
    let store = store();
    let late = Late::at(&store, CONFIG_MAP);
    let beneath: Arc<dyn Store> = late.clone();
    let a = start(&beneath, "a", "1.37", "").await;
    eventually("it collects garbage", || async {
        store.get(&Key::try_from("/restow/leaders/garbage-collector").unwrap()).await.unwrap().is_some()
    })
    .await;
    let b = start(&store, "b", "1.37", "").await;
    define(&b, "as.ex.com", &mut Put(Object::from_value(definition("as", "Namespaced", "1")).unwrap())).await;
    serves(&a, "as").await;
    serves(&b, "as").await;
    late.is_open.send_replace(false);
    define(&b, "as.ex.com", &mut Remove).await;
    let version: GroupVersion = "ex.com/v1".parse().unwrap();
    eventually("b has heard", || async { b.registry().find(&version, "as").is_none() }).await;
    let fresh = definition(plural, scope, "2");
    define(&b, &format!("{plural}.ex.com"), &mut Put(Object::from_value(fresh).unwrap())).await;
    serves(&b, plural).await;
    put(&store, owner, json!({"apiVersion": "ex.com/v1", "kind": "A", "metadata": {"name": "o", "uid": "o"}})).await;
    put(&store, CONFIG_MAP, config_map(Some("o"), &[])).await;
    eventually("a has looked at it, and tried", || async {
        late.looks() >= 3 || get(&store, CONFIG_MAP).await.is_none()
    })
    .await;
    assert!(get(&store, CONFIG_MAP).await.is_some(), "its owner is there, where a does not look");
    late.is_open.send_replace(true);
    delete(&store, owner).await;
    eventually("it goes with its owner", || async { get(&store, CONFIG_MAP).await.is_none() }).await;
}

#[tokio::test]
async fn an_owner_is_found_after_its_kind_has_moved_to_another_resource() {
    owner_of_a_kind_that_moved("bs", "Namespaced", "/ex.com/bs/x/o").await;
}

#[tokio::test]
async fn an_owner_is_found_after_the_scope_of_its_kind_has_changed() {
    owner_of_a_kind_that_moved("as", "Cluster", "/ex.com/as/o").await;
}

#[tokio::test]
async fn nothing_is_deleted_from_a_namespace_that_was_created_again() {
    let store = store();
    let late = Late::at(&store, NAMESPACE);
    let beneath: Arc<dyn Store> = late.clone();
    let _a = start(&beneath, "a", "1.37", "").await;
    put(&store, NAMESPACE, namespace("1", true, &["test/held"])).await;
    eventually("it was let go", || async {
        get(&store, NAMESPACE).await.is_some_and(|found| found["spec"]["finalizers"] == json!([]))
    })
    .await;
    late.is_open.send_replace(false);
    delete(&store, NAMESPACE).await;
    put(&store, NAMESPACE, namespace("2", false, &[])).await;
    put(&store, CONFIG_MAP, config_map(None, &[])).await;
    let before = late.looks();
    eventually("it has tried to empty it again", || async {
        late.looks() >= before + 3 || get(&store, CONFIG_MAP).await.is_none()
    })
    .await;
    assert!(get(&store, CONFIG_MAP).await.is_some(), "the namespace that was to go is gone; this is another");
}

#[tokio::test]
async fn a_namespace_is_finalized_only_by_a_server_that_found_this_instance_empty() {
    let store = store();
    let slow = Slow::at(&store, NAMESPACE);
    let beneath: Arc<dyn Store> = slow.clone();
    let _a = start(&beneath, "a", "1.37", "").await;
    put(&store, NAMESPACE, namespace("1", true, &[])).await;
    slow.under_way().await;
    // While it is finalized, another server has finalized it; it was created again, filled, and deleted.
    delete(&store, NAMESPACE).await;
    put(&store, CONFIG_MAP, config_map(None, &["test/held"])).await;
    put(&store, NAMESPACE, namespace("2", true, &[])).await;
    slow.may_pass.send_replace(true);
    eventually("its content is being deleted", || async {
        let marked = !get(&store, CONFIG_MAP).await.unwrap()["metadata"]["deletionTimestamp"].is_null();
        marked || get(&store, NAMESPACE).await.is_none()
    })
    .await;
    let found = get(&store, NAMESPACE).await.expect("something is still in it");
    assert_eq!(found["spec"]["finalizers"], json!(["kubernetes"]));
}

#[tokio::test]
async fn no_default_objects_are_created_in_a_deleted_namespace() {
    let store = store();
    let slow = Slow::at(&store, "/core/serviceaccounts/x/default");
    let beneath: Arc<dyn Store> = slow.clone();
    let _a = start(&beneath, "a", "1.37", "").await;
    put(&store, NAMESPACE, namespace("1", false, &[])).await;
    slow.under_way().await;
    delete(&store, NAMESPACE).await;
    slow.may_pass.send_replace(true);
    slow.arrived().await;
    assert_eq!(get(&store, "/core/serviceaccounts/x/default").await, None);
}

#[tokio::test]
async fn a_crd_is_kept_until_its_objects_are_deleted_whatever_its_status_is() {
    let store = store();
    let a = start(&store, "a", "1.37", "").await;
    define(&a, "as.ex.com", &mut Put(Object::from_value(definition("as", "Cluster", "1")).unwrap())).await;
    serves(&a, "as").await;
    put(&store, "/ex.com/as/o", json!({"apiVersion": "ex.com/v1", "kind": "A", "metadata": {"name": "o", "uid": "o"}}))
        .await;
    let mut never = definition("as", "Cluster", "1");
    never["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    never["metadata"]["finalizers"] = json!(["customresourcecleanup.apiextensions.k8s.io"]);
    define(&a, "as.ex.com", &mut Put(Object::from_value(never).unwrap())).await;
    eventually("the definition is gone", || async {
        get(&store, "/apiextensions.k8s.io/customresourcedefinitions/as.ex.com").await.is_none()
    })
    .await;
    assert_eq!(get(&store, "/ex.com/as/o").await, None, "it would come back with the next definition of this name");
}

#[tokio::test]
async fn nothing_is_collected_from_a_store_that_another_program_also_uses() {
    let store = store();
    let late = Late::at(&store, CONFIG_MAP);
    let beneath: Arc<dyn Store> = late.clone();
    let _a = start(&beneath, "a", "1.37", "").await;
    eventually("it collects garbage", || async { late.scans() > 0 }).await;
    // A kube-apiserver is started with the same etcd and the same prefix.
    put(&store, "/namespaces/x", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}})).await;
    let before = late.scans();
    let mut owned = config_map(Some("o"), &[]);
    owned["metadata"]["ownerReferences"][0]["apiVersion"] = "v1".into();
    owned["metadata"]["ownerReferences"][0]["kind"] = "Secret".into();
    put(&store, CONFIG_MAP, owned).await;
    eventually("it has looked again", || async { late.scans() > before || get(&store, CONFIG_MAP).await.is_none() })
        .await;
    assert!(get(&store, CONFIG_MAP).await.is_some(), "its owner may lie where we do not look");
    delete(&store, "/namespaces/x").await;
    eventually("it is collected", || async { get(&store, CONFIG_MAP).await.is_none() }).await;
}

#[tokio::test]
async fn the_kubernetes_service_takes_no_address_of_another_service() {
    let store = store();
    let spec = json!({"type": "ClusterIP", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]});
    let metadata = json!({"name": "s", "namespace": "x", "uid": "s"});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
    put(&store, "/core/services/x/s", service).await;
    let address = Key::try_from("/restow/addresses/10.96.0.1").unwrap();
    store.put(&address, "x/s".into()).await.unwrap();
    let reachable = |config: &mut ServerConfig| config.address = "10.0.0.5:6443".parse().unwrap();
    let _a = start_as(&store, "a", builtins("1.37"), "", reachable).await;
    eventually("the servers are published", || async {
        get(&store, "/discovery.k8s.io/endpointslices/default/kubernetes").await.is_some()
    })
    .await;
    assert_eq!(get(&store, "/core/services/default/kubernetes").await, None);
    assert_eq!(store.get(&address).await.unwrap().unwrap().value.as_ref(), b"x/s");
    delete(&store, "/core/services/x/s").await;
    eventually("it is made when the address is free", || async {
        get(&store, "/core/services/default/kubernetes").await.is_some()
    })
    .await;
}

#[tokio::test]
async fn nothing_is_written_under_a_lease_from_a_restored_backup() {
    let model = Arc::new(ModelStore::default());
    let store: Arc<dyn Store> = model.clone();
    let a = start(&store, "a", "1.37", "").await;
    let backup = model.back_up();
    let before = lease(&store, "a").await.unwrap();
    eventually("the lease is renewed", || async {
        lease(&store, "a").await.unwrap().mod_revision > before.mod_revision
    })
    .await;
    model.restore(backup);
    assert_eq!(lease(&store, "a").await.unwrap().create_revision, before.create_revision);
    write_slice(&a, "s").await.unwrap();
    let after = lease(&store, "a").await.unwrap();
    assert!(
        after.create_revision > before.create_revision,
        "what it had reported may be lost, so it reports again first"
    );
}
