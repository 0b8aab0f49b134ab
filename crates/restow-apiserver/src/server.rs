//! The server: creates the components and starts them.

mod post_start;

use crate::admission::Admission;
use crate::aggregator::{Aggregator, AggregatorConfig};
use crate::audit::AuditLog;
use crate::auth::{Access, AccessConfig, AuthorizationMode};
use crate::builtin::write_hooks;
use crate::controllers::{self, KubernetesService};
use crate::core::Core;
use crate::crd::CustomResources;
use crate::discovery::ShowHashes;
use crate::discovery::documents::{Documents, Sources};
use crate::error::ApiError;
use crate::flow_control::fair_queue::FairQueue;
use crate::flow_control::limits::{InFlight, LoadLimits};
use crate::gates::{Gate, Gates};
use crate::handlers::Handlers;
use crate::metrics::{MeasuredStore, Metrics};
use crate::namespaces::Namespaces;
use crate::release::Release;
use crate::resource::registry::Registry;
use crate::serving::authority::CertificateAuthority;
use crate::storage::object_store::ObjectStore;
use crate::storage::watch_cache::WatchCache;
use crate::storage::{compaction, format_mark};
use crate::storage_version::{Agreement, AgreementConfig};
use crate::webhook_client::ServiceResolver;
use crate::webhook_client::services::Services;
use post_start::PostStart;
use restow_auth::authenticate::Authenticators;
use restow_store::Store;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

/// An API server.
pub struct ApiServer {
    pub(crate) core: Arc<Core>,
    pub(crate) handlers: Arc<Handlers>,
    release: Release,
    address: SocketAddr,
    metrics: Arc<Metrics>,
    limits: LoadLimits,
    in_flight: InFlight,
    fair_queue: Arc<FairQueue>,
    documents: Documents,
    audit: Option<Arc<AuditLog>>,
    gates: Gates,
    service: Arc<KubernetesService>,
    aggregator: Arc<Aggregator>,
    authorities: ClientAuthorities,
}

/// Who issues the certificates of clients.
#[derive(Default)]
pub(crate) struct ClientAuthorities {
    /// Those of users; `None` for everyone whom the TLS configuration of the listener accepts.
    pub(crate) users: Option<CertificateAuthority>,
    /// Those of front proxies.
    pub(crate) front_proxies: Option<CertificateAuthority>,
}

impl ClientAuthorities {
    /// Where front proxies are trusted, their certificates must not be taken for those of users.
    fn of(config: &AggregatorConfig) -> Result<Self, ApiError> {
        config.check().map_err(|error| ApiError::Internal(error.to_string()))?;
        let Some(trusted) = &config.request_header else { return Ok(ClientAuthorities::default()) };
        let read = |pem: &str| CertificateAuthority::read(pem).map_err(|error| ApiError::Internal(error.to_string()));
        let users = config.client_ca.as_deref().map(read).transpose()?;
        Ok(ClientAuthorities { users, front_proxies: Some(read(&trusted.ca)?) })
    }
}

/// The configuration of a server.
pub struct ServerConfig {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The served resources.
    pub registry: Registry,
    /// The Kubernetes release of the server.
    pub release: Release,
    /// The address for clients.
    pub address: SocketAddr,
    /// Authentication and authorization.
    pub access: AccessConfig,
    /// The limits on concurrent work.
    pub limits: LoadLimits,
    /// The audit log, if there is one.
    pub audit: Option<Arc<AuditLog>>,
    /// The feature gates.
    pub gates: Gates,
    /// How this server agrees on storage versions with other servers on the same store.
    pub agreement: AgreementConfig,
    /// The CA certificates of the servers in PEM. They are published in every namespace.
    pub root_ca: Option<String>,
    /// How this server appears to the API servers behind it.
    pub aggregator: AggregatorConfig,
}

impl ServerConfig {
    /// A server of these resources at this address, with the defaults: the newest release, client certificates, and
    /// RBAC. If no roles are served, only members of `system:masters` have access.
    pub fn new(store: Arc<dyn Store>, registry: Registry, address: SocketAddr) -> Self {
        let gates = Gates::default();
        let identity = AgreementConfig::identity_of(&[&address.to_string()]);
        ServerConfig {
            store,
            registry,
            release: Release::NEWEST,
            address,
            access: AccessConfig { authenticators: Authenticators::default(), authorization: AuthorizationMode::Rbac },
            limits: LoadLimits::default(),
            audit: None,
            agreement: AgreementConfig::new(identity, address.ip().to_string(), &gates),
            gates,
            root_ca: None,
            aggregator: AggregatorConfig::default(),
        }
    }
}

