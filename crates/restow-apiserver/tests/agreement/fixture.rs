//! Servers in one process on one in-memory store, and helpers to read that store.

use async_trait::async_trait;
use restow_api::{GroupResource, GroupVersion};
use restow_apimachinery::object::Object;
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::error::ApiError;
use restow_apiserver::release::Release;
use restow_apiserver::resource::conversion::RenameVersion;
use restow_apiserver::resource::registry::Registry;
use restow_apiserver::resource::strategy::Plain;
use restow_apiserver::resource::{Names, Origin, Resource, Scope, Storage, Verb};
use restow_apiserver::storage_version::Upstream;
use restow_apiserver::{
    AccessConfig, AggregatorConfig, AgreementConfig, ApiServer, AuthorizationMode, Changed, Gates, Guarantee,
    LoadLimits, ObjectChange, ObjectDecision, ObjectRef, ServerConfig, StorageVersions,
};
use restow_auth::authenticate::{AnonymousAccess, Authenticators};
use restow_store::conformance::ModelStore;
use restow_store::{
    Entry, Key, RangeRequest, RangeResponse, Revision, Store, StoreError, StoreExt, StoreStatus, Txn, TxnOutcome,
    Watch, WatchRequest,
};
pub(crate) use restow_testkit::eventually;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

pub(crate) const LEASES: &str = "/coordination.k8s.io/leases/kube-system/";
pub(crate) const STORAGE_VERSIONS: &str = "/internal.apiserver.k8s.io/storageversions/";

/// Starts a server that reports its storage versions.
pub(crate) async fn start(store: &Arc<dyn Store>, id: &str, release: &str, gates: &str) -> Arc<ApiServer> {
    start_with(store, id, builtins(release), gates, StorageVersions::Report).await
}

/// Starts a server that votes on storage versions.
pub(crate) async fn start_voting(
    store: &Arc<dyn Store>,
    id: &str,
    resources: Vec<Resource>,
    how: Guarantee,
) -> Arc<ApiServer> {
    start_with(store, id, resources, "StorageVersionVoting=true", StorageVersions::Vote(how)).await
}

pub(crate) fn builtins(release: &str) -> Vec<Resource> {
    let internal = GroupVersion::new("internal.apiserver.k8s.io", "v1alpha1").unwrap();
    let config = RuntimeConfig { versions: vec![(internal, true)], ..RuntimeConfig::default() };
    builtin::resources(release.parse().unwrap(), &config)
}

/// Starts an aggregated server of the newest release that reports to this main API server too.
pub(crate) async fn start_with_upstream(
    store: &Arc<dyn Store>,
    id: &str,
    gates: &str,
    upstream: Arc<dyn Upstream>,
) -> Arc<ApiServer> {
    start_as(store, id, builtins("1.37"), gates, |config| config.agreement.upstream = Some(upstream)).await
}

pub(crate) async fn start_with(
    store: &Arc<dyn Store>,
    id: &str,
    resources: Vec<Resource>,
    gates: &str,
    storage_versions: StorageVersions,
) -> Arc<ApiServer> {
    start_as(store, id, resources, gates, |config| config.agreement.storage_versions = storage_versions).await
}

pub(crate) async fn start_as(
    store: &Arc<dyn Store>,
    id: &str,
    resources: Vec<Resource>,
    gates: &str,
    adjust: impl FnOnce(&mut ServerConfig),
) -> Arc<ApiServer> {
    let server = begin_to_start(store, id, resources, gates, adjust).await;
    server.ready().await.unwrap();
    server
}

/// Starts a server that may not become ready.
pub(crate) async fn begin_to_start(
    store: &Arc<dyn Store>,
    id: &str,
    resources: Vec<Resource>,
    gates: &str,
    adjust: impl FnOnce(&mut ServerConfig),
) -> Arc<ApiServer> {
    let gates: Gates = gates.parse().unwrap();
    let authenticators = Authenticators {
        token_file: None,
        tokens: None,
        api_audiences: Vec::new(),
        anonymous: AnonymousAccess::health_and_version(),
    };
    let mut config = ServerConfig {
        store: store.clone(),
        registry: Registry::new(resources.into_iter().map(Arc::new)),
        release: Release::NEWEST,
        address: "127.0.0.1:6443".parse().unwrap(),
        access: AccessConfig { authenticators, authorization: AuthorizationMode::AllowAll },
        limits: LoadLimits::default(),
        audit: None,
        root_ca: None,
        aggregator: AggregatorConfig::default(),
        gates,
        agreement: AgreementConfig {
            renew_interval: Duration::from_millis(200),
            ..AgreementConfig::new(id.parse().unwrap(), "host", &gates)
        },
    };
    adjust(&mut config);
    ApiServer::new(config).await.unwrap()
}

pub(crate) fn store() -> Arc<dyn Store> {
    Arc::new(ModelStore::default())
}

pub(crate) async fn objects(store: &Arc<dyn Store>, folder: &str) -> BTreeMap<String, Value> {
    let read = |entry: &Entry| {
        let key = String::from_utf8(entry.key.as_bytes().to_vec()).unwrap();
        (key.rsplit('/').next().unwrap().to_string(), serde_json::from_slice(&entry.value).unwrap())
    };
    let listed = store.range(RangeRequest::prefix(folder.to_string())).await.unwrap();
    listed.entries.iter().map(read).collect()
}

