//! The aggregator: other API servers behind this one, each with an APIService that names its group-version and its service.
//!
//! It keeps the APIServices of this server's own group-versions, checks the servers behind the others, passes requests on to
//! them, and adds what they serve to discovery. It authenticates and authorizes nobody; `http` does that before. Where
//! APIServices are not among the served resources, it does nothing.

mod api_service;
mod api_services;
mod authentication_config_map;
mod availability;
mod backend;
mod config;
mod connections;
mod contents;
mod fetch;
mod identity_headers;
mod leadership;
mod metrics;
mod priorities;
mod proxy;
mod registration;
mod tls;
mod tunnel;
mod worker;

pub(crate) use api_services::KnownApiService;
pub(crate) use backend::BackendError;
pub use config::{AggregatorConfig, AggregatorConfigError, RequestHeaderConfig};
pub(crate) use contents::{AggregatedObject, AggregatedResource, AggregatedResources};
pub(crate) use proxy::{Origin, ProxiedBody, is_upgrade};
pub use tls::{AggregatorTlsError, ProxyClientCertificate};
pub(crate) use tunnel::Tunnel;

use crate::aggregator::api_service::Condition;
use crate::aggregator::api_services::{ApiServiceStore, KnownApiServices};
use crate::aggregator::backend::Backend;
use crate::aggregator::fetch::FetchedDiscovery;
use crate::aggregator::leadership::Leadership;
use crate::aggregator::metrics::AggregatorMetrics;
use crate::aggregator::registration::{Occasion, api_service_resource, local_versions};
use crate::core::Core;
use crate::core::leader_election::LeaderLock;
use crate::core::reflector::reflect;
use crate::discovery::aggregation::{AggregatedVersion, Aggregation};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::resource::registry::Registry;
use crate::storage_version::Agreement;
use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderValue;
use restow_api::GroupVersion;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// The group-versions of other servers, with what they said last.
type Discovered = BTreeMap<GroupVersion, AggregatedVersion>;

/// The APIServices, and the servers behind them.
pub(crate) struct Aggregator {
    core: Arc<Core>,
    agreement: Arc<Agreement>,
    config: AggregatorConfig,
    /// How this server names itself in the requests that it passes on, so that none comes back.
    via: HeaderValue,
    known: ArcSwap<KnownApiServices>,
    /// Whether the APIServices have been read once.
    listed: watch::Sender<bool>,
    leadership: Leadership,
    discovered: ArcSwap<Discovered>,
    /// Held while `discovered` is replaced, and while metrics of a server are set.
    discovering: Mutex<()>,
    shown: ArcSwapOption<Shown>,
    metrics: AggregatorMetrics,
}

/// What discovery shows, and what it was made from.
struct Shown {
    registry: Arc<Registry>,
    known: Arc<KnownApiServices>,
    discovered: Arc<Discovered>,
    aggregation: Arc<Aggregation>,
}

impl Aggregator {
    pub(crate) fn new(core: Arc<Core>, agreement: Arc<Agreement>, config: AggregatorConfig, all: &Metrics) -> Self {
        let metrics = AggregatorMetrics::default();
        metrics.register(all);
        // An id is the name of a lease, which a header can have.
        let via = HeaderValue::from_str(&format!("1.1 {}", agreement.identity()));
        Aggregator {
            core,
            agreement,
            config,
            via: via.unwrap_or(HeaderValue::from_static("1.1 restow")),
            known: ArcSwap::default(),
            listed: watch::Sender::new(false),
            leadership: Leadership::default(),
            discovered: ArcSwap::default(),
            discovering: Mutex::default(),
            shown: ArcSwapOption::default(),
            metrics,
        }
    }

    /// Starts to reflect the APIServices, where this server serves them.
    pub(crate) fn start(self: &Arc<Self>) {
        let Some((_, version)) = api_service_resource(&self.core) else { return };
        let store = ApiServiceStore::new(self.clone());
        self.core.spawn(reflect(self.core.clone(), version, "apiservices", store));
        if let Ok(lock) = LeaderLock::new("apiservice-status", self.core.objects().store().clone()) {
            let aggregator = self.clone();
            let stopping = self.core.stopping();
            self.core.spawn(async move { aggregator.leadership.run(lock, stopping).await });
        }
    }

