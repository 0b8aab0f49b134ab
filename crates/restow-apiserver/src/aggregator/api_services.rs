//! The stored APIServices, kept in memory by a reflector. It starts a worker for each server behind one, and registers what
//! this server itself begins to serve.

use crate::aggregator::Aggregator;
use crate::aggregator::api_service::{ApiService, BackendSpec, Condition, GROUP};
use crate::aggregator::backend::{Backend, BackendError};
use crate::aggregator::registration::{Occasion, api_service_resource};
use crate::aggregator::worker::Worker;
use crate::core::reflector::ReflectedStore;
use crate::error::ApiError;
use crate::storage::key_pages::name_of;
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use crate::storage::watch_cache::CacheEvent;
use async_trait::async_trait;
use futures::FutureExt;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_store::Entry;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// An APIService that is stored, and the server behind it.
pub(crate) struct KnownApiService {
    pub(super) service: ApiService,
    /// The server; `None` for a local APIService.
    backend: Option<Arc<Backend>>,
}

/// All APIServices.
#[derive(Default)]
pub(super) struct KnownApiServices {
    /// By name.
    pub(super) all: Vec<Arc<KnownApiService>>,
    /// Those of other servers, by group-version.
    pub(super) proxied: BTreeMap<GroupVersion, Arc<KnownApiService>>,
}

impl KnownApiService {
    /// The group-version.
    pub(crate) fn version(&self) -> &GroupVersion {
        &self.service.version
    }

    /// The stored condition.
    pub(super) fn condition(&self) -> Option<&Condition> {
        self.service.condition.as_ref()
    }

    /// The server behind it, if it is available.
    pub(crate) fn available(&self) -> Result<&Arc<Backend>, BackendError> {
        let available = self.backend.as_ref().filter(|_| self.service.is_available());
        available.ok_or(BackendError::Unavailable)
    }
}

/// Receives the APIServices from a reflector.
pub(super) struct ApiServiceStore {
    aggregator: Arc<Aggregator>,
    /// The last failure to register, so that it is logged once.
    failure: Mutex<Option<String>>,
}

impl ApiServiceStore {
    pub(super) fn new(aggregator: Arc<Aggregator>) -> Self {
        ApiServiceStore { aggregator, failure: Mutex::default() }
    }

    fn read(&self, entry: &Entry) -> Option<ApiService> {
        let (resource, version) = api_service_resource(&self.aggregator.core)?;
        // Converting a built-in kind needs no webhook, so it is done at once.
        match resource.decode(entry, &version).now_or_never()? {
            Ok(object) => ApiService::read(&object),
            Err(error) => {
                tracing::error!(%error, key = %entry.key, "an APIService cannot be decoded");
                None
            }
        }
    }

    /// Replaces what is known. A server whose APIService names it as before is kept with its connections.
    fn publish(&self, mut services: Vec<ApiService>) {
        let aggregator = &self.aggregator;
        let before = aggregator.known.load_full();
        services.sort_by(|one, other| one.name.cmp(&other.name));
        let mut next = KnownApiServices::default();
        let mut started = Vec::new();
        for service in services {
            let backend = backend_of(&service).map(|spec| {
                let known = before.proxied.get(&service.version).and_then(|known| known.backend.clone());
                known.filter(|backend| backend.is_of(&service.version, spec)).unwrap_or_else(|| {
                    let identity = aggregator.config.proxy_client_certificate.as_ref();
                    let (version, via) = (service.version.clone(), aggregator.via.clone());
                    let backend = Arc::new(Backend::new(version, spec.clone(), identity, via));
                    started.push(backend.clone());
                    backend
                })
            });
            let known = Arc::new(KnownApiService { service, backend });
            if known.backend.is_some() {
                next.proxied.insert(known.service.version.clone(), known.clone());
            }
            next.all.push(known);
        }
        let kept = |backend: &Arc<Backend>| {
            let now = next.proxied.get(&backend.version).and_then(|known| known.backend.as_ref());
            now.is_some_and(|now| Arc::ptr_eq(now, backend))
        };
        for gone in before.proxied.values().filter_map(|known| known.backend.as_ref()).filter(|it| !kept(it)) {
            aggregator.forget(gone);
        }
        let needed = !next.proxied.is_empty();
        aggregator.known.store(Arc::new(next));
        aggregator.leadership.needed.send_if_modified(|before| std::mem::replace(before, needed) != needed);
        for backend in started {
            aggregator.core.spawn(Worker::new(aggregator.clone(), backend).run());
        }
    }

    /// Registers what this server serves, and corrects the condition of APIServices that have become local.
    async fn reconcile(&self) -> Result<(), ApiError> {
        let aggregator = &self.aggregator;
        aggregator.register_local(Occasion::Later).await?;
        let known = aggregator.known.load_full();
        let local = known.all.iter().map(|known| &known.service).filter(|service| service.backend.is_none());
        for service in local.filter(|service| service.condition != Some(Condition::local())) {
            aggregator.change(&service.version, &mut SetLocal).await?;
        }
        Ok(())
    }
}

/// The server that an APIService names. The core group and APIServices themselves are always served locally.
fn backend_of(service: &ApiService) -> Option<&BackendSpec> {
    let local = matches!(service.version.group(), "" | GROUP);
    service.backend.as_ref().filter(|_| !local)
}

#[async_trait]
impl ReflectedStore for ApiServiceStore {
    fn replace(&self, entries: &[Entry]) {
        self.publish(entries.iter().filter_map(|entry| self.read(entry)).collect());
    }

    fn apply(&self, event: &CacheEvent) {
        let name = name_of(&event.key).to_string();
        let known = self.aggregator.known.load_full();
        let others = known.all.iter().map(|known| &known.service).filter(|service| service.name != name).cloned();
        let current = event.current.as_ref().and_then(|entry| self.read(entry));
        self.publish(others.chain(current).collect());
    }

    async fn resync(&self) {
        let aggregator = &self.aggregator;
        aggregator.listed.send_replace(true);
        if !aggregator.agreement.is_registered() || !aggregator.core.startup().is_done() {
            return;
        }
        let failure = self.reconcile().await.err().map(|error| error.to_string());
        let mut last = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = failure.as_ref().filter(|error| last.as_ref() != Some(error)) {
            tracing::warn!(error, "the APIServices of this server could not be registered; trying again");
        }
        *last = failure;
    }
}

/// Sets the condition of an APIService without a service.
struct SetLocal;

#[async_trait]
impl ObjectDecision for SetLocal {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let local = |service: &ApiService| service.backend.is_none() && service.condition != Some(Condition::local());
        let Some(before) = before.filter(|before| ApiService::read(before).as_ref().is_some_and(local)) else {
            return Ok(ObjectChange::Keep);
        };
        let mut object = before.clone();
        Condition::local().set_in(&mut object);
        Ok(ObjectChange::Write(object))
    }
}