pub(crate) async fn status(store: &Arc<dyn Store>, name: &str) -> Value {
    objects(store, STORAGE_VERSIONS).await.remove(name).unwrap_or_default()["status"].take()
}

pub(crate) fn servers_of(status: &Value) -> Vec<&str> {
    let entries = status["storageVersions"].as_array().map_or(&[][..], Vec::as_slice);
    entries.iter().map(|entry| entry["apiServerID"].as_str().unwrap()).collect()
}

pub(crate) async fn lease(store: &Arc<dyn Store>, id: &str) -> Option<Entry> {
    store.get(&Key::try_from(format!("{LEASES}{id}")).unwrap()).await.unwrap()
}

/// Takes the identity lease of a server of this control plane, as a restarted server does first.
pub(crate) async fn come_back(store: &Arc<dyn Store>, id: &str, control_plane: &str) {
    let labels = json!({"apiserver.kubernetes.io/identity": control_plane});
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": id, "namespace": "kube-system", "labels": labels},
        "spec": {"holderIdentity": "h", "leaseDurationSeconds": 3600, "renewTime": jiff::Timestamp::now().to_string()},
    });
    store.put(&Key::try_from(format!("{LEASES}{id}")).unwrap(), lease.to_string().into()).await.unwrap();
}

/// Writes an object, and replaces an existing one.
pub(crate) struct Put(pub(crate) Object);

#[async_trait]
impl ObjectDecision for Put {
    async fn decide(&mut self, _before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        Ok(ObjectChange::Write(self.0.clone()))
    }
}

pub(crate) async fn write_slice(server: &ApiServer, name: &str) -> Result<Changed, ApiError> {
    let version: GroupVersion = "discovery.k8s.io/v1".parse().unwrap();
    let resource = server.registry().find(&version, "endpointslices").unwrap().clone();
    let place = ObjectRef { resource: &resource, version: &version, namespace: "default", name };
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default"}, "addressType": "IPv4", "endpoints": [],
    });
    server.objects().change(place, &mut Put(Object::from_value(object).unwrap())).await
}

pub(crate) fn widgets(stored: &str) -> Arc<Resource> {
    Arc::new(widgets_of(stored, &["example.com/v1", "example.com/v2"], Origin::Custom))
}

pub(crate) fn widgets_of(stored: &str, versions: &[&str], origin: Origin) -> Resource {
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

/// The version in which a slice is stored.
pub(crate) async fn stored_version(store: &Arc<dyn Store>, name: &str) -> String {
    let slices = objects(store, "/discovery.k8s.io/endpointslices/default/").await;
    slices[name]["apiVersion"].as_str().unwrap().to_string()
}

/// A store that delays the writes of one key as long as a test wants.
pub(crate) struct Slow {
    store: Arc<dyn Store>,
    /// The suffix of the key.
    key: &'static str,
    is_under_way: watch::Sender<bool>,
    has_arrived: watch::Sender<bool>,
    pub(crate) may_pass: watch::Sender<bool>,
}

impl Slow {
    pub(crate) fn at(store: &Arc<dyn Store>, key: &'static str) -> Arc<Self> {
        let new = || watch::Sender::new(false);
        Arc::new(Slow { store: store.clone(), key, is_under_way: new(), has_arrived: new(), may_pass: new() })
    }

    /// Waits until such a write has been sent and not yet arrived.
    pub(crate) async fn under_way(&self) {
        let mut is_under_way = self.is_under_way.subscribe();
        let sent = tokio::time::timeout(Duration::from_secs(60), is_under_way.wait_for(|is| *is)).await;
        sent.expect("no such write was sent within a minute").unwrap();
    }

    /// Waits until such a write has arrived or was refused.
    pub(crate) async fn arrived(&self) {
        let mut has_arrived = self.has_arrived.subscribe();
        let done = tokio::time::timeout(Duration::from_secs(60), has_arrived.wait_for(|has| *has)).await;
        done.expect("no such write was answered within a minute").unwrap();
    }
}

#[async_trait]
impl Store for Slow {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.store.range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        if txn.when.iter().any(|compare| compare.key.to_string().ends_with(self.key)) {
            self.is_under_way.send_replace(true);
            self.may_pass.subscribe().wait_for(|pass| *pass).await.unwrap();
            let done = self.store.txn(txn).await;
            self.has_arrived.send_replace(true);
            return done;
        }
        self.store.txn(txn).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.store.watch(request).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.store.compact(revision).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.store.status().await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.store.ready().await
    }
}

/// A store that never responds to some transactions, and keeps them.
pub(crate) struct Mute {
    store: Arc<dyn Store>,
    is_muted: fn(&Txn) -> bool,
    pub(crate) kept: Mutex<Vec<Txn>>,
}

impl Mute {
    pub(crate) fn to(store: &Arc<dyn Store>, is_muted: fn(&Txn) -> bool) -> Arc<Self> {
        Arc::new(Mute { store: store.clone(), is_muted, kept: Mutex::default() })
    }
}

#[async_trait]
impl Store for Mute {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.store.range(request).await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.store.ready().await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        if (self.is_muted)(&txn) {
            self.kept.lock().unwrap().push(txn);
            return Err(StoreError::OutcomeUnknown("no answer came".into()));
        }
        self.store.txn(txn).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.store.watch(request).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.store.compact(revision).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.store.status().await
    }
}
