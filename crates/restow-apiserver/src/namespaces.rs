//! Namespaces: a cache of their phases, the check of NamespaceLifecycle on create, the system namespaces, and the objects
//! that every namespace gets (service account `default`, config map `kube-root-ca.crt`). `admission/namespace_lifecycle.rs`
//! has the check on delete; the namespace controller empties terminating namespaces.

use crate::auth::Access;
use crate::core::Core;
use crate::core::reflector::{RESYNC_PERIOD, ReflectedStore, reflect};
use crate::error::ApiError;
use crate::resource::ObjectRef;
use crate::resource::Resource;
use crate::resource::object_meta;
use crate::storage::key_pages::{name_of, namespace_of};
use crate::storage::object_store::{Changed, ObjectChange, ObjectDecision};
use crate::storage::watch_cache::{CacheEvent, Subscription};
use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_auth::service_account::ServiceAccounts;
use restow_store::{Compare, Entry, Revision};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::Notify;

/// The system namespaces.
const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// The service account that every namespace has.
const DEFAULT_ACCOUNT: &str = "default";

/// The config map with the CA of the API servers, in every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";

/// The namespaces and their phases. A reflector updates them, so they can be slightly stale.
pub(crate) struct Namespaces {
    core: Arc<Core>,
    access: Arc<Access>,
    known: RwLock<BTreeMap<String, (Phase, Revision)>>,
    /// The CA that every namespace gets, and the namespaces that have it.
    root_ca: Option<String>,
    with_root_ca: Mutex<HashSet<String>>,
    /// Notified of every change.
    changed: Arc<Notify>,
}

/// How a namespace is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// From the cache, which may be stale.
    Cached,
    /// From the store.
    Live,
}

/// The phase of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Active,
    Terminating,
}

impl Namespaces {
    /// An empty cache. Every namespace gets this CA.
    pub(crate) fn new(core: Arc<Core>, access: Arc<Access>, root_ca: Option<String>) -> Self {
        Namespaces {
            core,
            access,
            known: RwLock::default(),
            root_ca,
            with_root_ca: Mutex::default(),
            changed: Arc::default(),
        }
    }

    fn phase(&self, name: &str) -> Option<(Phase, Revision)> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    fn set(&self, name: &str, phase: Option<(Phase, Revision)>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        match phase {
            Some(phase) => known.insert(name.to_string(), phase),
            None => {
                self.with_root_ca.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
                known.remove(name)
            }
        };
        self.changed.notify_one();
    }

    /// Replaces the cache.
    fn reset(&self, namespaces: impl Iterator<Item = (String, (Phase, Revision))>) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = namespaces.collect();
        self.changed.notify_one();
    }

    /// Notified when something has changed.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// The terminating namespaces.
    pub(crate) fn terminating(&self) -> Vec<String> {
        self.in_phase(Phase::Terminating)
    }

    fn active(&self) -> Vec<String> {
        self.in_phase(Phase::Active)
    }

    fn in_phase(&self, wanted: Phase) -> Vec<String> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter(|(_, (phase, _))| *phase == wanted).map(|(name, _)| name.clone()).collect()
    }
}

