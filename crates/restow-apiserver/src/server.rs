//! The server: what it serves, from which store.

mod post_start;

use crate::admission::Admission;
use crate::audit::AuditLog;
use crate::authorization::{Access, AccessConfig, Authorization};
use crate::controllers;
use crate::crd::CustomResources;
use crate::discovery::ShowHashes;
use crate::error::ApiError;
use crate::flow_control::fair_queue::FairQueue;
use crate::flow_control::limits::{InFlight, LoadLimits};
use crate::gates::{Gate, Gates};
use crate::http::connections;
use crate::http::documents::Documents;
use crate::metrics::{MeasuredStore, Metrics};
use crate::namespaces::Namespaces;
use crate::release::Release;
use crate::resource::registry::Registry;
use crate::storage::compaction;
use crate::storage::format_mark;
use crate::storage::object_store::ObjectStore;
use crate::storage::watch_cache::WatchCache;
use crate::storage_version::{Agreement, AgreementConfig};
use arc_swap::ArcSwap;
use post_start::Starting;
use restow_auth::authenticate::Authenticators;
use restow_store::Store;
use serde_json::{Value, json};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// An API server.
pub struct ApiServer {
    objects: ObjectStore,
    watch_cache: Arc<WatchCache>,
    registry: ArcSwap<Registry>,
    release: Release,
    address: SocketAddr,
    namespaces: Namespaces,
    access: Access,
    admission: Admission,
    metrics: Arc<Metrics>,
    limits: LoadLimits,
    in_flight: InFlight,
    fair_queue: Arc<FairQueue>,
    documents: Documents,
    audit: Option<Arc<AuditLog>>,
    stopped: watch::Sender<bool>,
    gates: Gates,
    agreement: Arc<Agreement>,
    starting: Starting,
    custom: CustomResources,
    following: tokio::task::JoinHandle<()>,
}

/// How to set up a server.
pub struct ServerConfig {
    /// Where the objects lie.
    pub store: Arc<dyn Store>,
    /// What is served.
    pub registry: Registry,
    /// The release that the server says it is.
    pub release: Release,
    /// Where clients reach it.
    pub address: SocketAddr,
    /// Who may do what.
    pub access: AccessConfig,
    /// How much it takes on at once.
    pub limits: LoadLimits,
    /// Where requests are told of, if anywhere.
    pub audit: Option<Arc<AuditLog>>,
    /// What is turned on and off.
    pub gates: Gates,
    /// How this server takes part among others on the same store.
    pub agreement: AgreementConfig,
    /// The certificates, in PEM, by which clients in the cluster know the servers; every namespace is given them.
    pub root_ca: Option<String>,
}

impl ServerConfig {
    /// A server of these resources that is reached at this address, with everything else as it should be: the newest
    /// release, proof of identity by certificates, and only what roles allow. Where no roles are served, only members
    /// of `system:masters` may do anything.
    pub fn new(store: Arc<dyn Store>, registry: Registry, address: SocketAddr) -> Self {
        let gates = Gates::default();
        let identity = AgreementConfig::identity_of(&[&address.to_string()]);
        ServerConfig {
            store,
            registry,
            release: Release::NEWEST,
            address,
            access: AccessConfig { authenticators: Authenticators::default(), authorization: Authorization::Rbac },
            limits: LoadLimits::default(),
            audit: None,
            agreement: AgreementConfig::new(identity, address.ip().to_string(), &gates),
            gates,
            root_ca: None,
        }
    }
}

impl ApiServer {
    /// Sets up a server, which can be used for reading at once; [`ApiServer::ready`] tells when it can be written to.
    pub async fn new(config: ServerConfig) -> Result<Arc<Self>, ApiError> {
        let metrics = Arc::new(Metrics::default());
        if let Some(audit) = &config.audit {
            audit.register(&metrics);
        }
        let store: Arc<dyn Store> = Arc::new(MeasuredStore::new(config.store, &metrics));
        format_mark::claim(store.as_ref(), &format_mark::groups_of(&config.registry)).await?;
        let (watch_cache, following) = WatchCache::start(store.clone()).await?;
        let objects = ObjectStore::new(store.clone());
        let mut taking_part = config.agreement;
        taking_part.advertised.get_or_insert(config.address);
        let agreement = Agreement::new(taking_part, store, objects.alarm().clone(), config.registry.resources());
        agreement.register(&metrics);
        let custom = CustomResources::new(config.registry.resources());
        let server = Arc::new(ApiServer {
            objects,
            watch_cache,
            registry: ArcSwap::from_pointee(config.registry),
            release: config.release,
            address: config.address,
            namespaces: Namespaces::new(config.root_ca),
            access: Access::new(config.access),
            admission: Admission::default(),
            in_flight: InFlight::new(&config.limits, &metrics),
            fair_queue: Arc::default(),
            metrics,
            limits: config.limits,
            documents: Documents::default(),
            audit: config.audit,
            stopped: watch::Sender::new(false),
            gates: config.gates,
            agreement: Arc::new(agreement),
            starting: Starting::default(),
            custom,
            following,
        });
        server.follow_policy().await?;
        server.establish_admission().await?;
        server.tend_namespaces()?;
        server.agreement.start(&server.watch_cache).await.map_err(|error| ApiError::Internal(error.chain()))?;
        server.tend_custom_resources().await?;
        server.agreement.announced_everything();
        tokio::spawn(post_start::start(Arc::downgrade(&server)));
        tokio::spawn(compaction::compact_regularly(server.objects.store().clone(), Arc::downgrade(&server)));
        tokio::spawn(controllers::collect_garbage(Arc::downgrade(&server)));
        tokio::spawn(start_over(Arc::downgrade(&server), server.watch_cache.losses()));
        Ok(server)
    }

