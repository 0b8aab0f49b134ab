//! Reconciles the served custom resources with the stored CRDs, and the status of each CRD with its spec.
//!
//! Every server does all of it, in the same way from the same state; when several write the same status, the first one
//! wins and the others find nothing left to do.

use crate::apiextensions::custom_resource_definition::{CrdStatus, CustomResourceDefinition, GROUP};
use crate::core::Core;
use crate::core::reflector::{ReflectedStore, reflect};
use crate::crd::finalizer;
use crate::crd::handler::{Handler, HandlerAction};
use crate::crd::status::{NamesInUse, decide};
use crate::crd::strategy::set_status;
use crate::error::ApiError;
use crate::resource::ObjectRef;
use crate::resource::object_meta::now;
use crate::resource::registry::Registry;
use crate::resource::{Resource, Storage};
use crate::storage::key_pages::name_of;
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use crate::storage::watch_cache::CacheEvent;
use crate::storage_version::Agreement;
use crate::webhook_client::ServiceResolver;
use async_trait::async_trait;
use futures::FutureExt;
use restow_api::{GroupResource, GroupVersion};
use restow_apimachinery::object::Object;
use restow_store::{Entry, Key, Revision};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The CRDs and their handlers.
pub(crate) struct CustomResources {
    pub(crate) core: Arc<Core>,
    pub(crate) agreement: Arc<Agreement>,
    /// The built-in resources.
    builtin: Vec<Arc<Resource>>,
    known: Mutex<BTreeMap<String, TrackedCrd>>,
    /// The revision up to which all CRDs are served.
    caught_up: watch::Sender<Revision>,
    services: Arc<dyn ServiceResolver>,
    /// Removed resources that are still reported.
    removed: Mutex<Vec<Arc<Storage>>>,
}

/// A CRD and its handler.
#[derive(Clone)]
struct TrackedCrd {
    /// The stored entry, with the value converted to `apiextensions.k8s.io/v1`.
    entry: Entry,
    crd: Arc<CustomResourceDefinition>,
    handler: Option<Handler>,
}

impl CustomResources {
    /// No CRDs yet.
    pub(crate) fn new(core: Arc<Core>, agreement: Arc<Agreement>, services: Arc<dyn ServiceResolver>) -> Self {
        CustomResources {
            builtin: core.registry().resources().to_vec(),
            core,
            agreement,
            known: Mutex::default(),
            caught_up: watch::Sender::new(Revision::ZERO),
            services,
            removed: Mutex::default(),
        }
    }