impl Namespaces {
    /// NamespaceLifecycle: refuses to create objects in a namespace that does not exist or is terminating. Otherwise returns
    /// a condition for the transaction: the namespace is unchanged, so that nothing is created while it terminates.
    pub(crate) async fn check_namespace(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        freshness: Freshness,
    ) -> Result<Option<Compare>, ApiError> {
        let seen = match self.phase(namespace).filter(|_| freshness == Freshness::Cached) {
            Some(seen) => Some(seen),
            // The cache may not have a new namespace yet.
            None => match self.namespace_resource() {
                Some((namespaces, version)) => {
                    let reference =
                        ObjectRef { resource: &namespaces, version: &version, namespace: "", name: namespace };
                    let entry = self.core.objects().get(reference).await?;
                    entry.map(|entry| (phase_of(&entry.value), entry.mod_revision))
                }
                // A server that does not serve namespaces checks nothing.
                None => return Ok(None),
            },
        };
        match seen {
            Some((Phase::Active, revision)) => self.unchanged(namespace, revision).map(Some),
            None => Err(ApiError::NotFound { resource: namespaces_resource()?, name: namespace.to_string() }),
            Some((Phase::Terminating, _)) => Err(ApiError::Forbidden {
                resource: resource.group_resource.clone(),
                name: name.to_string(),
                message: format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                ),
            }),
        }
    }

    /// The condition that the namespace is unchanged since this revision.
    fn unchanged(&self, namespace: &str, revision: Revision) -> Result<Compare, ApiError> {
        let (resource, _) = self.namespace_resource().ok_or(ApiError::NoSuchResource)?;
        let storage = resource.storage.as_ref().ok_or(ApiError::NoSuchResource)?;
        let key = storage.key("", namespace).map_err(|error| ApiError::BadRequest(error.to_string()))?;
        Ok(Compare::mod_revision(&key, revision))
    }

    /// Starts the reflector of namespaces.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), ApiError> {
        let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let store = NamespaceStore { namespaces: self.clone() };
        self.core.spawn(reflect(self.core.clone(), version, "namespaces", store));
        if self.root_ca.is_some() {
            self.core.spawn(watch_root_ca(self.clone()));
        }
        Ok(())
    }

    /// The resource of namespaces, and its version.
    pub(crate) fn namespace_resource(&self) -> Option<(Arc<Resource>, GroupVersion)> {
        let version = GroupVersion::new("", "v1").ok()?;
        let resource = self.core.registry().find(&version, "namespaces")?.clone();
        Some((resource, version))
    }

    /// A stored service account. `default` is created if it is missing.
    pub(crate) async fn service_account(&self, namespace: &str, name: &str) -> Result<Option<Object>, ApiError> {
        if name == DEFAULT_ACCOUNT {
            self.ensure_account(namespace).await?;
        }
        let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let Some(resource) = self.core.registry().find(&version, "serviceaccounts").cloned() else { return Ok(None) };
        let reference = ObjectRef { resource: &resource, version: &version, namespace, name };
        match self.core.objects().get(reference).await? {
            Some(entry) => resource.decode(&entry, &version).await.map(Some),
            None => Ok(None),
        }
    }

    /// Creates the service account `default`, for pods that name none.
    async fn ensure_account(&self, namespace: &str) -> Result<(), ApiError> {
        if self.access.uid_of(namespace, DEFAULT_ACCOUNT).is_some() {
            return Ok(());
        }
        let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let Some(resource) = self.core.registry().find(&version, "serviceaccounts").cloned() else { return Ok(()) };
        let reference = ObjectRef { resource: &resource, version: &version, namespace, name: DEFAULT_ACCOUNT };
        let wanted = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT_ACCOUNT, "namespace": namespace}});
        self.ensure_condition(reference, wanted).await.map(drop)
    }

    /// Creates an object if it is missing, in an active namespace. `None` if the namespace is not active.
    async fn ensure_condition(&self, reference: ObjectRef<'_>, wanted: Value) -> Result<Option<Changed>, ApiError> {
        let condition =
            self.check_namespace(reference.resource, reference.namespace, reference.name, Freshness::Live).await;
        let condition = match condition {
            Ok(condition) => condition,
            Err(ApiError::Forbidden { .. } | ApiError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut ensure = Ensure { condition, ..Ensure::new(wanted, reference.resource) };
        self.core.objects().change(reference, &mut ensure).await.map(Some)
    }

    /// Creates the config map with the CA in a namespace, unless it is known to have it.
    async fn ensure_root_ca(&self, namespace: &str) -> Result<(), ApiError> {
        let Some(root_ca) = &self.root_ca else { return Ok(()) };
        let with_root_ca = || self.with_root_ca.lock().unwrap_or_else(PoisonError::into_inner);
        if with_root_ca().contains(namespace) {
            return Ok(());
        }
        let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let Some(resource) = self.core.registry().find(&version, "configmaps").cloned() else { return Ok(()) };
        let reference = ObjectRef { resource: &resource, version: &version, namespace, name: ROOT_CA };
        let wanted = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": root_ca},
            "metadata": {"name": ROOT_CA, "namespace": namespace}});
        // Insert the namespace before the write: a deletion right after the write then removes it again.
        with_root_ca().insert(namespace.to_string());
        let ensured = self.ensure_condition(reference, wanted).await;
        if matches!(ensured, Err(_) | Ok(Some(Changed::Absent))) {
            with_root_ca().remove(namespace);
        }
        ensured.map(drop)
    }

    /// Creates the system namespaces.
    pub(crate) async fn create_system_namespaces(&self) -> Result<(), ApiError> {
        let Some((resource, version)) = self.namespace_resource() else { return Ok(()) };
        for name in SYSTEM_NAMESPACES {
            let reference = ObjectRef { resource: &resource, version: &version, namespace: "", name };
            let wanted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            self.core.objects().change(reference, &mut Ensure::new(wanted, &resource)).await?;
        }
        Ok(())
    }
}

