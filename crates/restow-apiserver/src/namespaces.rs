//! Namespaces: those that are always there, which ones exist, and what each is given. Those that are to go are emptied
//! elsewhere.

use crate::authorization::Access;
use crate::core::Core;
use crate::core::reflector::{RESYNC_PERIOD, ReflectedStore, reflect};
use crate::error::ApiError;
use crate::resource::ObjectRef;
use crate::resource::Resource;
use crate::resource::object_meta;
use crate::storage::key_pages::{name_of, namespace_of};
use crate::storage::object_store::{Change, Changed, Decision};
use crate::storage::watch_cache::{CacheEvent, Subscription};
use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_auth::service_account::ServiceAccounts;
use restow_store::{Compare, Entry, Revision};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::Notify;

/// The namespaces that every cluster has.
const ALWAYS: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// The service account that every namespace has.
const DEFAULT_ACCOUNT: &str = "default";

/// The config map in which every namespace finds the certificates of the servers.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Which namespaces exist, and whether they are about to go. It follows the store, so it can be a little behind.
pub(crate) struct Namespaces {
    core: Arc<Core>,
    access: Arc<Access>,
    known: RwLock<HashMap<String, (Phase, Revision)>>,
    /// What every namespace is given, and those that were.
    root_ca: Option<String>,
    given: Mutex<HashSet<String>>,
    /// Told of every change.
    changed: Arc<Notify>,
}

/// How a namespace is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// As this server remembers it, which may be a little behind.
    Cached,
    /// As it lies in the store.
    Live,
}

/// What may be done in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Active,
    Terminating,
}

impl Namespaces {
    /// None yet; each of them is to be given these certificates.
    pub(crate) fn new(core: Arc<Core>, access: Arc<Access>, root_ca: Option<String>) -> Self {
        Namespaces { core, access, known: RwLock::default(), root_ca, given: Mutex::default(), changed: Arc::default() }
    }

    fn phase(&self, name: &str) -> Option<(Phase, Revision)> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    fn set(&self, name: &str, phase: Option<(Phase, Revision)>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        match phase {
            Some(phase) => known.insert(name.to_string(), phase),
            None => {
                self.given.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
                known.remove(name)
            }
        };
        self.changed.notify_one();
    }

    /// Forgets what it knew, and knows these.
    fn reset(&self, namespaces: impl Iterator<Item = (String, (Phase, Revision))>) {
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = namespaces.collect();
        self.changed.notify_one();
    }