    /// Registers the group-versions of this server when it starts. Later changes are registered as they happen.
    pub(crate) async fn register(&self) -> Result<(), ApiError> {
        if api_service_resource(&self.core).is_none() {
            return Ok(());
        }
        // The sender lives as long as this.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
        self.register_local(Occasion::Start).await
    }

    /// The APIService of a group-version that another server serves.
    pub(crate) fn find(&self, group: &str, version: &str) -> Option<Arc<KnownApiService>> {
        let known = self.known.load();
        if known.proxied.is_empty() {
            return None;
        }
        known.proxied.get(&GroupVersion::new(group, version).ok()?).cloned()
    }

    /// What discovery shows beside the resources of this server.
    pub(crate) fn aggregation(&self, registry: &Arc<Registry>) -> Arc<Aggregation> {
        let (known, discovered) = (self.known.load_full(), self.discovered.load_full());
        if known.all.is_empty() {
            return Arc::default();
        }
        let before = self.shown.load_full();
        if let Some(shown) = before.as_ref().filter(|shown| shown.is_of(registry, &known, &discovered)) {
            return shown.aggregation.clone();
        }
        let next = show(registry, &known, &discovered);
        // What is the same stays the same object, so that documents made from it stay in the cache.
        let same = before.map(|shown| shown.aggregation.clone()).filter(|aggregation| **aggregation == next);
        let aggregation = same.unwrap_or_else(|| Arc::new(next));
        let shown = Shown { registry: registry.clone(), known, discovered, aggregation: aggregation.clone() };
        self.shown.store(Some(Arc::new(shown)));
        aggregation
    }

    /// Keeps what a server said about its group-version.
    fn set_discovery(&self, backend: &Backend, fetched: &FetchedDiscovery) {
        let _lock = self.discovering.lock().unwrap_or_else(PoisonError::into_inner);
        if backend.replaced.is_cancelled() {
            return;
        }
        let mut discovered = self.discovered.load().as_ref().clone();
        discovered.insert(backend.version.clone(), fetched.shown.clone());
        self.discovered.store(Arc::new(discovered));
    }

    /// Records the outcome of a check, and of the one before it.
    fn checked(&self, backend: &Backend, before: Option<&Condition>, now: &Condition) {
        let _lock = self.discovering.lock().unwrap_or_else(PoisonError::into_inner);
        if !backend.replaced.is_cancelled() {
            self.metrics.checked(&backend.version, before, now);
        }
    }

    fn has_discovery(&self, backend: &Backend) -> bool {
        self.discovered.load().contains_key(&backend.version)
    }

    /// Forgets a server. Running requests continue.
    fn forget(&self, backend: &Backend) {
        let _lock = self.discovering.lock().unwrap_or_else(PoisonError::into_inner);
        backend.replaced.cancel();
        self.metrics.forget(&backend.version);
        let mut discovered = self.discovered.load().as_ref().clone();
        discovered.remove(&backend.version);
        self.discovered.store(Arc::new(discovered));
    }
}

impl Shown {
    fn is_of(&self, registry: &Arc<Registry>, known: &Arc<KnownApiServices>, discovered: &Arc<Discovered>) -> bool {
        Arc::ptr_eq(&self.registry, registry)
            && Arc::ptr_eq(&self.known, known)
            && Arc::ptr_eq(&self.discovered, discovered)
    }
}

/// The priorities are those of the stored APIServices. A local group-version whose APIService is not stored yet has the
/// priority that it will have.
fn show(registry: &Registry, known: &KnownApiServices, discovered: &Discovered) -> Aggregation {
    let local = local_versions(registry).into_iter().map(|(version, local)| (version, local.priority));
    let mut aggregation = Aggregation { priorities: local.collect(), versions: BTreeMap::new() };
    let stored = known.all.iter().map(|known| (known.service.version.clone(), known.service.priority));
    aggregation.priorities.extend(stored);
    for version in known.proxied.keys() {
        let found = discovered.get(version).cloned().unwrap_or_default();
        aggregation.versions.insert(version.clone(), found);
    }
    aggregation
}