fn namespaces_resource() -> Result<restow_api::GroupResource, ApiError> {
    restow_api::GroupResource::new("", "namespaces").map_err(|error| ApiError::Internal(error.to_string()))
}

fn phase_of(stored: &[u8]) -> Phase {
    let object: Value = serde_json::from_slice(stored).unwrap_or_default();
    match object["metadata"]["deletionTimestamp"].is_null() {
        true => Phase::Active,
        false => Phase::Terminating,
    }
}

/// Creates an object if it is missing.
struct Ensure<'a> {
    wanted: Value,
    resource: &'a Resource,
    /// The condition on its namespace.
    condition: Option<Compare>,
    attempted: bool,
}

impl<'a> Ensure<'a> {
    fn new(wanted: Value, resource: &'a Resource) -> Self {
        Ensure { wanted, resource, condition: None, attempted: false }
    }
}

#[async_trait]
impl ObjectDecision for Ensure<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        if let Some(before) = before {
            // The data of a config map is restored.
            let mut restored = before.clone();
            if let Some(data) = self.wanted.get("data") {
                restored.set("data", Some(data.clone()));
            }
            return Ok(if restored == *before { ObjectChange::Keep } else { ObjectChange::Write(restored) });
        }
        if std::mem::replace(&mut self.attempted, true) && self.condition.is_some() {
            // The namespace has changed meanwhile; the next resync tries again.
            return Ok(ObjectChange::Keep);
        }
        let mut object = Object::from_value(self.wanted.clone()).unwrap_or_default();
        let fields = object.metadata_mut();
        fields.insert("uid".into(), restow_host::uuid().to_string().into());
        fields.insert("creationTimestamp".into(), object_meta::now().into());
        self.resource.strategy.default(&mut object);
        self.resource.strategy.prepare_create(&mut object);
        Ok(ObjectChange::Write(object))
    }

    fn conditions(&self) -> Vec<Compare> {
        self.condition.iter().cloned().collect()
    }
}

/// Watches the config maps with the CA, so that a changed or deleted one is restored.
async fn watch_root_ca(namespaces: Arc<Namespaces>) {
    loop {
        let Some((configmaps, _)) = namespaces.core.core_resource("configmaps") else { return };
        let Some(storage) = configmaps.storage.clone() else { return };
        let watch_cache = namespaces.core.watch_cache();
        let subscription = watch_cache.subscribe(&storage.folder(), storage.range(""), watch_cache.reached());
        // Earlier changes may have been missed, so all namespaces are checked again.
        namespaces.with_root_ca.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Ok(subscription) = subscription {
            forget_changed(&namespaces, subscription).await;
        }
        tokio::time::sleep(RESYNC_PERIOD).await;
    }
}

/// Removes namespaces whose config map changed from `with_root_ca`, until the subscription expires.
async fn forget_changed(namespaces: &Namespaces, mut subscription: Subscription) {
    while let Ok((events, _)) = subscription.next().await {
        let mut with_root_ca = namespaces.with_root_ca.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events.iter().filter(|event| name_of(&event.key) == ROOT_CA) {
            with_root_ca.remove(namespace_of(&event.key));
        }
    }
}

/// Receives the namespaces from a reflector, and creates the objects that each of them gets.
struct NamespaceStore {
    namespaces: Arc<Namespaces>,
}

#[async_trait]
impl ReflectedStore for NamespaceStore {
    fn replace(&self, entries: &[Entry]) {
        let state = |entry: &Entry| (phase_of(&entry.value), entry.mod_revision);
        let found = entries.iter().map(|entry| (name_of(&entry.key).to_string(), state(entry)));
        self.namespaces.reset(found);
    }

    fn apply(&self, event: &CacheEvent) {
        let phase = event.current.as_ref().map(|entry| (phase_of(&entry.value), entry.mod_revision));
        self.namespaces.set(name_of(&event.key), phase);
    }

    /// Creates missing objects.
    async fn resync(&self) {
        // The server cannot write before it has started.
        if !self.namespaces.core.startup().is_done() {
            return;
        }
        if SYSTEM_NAMESPACES.iter().any(|name| self.namespaces.phase(name).is_none())
            && let Err(error) = self.namespaces.create_system_namespaces().await
        {
            tracing::warn!(%error, "cannot create a system namespace");
        }
        for name in self.namespaces.active() {
            if let Err(error) = self.namespaces.ensure_account(&name).await {
                tracing::warn!(namespace = name, %error, "cannot create the default service account");
            }
            if let Err(error) = self.namespaces.ensure_root_ca(&name).await {
                tracing::warn!(namespace = name, %error, "cannot create kube-root-ca.crt");
            }
        }
    }
}