impl ApiServer {
    /// Creates a server. It serves reads at once; [`ApiServer::ready`] completes when it serves writes.
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
        let agreement = Arc::new(agreement);
        let core = Arc::new(Core::new(objects, watch_cache, config.registry));
        core.spawn(following);
        let authorities = ClientAuthorities::of(&config.aggregator)?;
        let request_headers = config.aggregator.request_header.as_ref().map(|trusted| trusted.headers.clone());
        let access = Arc::new(Access::new(core.clone(), agreement.clone(), config.access, request_headers));
        let namespaces = Arc::new(Namespaces::new(core.clone(), access.clone(), config.root_ca));
        let services: Arc<dyn ServiceResolver> = Arc::new(Services(core.clone()));
        let admission = Arc::new(Admission::new(core.clone(), access.clone(), namespaces.clone(), services.clone()));
        let custom = Arc::new(CustomResources::new(core.clone(), agreement.clone(), services));
        let aggregator = Arc::new(Aggregator::new(core.clone(), agreement.clone(), config.aggregator, &metrics));
        let handlers = Arc::new(Handlers {
            core: core.clone(),
            access: access.clone(),
            namespaces: namespaces.clone(),
            admission: admission.clone(),
            agreement: agreement.clone(),
            aggregator: aggregator.clone(),
            write_hooks: write_hooks(&core, &agreement),
            deletes_unreadable: config.gates.is_on(Gate::AllowUnsafeMalformedObjectDeletion),
        });
        let service = KubernetesService { core: core.clone(), agreement: agreement.clone(), address: config.address };
        let service = Arc::new(service);
        let server = Arc::new(ApiServer {
            core: core.clone(),
            handlers: handlers.clone(),
            release: config.release,
            address: config.address,
            in_flight: InFlight::new(&config.limits, &metrics),
            fair_queue: Arc::default(),
            metrics,
            limits: config.limits,
            documents: Documents::default(),
            audit: config.audit,
            gates: config.gates,
            service: service.clone(),
            aggregator: aggregator.clone(),
            authorities,
        });
        access.start().await?;
        admission.start().await?;
        namespaces.start()?;
        agreement.start(&core).await.map_err(|error| ApiError::Internal(error.chain()))?;
        custom.start().await?;
        agreement.all_resources_announced();
        aggregator.start();
        let hooks = PostStart { core: core.clone(), agreement, namespaces, access, service, aggregator };
        core.spawn(post_start::start(hooks));
        core.spawn(compaction::compact_regularly(core.objects().store().clone()));
        core.spawn(controllers::empty_namespaces(handlers.clone()));
        core.spawn(controllers::collect_garbage(handlers));
        core.spawn(restart_after_reset(core.clone(), server.handlers.agreement.clone()));
        Ok(server)
    }

    /// Completes when the server has reported its storage versions and created the default objects of a cluster. From
    /// then on it serves writes.
    pub async fn ready(&self) -> Result<(), ApiError> {
        self.core.startup().done().await
    }

    /// Leaves the agreement, so that other servers need not wait until the identity lease of this one expires. Nothing
    /// can be written afterwards.
    pub async fn leave(&self) {
        controllers::withdraw_server(&self.service).await;
        self.handlers.agreement.leave().await;
    }

    /// The objects.
    pub fn objects(&self) -> &ObjectStore {
        self.core.objects()
    }

    /// The watch cache.
    pub fn watch_cache(&self) -> &WatchCache {
        self.core.watch_cache()
    }

    /// The resources that are served now.
    pub fn registry(&self) -> Arc<Registry> {
        self.core.registry()
    }

    /// The metrics. A program that uses this library can register its own.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    pub(crate) fn limits(&self) -> &LoadLimits {
        &self.limits
    }

    /// The fair queue for CPU-heavy work.
    pub(crate) fn fair_queue(&self) -> &Arc<FairQueue> {
        &self.fair_queue
    }

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Who issues the certificates of clients.
    pub(crate) fn authorities(&self) -> &ClientAuthorities {
        &self.authorities
    }

    /// The servers behind this one.
    pub(crate) fn aggregator(&self) -> &Aggregator {
        &self.aggregator
    }

    /// What the documents of discovery are made from.
    pub(crate) fn document_sources(&self) -> Sources {
        let registry = self.registry();
        Sources { aggregation: self.aggregator.aggregation(&registry), registry }
    }

    pub(crate) fn documents(&self) -> &Documents {
        &self.documents
    }

    pub(crate) fn audit(&self) -> Option<&Arc<AuditLog>> {
        self.audit.as_ref()
    }

    /// The agreement on storage versions with other servers.
    pub fn agreement(&self) -> &Arc<Agreement> {
        &self.handlers.agreement
    }

    pub(crate) fn access(&self) -> &Access {
        &self.handlers.access
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn release(&self) -> Release {
        self.release
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

/// Restarts components whenever the store was reset to an earlier state, for example from a backup. Every reflector
/// lists again. The reports of this server may be lost, and the identity lease may be an old one.
async fn restart_after_reset(core: Arc<Core>, agreement: Arc<Agreement>) {
    let mut losses = core.watch_cache().losses();
    while losses.changed().await.is_ok() {
        core.objects().clear_recent_writes();
        agreement.reregister();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.core.end();
    }
}