    /// Is notified when something has changed.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Those that are to go.
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
    /// Refuses to create something in a namespace that does not exist or is about to go. Otherwise tells what must hold for
    /// the namespace to still be as it was seen, so that nothing is made in one that goes at the same moment.
    pub(crate) async fn check_namespace(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        freshness: Freshness,
    ) -> Result<Option<Compare>, ApiError> {
        let seen = match self.phase(namespace).filter(|_| freshness == Freshness::Cached) {
            Some(seen) => Some(seen),
            // It may be so new that this server has not heard of it.
            None => match self.namespace_resource() {
                Some((namespaces, version)) => {
                    let place = ObjectRef { resource: &namespaces, version: &version, namespace: "", name: namespace };
                    let entry = self.core.objects().get(place).await?;
                    entry.map(|entry| (phase_of(&entry.value), entry.mod_revision))
                }
                // A server without namespaces has nothing to check against.
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

    /// The namespace is as it was at this revision.
    fn unchanged(&self, namespace: &str, revision: Revision) -> Result<Compare, ApiError> {
        let (resource, _) = self.namespace_resource().ok_or(ApiError::NoSuchResource)?;
        let storage = resource.storage.as_ref().ok_or(ApiError::NoSuchResource)?;
        let key = storage.key("", namespace).map_err(|error| ApiError::BadRequest(error.to_string()))?;
        Ok(Compare::mod_revision(&key, revision))
    }

    /// Starts to reflect the namespaces.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), ApiError> {
        let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let store = NamespaceStore { namespaces: self.clone() };
        self.core.spawn(reflect(self.core.clone(), version, "namespaces", store));
        if self.root_ca.is_some() {
            self.core.spawn(notice_root_ca(self.clone()));
        }
        Ok(())
    }

    /// The resource of namespaces, and the version in which it is spoken of.
    pub(crate) fn namespace_resource(&self) -> Option<(Arc<Resource>, GroupVersion)> {
        let version = GroupVersion::new("", "v1").ok()?;
        let resource = self.core.registry().find(&version, "namespaces")?.clone();
        Some((resource, version))
    }

    /// A service account as it is stored, if there is such a one. The one that every namespace has is made where it is
    /// missing.
    pub(crate) async fn service_account(&self, namespace: &str, name: &str) -> Result<Option<Object>, ApiError> {
        if name == DEFAULT_ACCOUNT {
            self.ensure_account(namespace).await?;
        }
        let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let Some(resource) = self.core.registry().find(&version, "serviceaccounts").cloned() else { return Ok(None) };
        let place = ObjectRef { resource: &resource, version: &version, namespace, name };
        match self.core.objects().get(place).await? {
            Some(entry) => resource.decode(&entry, &version).await.map(Some),
            None => Ok(None),
        }
    }

    /// Makes the service account that every namespace has, for pods that name none.
    async fn ensure_account(&self, namespace: &str) -> Result<(), ApiError> {
        if self.access.uid_of(namespace, DEFAULT_ACCOUNT).is_some() {
            return Ok(());
        }
        let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let Some(resource) = self.core.registry().find(&version, "serviceaccounts").cloned() else { return Ok(()) };
        let place = ObjectRef { resource: &resource, version: &version, namespace, name: DEFAULT_ACCOUNT };
        let wanted = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT_ACCOUNT, "namespace": namespace}});
        self.ensure_within(place, wanted).await.map(drop)
    }

    /// Makes an object where there is none, in a namespace that exists and is not about to go. `None` where it is.
    async fn ensure_within(&self, place: ObjectRef<'_>, wanted: Value) -> Result<Option<Changed>, ApiError> {
        let within = self.check_namespace(place.resource, place.namespace, place.name, Freshness::Live).await;
        let within = match within {
            Ok(within) => within,
            Err(ApiError::Forbidden { .. } | ApiError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut ensure = Ensure { within, ..Ensure::new(wanted, place.resource) };
        self.core.objects().change(place, &mut ensure).await.map(Some)
    }

    /// Gives a namespace the certificates by which its pods know the servers, unless it is known to have them.
    async fn ensure_root_ca(&self, namespace: &str) -> Result<(), ApiError> {
        let Some(root_ca) = &self.root_ca else { return Ok(()) };
        let given = || self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if given().contains(namespace) {
            return Ok(());
        }
        let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let Some(resource) = self.core.registry().find(&version, "configmaps").cloned() else { return Ok(()) };
        let place = ObjectRef { resource: &resource, version: &version, namespace, name: ROOT_CA };
        let wanted = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": root_ca},
            "metadata": {"name": ROOT_CA, "namespace": namespace}});
        // Whoever takes them away from now on is noticed after this.
        given().insert(namespace.to_string());
        let ensured = self.ensure_within(place, wanted).await;
        if matches!(ensured, Err(_) | Ok(Some(Changed::Absent))) {
            given().remove(namespace);
        }
        ensured.map(drop)
    }

    /// Makes the namespaces that are always there.
    pub(crate) async fn make_namespaces(&self) -> Result<(), ApiError> {
        let Some((resource, version)) = self.namespace_resource() else { return Ok(()) };
        for name in ALWAYS {
            let place = ObjectRef { resource: &resource, version: &version, namespace: "", name };
            let wanted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            self.core.objects().change(place, &mut Ensure::new(wanted, &resource)).await?;
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

/// Makes an object where there is none.
struct Ensure<'a> {
    wanted: Value,
    resource: &'a Resource,
    /// What must hold of its namespace.
    within: Option<Compare>,
    asked: bool,
}

impl<'a> Ensure<'a> {
    fn new(wanted: Value, resource: &'a Resource) -> Self {
        Ensure { wanted, resource, within: None, asked: false }
    }
}

#[async_trait]
impl Decision for Ensure<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        if let Some(before) = before {
            // What is given in a config map stays what it was.
            let mut restored = before.clone();
            if let Some(data) = self.wanted.get("data") {
                restored.set("data", Some(data.clone()));
            }
            return Ok(if restored == *before { Change::Keep } else { Change::Write(restored) });
        }
        if std::mem::replace(&mut self.asked, true) && self.within.is_some() {
            // The namespace has changed meanwhile; the next look at it decides.
            return Ok(Change::Keep);
        }
        let mut object = Object::from_value(self.wanted.clone()).unwrap_or_default();
        let fields = object.metadata_mut();
        fields.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
        fields.insert("creationTimestamp".into(), object_meta::now().into());
        self.resource.strategy.default(&mut object);
        self.resource.strategy.prepare_create(&mut object);
        Ok(Change::Write(object))
    }

    fn conditions(&self) -> Vec<Compare> {
        self.within.iter().cloned().collect()
    }
}

/// Notices when somebody changes or deletes what every namespace is given, so that it is given again.
async fn notice_root_ca(namespaces: Arc<Namespaces>) {
    loop {
        let Some((configmaps, _)) = namespaces.core.core_resource("configmaps") else { return };
        let Some(storage) = configmaps.storage.clone() else { return };
        let watch_cache = namespaces.core.watch_cache();
        let subscription = watch_cache.subscribe(&storage.folder(), storage.range(""), watch_cache.reached());
        // What happened before is unknown, so everything is looked at once more.
        namespaces.given.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Ok(subscription) = subscription {
            take_back(&namespaces, subscription).await;
        }
        tokio::time::sleep(RESYNC_PERIOD).await;
    }
}

/// Follows changes until they have overtaken this.
async fn take_back(namespaces: &Namespaces, mut subscription: Subscription) {
    while let Ok((events, _)) = subscription.next().await {
        let mut given = namespaces.given.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events.iter().filter(|event| name_of(&event.key) == ROOT_CA) {
            given.remove(namespace_of(&event.key));
        }
    }
}

/// Keeps the namespaces in step, and gives each what every namespace has.
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

    /// What could not be given to a namespace may be possible now.
    async fn resync(&self) {
        // Nothing can be written before the server has started.
        if !self.namespaces.core.startup().is_done() {
            return;
        }
        if ALWAYS.iter().any(|name| self.namespaces.phase(name).is_none())
            && let Err(error) = self.namespaces.make_namespaces().await
        {
            tracing::warn!(%error, "a namespace that every cluster has is missing");
        }
        for name in self.namespaces.active() {
            if let Err(error) = self.namespaces.ensure_account(&name).await {
                tracing::warn!(namespace = name, %error, "a namespace has no service account yet");
            }
            if let Err(error) = self.namespaces.ensure_root_ca(&name).await {
                tracing::warn!(namespace = name, %error, "a namespace has no certificates of the servers yet");
            }
        }
    }
}