    /// Resolves the services of conversion webhooks.
    pub(crate) fn services(&self) -> Arc<dyn ServiceResolver> {
        self.services.clone()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, TrackedCrd>> {
        // Every change under the lock is a single assignment, so a panic leaves no partial state.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a CRD, or its removal.
    fn note(&self, key: &Key, read: Option<(Entry, CustomResourceDefinition)>) {
        let name = name_of(key).to_string();
        let mut known = self.known();
        let handler = known.remove(&name).and_then(|before| before.handler);
        let Some((entry, crd)) = read else {
            drop(known);
            return self.close(handler);
        };
        let same = handler.as_ref().is_none_or(|it| it.crd.metadata.uid == crd.metadata.uid);
        let (handler, gone) = if same { (handler, None) } else { (None, handler) };
        let tracked = TrackedCrd { entry, crd: Arc::new(crd), handler };
        known.insert(name, tracked);
        drop(known);
        self.close(gone);
    }

    /// Refuses all further writes through a removed handler.
    fn close(&self, handler: Option<Handler>) {
        if let Some(handler) = handler {
            handler.storage.write_gate().close();
            self.removed().push(handler.storage);
        }
    }

    fn removed(&self) -> MutexGuard<'_, Vec<Arc<Storage>>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a CRD of this resource has a handler.
    fn serves(&self, location: &GroupResource) -> bool {
        let known = self.known();
        known.values().filter_map(|it| it.handler.as_ref()).any(|handler| handler.storage.location == *location)
    }

    /// The CRDs whose handlers are not up to date.
    fn outdated_handlers(&self) -> Vec<(String, TrackedCrd, HandlerAction)> {
        let known = self.known();
        let steps = known.iter().map(|(name, it)| (name, it, Handler::next_action(it.handler.as_ref(), &it.crd)));
        let pending = steps.filter(|(_, _, action)| *action != HandlerAction::Keep);
        pending.map(|(name, it, action)| (name.clone(), it.clone(), action)).collect()
    }

    /// The first CRD whose status has to be written, with that status.
    fn next_status(&self, time: &str) -> Option<(TrackedCrd, CrdStatus)> {
        let known = self.known();
        known.values().find_map(|it| {
            let others = known
                .values()
                .map(|other| other.crd.as_ref())
                .filter(|other| other.spec.group == it.crd.spec.group && other.metadata.name != it.crd.metadata.name);
            let status = decide(&it.crd, &NamesInUse::of(others), time)?;
            Some((it.clone(), status))
        })
    }

    /// The CRDs that are being deleted.
    fn terminating(&self) -> Vec<TrackedCrd> {
        let known = self.known();
        known.values().filter(|it| it.crd.metadata.deletion_timestamp.is_some()).cloned().collect()
    }

    /// All resources to serve. Built-in resources take precedence over custom ones.
    fn registry(&self) -> Registry {
        let builtin = Registry::new(self.builtin.iter().cloned());
        let known = self.known();
        let custom = known.values().filter_map(|it| it.handler.as_ref()).flat_map(|handler| &handler.resources);
        let free = custom.filter(|resource| {
            !resource.served.iter().any(|version| builtin.find(version, resource.group_resource.resource()).is_some())
        });
        Registry::new(self.builtin.iter().chain(free).cloned())
    }
}

/// Decodes a stored CRD. The returned entry has it converted to `apiextensions.k8s.io/v1`; the stored version may have another
/// shape.
fn read(custom: &CustomResources, entry: &Entry) -> Option<(Entry, CustomResourceDefinition)> {
    let (resource, version) = custom.crd_resource()?;
    // Converting a CRD needs no webhook, so it is done at once.
    let object = match resource.decode(entry, &version).now_or_never()? {
        Ok(object) => object,
        Err(error) => {
            tracing::error!(%error, "a CRD cannot be decoded");
            return None;
        }
    };
    let value = serde_json::to_vec(object.fields()).ok()?.into();
    Some((Entry { value, ..entry.clone() }, CustomResourceDefinition::of(&object)?))
}

impl CustomResources {
    /// Starts to reflect the CRDs, and returns when all their custom resources are served.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<(), ApiError> {
        let Some((_, version)) = self.crd_resource() else { return Ok(()) };
        let mut caught_up = self.caught_up.subscribe();
        let store = CrdStore { custom: self.clone(), removals: Mutex::default() };
        self.core.spawn(reflect(self.core.clone(), version, "customresourcedefinitions", store));
        // The sender lives as long as this.
        let _ = caught_up.wait_for(|revision| *revision > Revision::ZERO).await;
        Ok(())
    }

    /// The resource of the CRDs themselves, if this server serves it.
    fn crd_resource(&self) -> Option<(Arc<Resource>, GroupVersion)> {
        let version = GroupVersion::new(GROUP, "v1").ok()?;
        let resource = self.core.registry().find(&version, "customresourcedefinitions")?.clone();
        Some((resource, version))
    }
}

/// Keeps the served custom resources in step with the CRDs.
struct CrdStore {
    custom: Arc<CustomResources>,
    /// The CRDs whose objects are being removed, by uid.
    removals: Mutex<HashMap<String, JoinHandle<()>>>,
}

#[async_trait]
impl ReflectedStore for CrdStore {
    fn replace(&self, entries: &[Entry]) {
        let custom = &self.custom;
        let gone: Vec<Key> = {
            let known = custom.known();
            let gone = known.values().filter(|it| !entries.iter().any(|entry| entry.key == it.entry.key));
            gone.map(|it| it.entry.key.clone()).collect()
        };
        gone.iter().for_each(|key| custom.note(key, None));
        entries.iter().for_each(|entry| custom.note(&entry.key, read(custom, entry)));
        custom.core.serve_resources(custom.registry());
    }

    fn apply(&self, event: &CacheEvent) {
        let custom = &self.custom;
        custom.note(&event.key, event.current.as_ref().and_then(|entry| read(custom, entry)));
        if event.current.is_none() {
            custom.core.serve_resources(custom.registry());
        }
    }