    /// Completes when the server has reported its storage versions and made what every cluster has: from then on it
    /// can be written to.
    pub async fn ready(&self) -> Result<(), ApiError> {
        self.starting.done().await
    }

    /// Leaves the other servers, so that they need not wait until this one is missed. Nothing can be written afterwards.
    pub async fn leave(&self) {
        controllers::withdraw_server(self).await;
        self.agreement.leave().await;
    }

    /// Serves on a listener until `stop` completes, then lets running requests finish.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Arc<rustls::ServerConfig>,
        stop: impl Future<Output = ()>,
    ) {
        connections::serve(self, listener, tls, stop).await;
    }

    /// The objects.
    pub fn objects(&self) -> &ObjectStore {
        &self.objects
    }

    /// The recent changes.
    pub fn watch_cache(&self) -> &WatchCache {
        &self.watch_cache
    }

    /// What is served now.
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.load_full()
    }

    /// What is counted and measured; others may register metrics of their own.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    pub(crate) fn limits(&self) -> &LoadLimits {
        &self.limits
    }

    /// The queue in which heavy work waits for its turn.
    pub(crate) fn fair_queue(&self) -> &Arc<FairQueue> {
        &self.fair_queue
    }

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    pub(crate) fn documents(&self) -> &Documents {
        &self.documents
    }

    pub(crate) fn audit(&self) -> Option<&Arc<AuditLog>> {
        self.audit.as_ref()
    }

    /// Tells everything that goes on to come to an end, and that the server is no longer ready.
    pub(crate) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Whether the server has been asked to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Completes when the server is asked to stop.
    pub(crate) fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopped = self.stopped.subscribe();
        async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        }
    }

    /// This server among the others.
    pub fn agreement(&self) -> &Arc<Agreement> {
        &self.agreement
    }

    pub(crate) fn starting(&self) -> &Starting {
        &self.starting
    }

    /// Serves other resources from now on. Requests that run go on with what they have found.
    pub(crate) fn serve_resources(&self, registry: Registry) {
        self.registry.store(Arc::new(registry));
    }

    /// What definitions of custom resources say.
    pub(crate) fn custom(&self) -> &CustomResources {
        &self.custom
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    pub(crate) fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Where clients reach this server.
    pub(crate) fn socket_address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn release(&self) -> Release {
        self.release
    }

    /// Whether objects that cannot be read can be deleted.
    pub(crate) fn deletes_unreadable(&self) -> bool {
        self.gates.is_on(Gate::AllowUnsafeMalformedObjectDeletion)
    }

    pub(crate) fn show_hashes(&self) -> ShowHashes {
        match self.gates.is_on(Gate::StorageVersionHash) {
            true => ShowHashes::Yes,
            false => ShowHashes::No,
        }
    }

    /// `/version`.
    pub(crate) fn version(&self) -> Value {
        let release = self.release;
        json!({
            "major": "1", "minor": release.minor().to_string(), "gitVersion": format!("v{release}.0+restow"),
            "gitCommit": "", "gitTreeState": "", "buildDate": "1970-01-01T00:00:00Z",
            "goVersion": "", "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, if cfg!(target_arch = "x86_64") { "amd64" } else { std::env::consts::ARCH }),
        })
    }
}

/// Starts over whenever the store has gone back to an earlier state, as after a backup was restored. Every reflector
/// is told to read anew; what was reported may be lost, and the identity lease may be one of before.
async fn start_over(server: Weak<ApiServer>, mut losses: watch::Receiver<u64>) {
    while losses.changed().await.is_ok() {
        let Some(server) = server.upgrade() else { return };
        server.objects.forget_everything();
        server.agreement.join_again();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.following.abort();
    }
}
