//! Keeps what is served in step with the definitions in the store, and their status in step with what they say.
//!
//! Every server does all of it, in the same way from the same state; when several write the same status, the first one
//! wins and the others find nothing left to do.

use crate::apiextensions::definition::{Definition, GROUP, Status};
use crate::core::Core;
use crate::core::reflector::{ReflectedStore, reflect};
use crate::crd::finalizer;
use crate::crd::handler::{Handler, Step};
use crate::crd::status::{Taken, decide};
use crate::crd::strategy::set_status;
use crate::error::ApiError;
use crate::resource::ObjectRef;
use crate::resource::object_meta::now;
use crate::resource::registry::Registry;
use crate::resource::{Resource, Storage};
use crate::storage::key_pages::name_of;
use crate::storage::object_store::{Change, Decision};
use crate::storage::watch_cache::CacheEvent;
use crate::storage_version::Agreement;
use crate::webhook::ServiceResolver;
use async_trait::async_trait;
use futures::FutureExt;
use restow_api::{GroupResource, GroupVersion};
use restow_apimachinery::object::Object;
use restow_store::{Entry, Key, Revision};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The definitions that this server knows, and what serves them.
pub(crate) struct CustomResources {
    pub(crate) core: Arc<Core>,
    pub(crate) agreement: Arc<Agreement>,
    /// What is served beside them.
    builtin: Vec<Arc<Resource>>,
    known: Mutex<BTreeMap<String, Known>>,
    /// Up to which revision of the definitions everything is served.
    caught_up: watch::Sender<Revision>,
    services: Arc<dyn ServiceResolver>,
    /// What is gone, and still reported.
    removed: Mutex<Vec<Arc<Storage>>>,
}

/// A definition, and what serves it.
#[derive(Clone)]
struct Known {
    /// Where it lies, and the definition in the version that is read here.
    entry: Entry,
    definition: Arc<Definition>,
    handler: Option<Handler>,
}

impl CustomResources {
    /// No definitions, beside these resources.
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