    async fn resync(&self) {
        let custom = &self.custom;
        withdraw_removed(custom).await;
        update_handlers(custom).await;
        let reached = custom.core.watch_cache().reached();
        custom.caught_up.send_replace(reached.max(Revision::new(1)));
        update_statuses(custom).await;
        self.remove_terminating();
    }
}

impl CrdStore {
    /// Continues the deletion of CRDs, each in its own task: one may have many objects, and the other CRDs do not wait for
    /// that.
    fn remove_terminating(&self) {
        let mut removals = self.removals.lock().unwrap_or_else(PoisonError::into_inner);
        removals.retain(|_, removal| !removal.is_finished());
        for known in self.custom.terminating() {
            let uid = known.crd.metadata.uid.clone();
            removals.entry(uid).or_insert_with(|| self.custom.core.spawn(remove(self.custom.clone(), known)));
        }
    }
}

/// Builds the handlers of new and changed CRDs, and serves them.
async fn update_handlers(custom: &CustomResources) {
    let mut changed = false;
    for (name, it, action) in custom.outdated_handlers() {
        let made = match action {
            HandlerAction::Build => Handler::build(custom, &it.crd, &it.entry, it.handler.as_ref()).await,
            HandlerAction::Keep | HandlerAction::Remove => Ok(None),
        };
        let made = match made {
            Ok(None) if action == HandlerAction::Build => continue,
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(crd = name, %error, "a custom resource cannot be served yet; trying again");
                continue;
            }
        };
        if action == HandlerAction::Remove {
            custom.close(it.handler);
        }
        if let Some(known) = custom.known().get_mut(&name) {
            known.handler = made;
            changed = true;
        }
    }
    if changed {
        custom.core.serve_resources(custom.registry());
    }
    let handlers: Vec<Handler> = custom.known().values().filter_map(|it| it.handler.clone()).collect();
    for handler in handlers {
        handler.report(custom).await;
    }
}

/// Withdraws the reports about removed resources. Failures are retried.
async fn withdraw_removed(custom: &CustomResources) {
    let removed = std::mem::take(&mut *custom.removed());
    for storage in removed {
        // Writes in flight finish while the version is still reported.
        drop(storage.write_gate().halt().await);
        // A resource of the same name may be served again; its report stays.
        if custom.serves(&storage.location) {
            continue;
        }
        let withdrawn = custom.agreement.withdraw(&storage.location).await;
        if let Err(error) = &withdrawn {
            tracing::warn!(resource = %storage.location, %error, "the report of a storage version could not be withdrawn; trying again");
        }
        if withdrawn.is_err() || !custom.agreement.is_registered() {
            custom.removed().push(storage);
        }
    }
}

/// Writes the status of CRDs: accepted names and conditions.
async fn update_statuses(custom: &CustomResources) {
    let Some((resource, version)) = custom.crd_resource() else { return };
    while let Some((known, status)) = custom.next_status(&now()) {
        let name = &known.crd.metadata.name;
        let object_ref = ObjectRef { resource: &resource, version: &version, namespace: "", name };
        let mut decision = WriteStatus { known: &known, status: &status };
        if let Err(error) = custom.core.objects().change(object_ref, &mut decision).await {
            tracing::warn!(crd = name, %error, "the status of a CRD could not be written");
            return;
        }
        // Until the watch returns the change, other CRDs are decided as if it had.
        let mut crd = known.crd.as_ref().clone();
        crd.status = status;
        if let Some(it) = custom.known().get_mut(name).filter(|it| it.entry == known.entry) {
            it.crd = Arc::new(crd);
        }
    }
    update_handlers(custom).await;
}

/// Writes a status, unless the CRD has changed since.
struct WriteStatus<'a> {
    known: &'a TrackedCrd,
    status: &'a CrdStatus,
}

#[async_trait]
impl ObjectDecision for WriteStatus<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let unchanged = |object: &&Object| object.resource_version() == self.known.entry.mod_revision.to_string();
        let Some(object) = before.filter(unchanged) else { return Ok(ObjectChange::Keep) };
        let mut updated = object.clone();
        set_status(&mut updated, self.status);
        Ok(ObjectChange::Write(updated))
    }
}

/// Continues the deletion of one CRD, as far as that is possible now.
async fn remove(custom: Arc<CustomResources>, known: TrackedCrd) {
    let Some((resource, version)) = custom.crd_resource() else { return };
    let name = &known.crd.metadata.name;
    let object_ref = ObjectRef { resource: &resource, version: &version, namespace: "", name };
    if let Err(error) = finalizer::remove(&custom.core, object_ref, &known.crd, known.handler.as_ref()).await {
        tracing::warn!(crd = name, %error, "the objects of a CRD could not be deleted yet; trying again");
    }
}