    /// Where the services of the cluster are.
    pub(crate) fn services(&self) -> Arc<dyn ServiceResolver> {
        self.services.clone()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        // Every change under the lock is a single assignment, so a panic leaves nothing half done.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a definition, or of its removal.
    fn note(&self, key: &Key, read: Option<(Entry, Definition)>) {
        let name = name_of(key).to_string();
        let mut known = self.known();
        let handler = known.remove(&name).and_then(|before| before.handler);
        let Some((entry, definition)) = read else {
            drop(known);
            return self.close(handler);
        };
        let same = handler.as_ref().is_none_or(|it| it.definition.metadata.uid == definition.metadata.uid);
        let (handler, gone) = if same { (handler, None) } else { (None, handler) };
        let fresh = Known { entry, definition: Arc::new(definition), handler };
        known.insert(name, fresh);
        drop(known);
        self.close(gone);
    }

    /// Lets nothing more through a handler that is gone.
    fn close(&self, handler: Option<Handler>) {
        if let Some(handler) = handler {
            handler.storage.write_gate().close();
            self.removed().push(handler.storage);
        }
    }

    fn removed(&self) -> MutexGuard<'_, Vec<Arc<Storage>>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a definition of this resource has a handler.
    fn serves(&self, location: &GroupResource) -> bool {
        let known = self.known();
        known.values().filter_map(|it| it.handler.as_ref()).any(|handler| handler.storage.location == *location)
    }

    /// The definitions whose handlers have something to be done about them.
    fn pending(&self) -> Vec<(String, Known, Step)> {
        let known = self.known();
        let steps = known.iter().map(|(name, it)| (name, it, Handler::step(it.handler.as_ref(), &it.definition)));
        let pending = steps.filter(|(_, _, step)| *step != Step::Keep);
        pending.map(|(name, it, step)| (name.clone(), it.clone(), step)).collect()
    }

    /// The first definition whose status has to be written, with that status.
    fn undecided(&self, time: &str) -> Option<(Known, Status)> {
        let known = self.known();
        known.values().find_map(|it| {
            let others = known.values().map(|other| other.definition.as_ref()).filter(|other| {
                other.spec.group == it.definition.spec.group && other.metadata.name != it.definition.metadata.name
            });
            let status = decide(&it.definition, &Taken::by(others), time)?;
            Some((it.clone(), status))
        })
    }

    /// The definitions that are about to go.
    fn terminating(&self) -> Vec<Known> {
        let known = self.known();
        known.values().filter(|it| it.definition.metadata.deletion_timestamp.is_some()).cloned().collect()
    }

    /// Everything that is to be served. What is built in goes before what is defined.
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

/// Reads a stored CRD. The entry that comes back holds it in the version that is read here, not in the one that
/// CRDs are stored in, which has another shape.
fn read(custom: &CustomResources, entry: &Entry) -> Option<(Entry, Definition)> {
    let (resource, version) = custom.definitions()?;
    // Converting a CRD needs no webhook, so it is done at once.
    let object = match resource.decode(entry, &version).now_or_never()? {
        Ok(object) => object,
        Err(error) => {
            tracing::error!(%error, "a CRD cannot be read");
            return None;
        }
    };
    let value = serde_json::to_vec(object.fields()).ok()?.into();
    Some((Entry { value, ..entry.clone() }, Definition::of(&object)?))
}

impl CustomResources {
    /// Starts to reflect the CRDs, and returns when everything that they define is served.
    pub(crate) async fn start(self: &Arc<Self>) -> Result<(), ApiError> {
        let Some((_, version)) = self.definitions() else { return Ok(()) };
        let mut caught_up = self.caught_up.subscribe();
        let store = DefinitionStore { custom: self.clone(), removals: Mutex::default() };
        self.core.spawn(reflect(self.core.clone(), version, "customresourcedefinitions", store));
        // The sender lives as long as this.
        let _ = caught_up.wait_for(|revision| *revision > Revision::ZERO).await;
        Ok(())
    }

    /// The resource of the CRDs themselves, where this server has it.
    fn definitions(&self) -> Option<(Arc<Resource>, GroupVersion)> {
        let version = GroupVersion::new(GROUP, "v1").ok()?;
        let resource = self.core.registry().find(&version, "customresourcedefinitions")?.clone();
        Some((resource, version))
    }
}

/// Keeps the served custom resources in step with the CRDs.
struct DefinitionStore {
    custom: Arc<CustomResources>,
    /// The CRDs whose objects are being removed, by uid.
    removals: Mutex<HashMap<String, JoinHandle<()>>>,
}

#[async_trait]
impl ReflectedStore for DefinitionStore {
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

impl DefinitionStore {
    /// Goes on with the removal of CRDs that are about to go, each in a task of its own: one may have many objects,
    /// and the other CRDs do not wait for that.
    fn remove_terminating(&self) {
        let mut removals = self.removals.lock().unwrap_or_else(PoisonError::into_inner);
        removals.retain(|_, removal| !removal.is_finished());
        for known in self.custom.terminating() {
            let uid = known.definition.metadata.uid.clone();
            removals.entry(uid).or_insert_with(|| self.custom.core.spawn(remove(self.custom.clone(), known)));
        }
    }
}

/// Makes the handlers of what is new or has changed, and serves them.
async fn update_handlers(custom: &CustomResources) {
    let mut changed = false;
    for (name, it, step) in custom.pending() {
        let made = match step {
            Step::Make => Handler::make(custom, &it.definition, &it.entry, it.handler.as_ref()).await,
            Step::Keep | Step::Remove => Ok(None),
        };
        let made = match made {
            Ok(None) if step == Step::Make => continue,
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(definition = name, %error, "a custom resource cannot be served yet");
                continue;
            }
        };
        if step == Step::Remove {
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

/// Takes back what was reported about resources that are gone. What cannot be done now is tried again.
async fn withdraw_removed(custom: &CustomResources) {
    let removed = std::mem::take(&mut *custom.removed());
    for storage in removed {
        // What is on its way arrives while it is still reported.
        drop(storage.write_gate().halt().await);
        // A resource of the same name may be served again by now; that one's report stays.
        if custom.serves(&storage.location) {
            continue;
        }
        let withdrawn = custom.agreement.withdraw(&storage.location).await;
        if let Err(error) = &withdrawn {
            tracing::warn!(resource = %storage.location, %error, "a report could not be withdrawn; trying again");
        }
        if withdrawn.is_err() || !custom.agreement.is_registered() {
            custom.removed().push(storage);
        }
    }
}

/// Writes what has been decided about names and conditions.
async fn update_statuses(custom: &CustomResources) {
    let Some((resource, version)) = custom.definitions() else { return };
    while let Some((known, status)) = custom.undecided(&now()) {
        let name = &known.definition.metadata.name;
        let place = ObjectRef { resource: &resource, version: &version, namespace: "", name };
        let mut decision = Settle { known: &known, status: &status };
        if let Err(error) = custom.core.objects().change(place, &mut decision).await {
            tracing::warn!(definition = name, %error, "the status of a definition could not be written");
            return;
        }
        // Until the change comes back, others are decided upon as if it had.
        let mut definition = known.definition.as_ref().clone();
        definition.status = status;
        if let Some(it) = custom.known().get_mut(name).filter(|it| it.entry == known.entry) {
            it.definition = Arc::new(definition);
        }
    }
    update_handlers(custom).await;
}

/// Writes a status, unless the definition is not what it was decided for.
struct Settle<'a> {
    known: &'a Known,
    status: &'a Status,
}

#[async_trait]
impl Decision for Settle<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let unchanged = |object: &&Object| object.resource_version() == self.known.entry.mod_revision.to_string();
        let Some(object) = before.filter(unchanged) else { return Ok(Change::Keep) };
        let mut settled = object.clone();
        set_status(&mut settled, self.status);
        Ok(Change::Write(settled))
    }
}

/// Goes on with the removal of one definition, as far as that is possible now.
async fn remove(custom: Arc<CustomResources>, known: Known) {
    let Some((resource, version)) = custom.definitions() else { return };
    let name = &known.definition.metadata.name;
    let place = ObjectRef { resource: &resource, version: &version, namespace: "", name };
    if let Err(error) = finalizer::remove(&custom.core, place, &known.definition, known.handler.as_ref()).await {
        tracing::warn!(definition = name, %error, "the objects of a definition could not be removed yet");
    }
}
