//! The namespace controller: deletes everything in terminating namespaces, then removes their finalizer. Admission webhooks and
//! policies see every deletion, as if a client had requested it: an object that they refuse to delete keeps the namespace.

mod conditions;
mod elsewhere;

use crate::admission;
use crate::controllers::namespaces::conditions::AggregatedContents;
use crate::controllers::namespaces::elsewhere::{Elsewhere, delete_elsewhere};
use crate::error::ApiError;
use crate::handlers::{Call, Handlers};
use crate::request::Request;
use crate::request::options::DryRun;
use crate::resource::ObjectRef;
use crate::resource::{Resource, Scope, Storage, Verb};
use crate::storage::deletion::DeleteOrMark;
use crate::storage::key_pages::KeyPages;
use crate::storage::object_store::{Changed, ObjectChange, ObjectDecision};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_store::{Compare, Content, Entry, Key, KeyRange, RangeRequest, StoreExt};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The service account that webhooks see.
const ACCOUNT: &str = "namespace-controller";
/// The pause between passes: what held a namespace may be gone.
const RESYNC_PERIOD: Duration = Duration::from_millis(500);
/// The longest pause, and the pause where a kind is not served: it takes many reads to find that out.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How many namespaces are processed at once, so that a large one does not hold up the others.
const WORKERS: usize = 16;

/// The result of a pass over a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing is left, or the namespace is not terminating.
    Done,
    /// This many objects are held by their finalizers.
    Held(usize),
    /// There are objects that cannot be deleted because their kind is not served.
    NotServed(String),
    Failed(String),
}

/// The last outcome, and when to try again.
struct Retry {
    outcome: Outcome,
    pause: Duration,
    until: Instant,
}

impl Retry {
    fn after(outcome: Outcome, before: Option<&Retry>) -> Self {
        let pause = pause(&outcome, before.map(|before| (&before.outcome, before.pause)));
        Retry { outcome, pause, until: Instant::now() + pause }
    }
}

/// The pause after a pass. It doubles while the outcome is the same, because each pass costs as much as the first.
fn pause(outcome: &Outcome, before: Option<(&Outcome, Duration)>) -> Duration {
    match before {
        _ if matches!(outcome, Outcome::NotServed(_)) => MAX_PAUSE,
        Some((same, pause)) if same == outcome => (pause * 2).min(MAX_PAUSE),
        _ => RESYNC_PERIOD,
    }
}

/// Empties terminating namespaces until the server ends.
pub(crate) async fn empty_namespaces(handlers: Arc<Handlers>) {
    let mut retries: BTreeMap<String, Retry> = BTreeMap::new();
    let mut under_way: BTreeSet<String> = BTreeSet::new();
    let mut passes = FuturesUnordered::new();
    loop {
        let changed = handlers.namespaces.changed();
        let terminating = handlers.namespaces.terminating();
        retries.retain(|name, _| terminating.contains(name));
        for name in terminating {
            let waits = retries.get(&name).is_some_and(|retries| Instant::now() < retries.until);
            if !waits && passes.len() < WORKERS && under_way.insert(name.clone()) {
                passes.push(pass(handlers.clone(), name));
            }
        }
        tokio::select! {
            biased;
            Some((name, outcome)) = passes.next() => {
                under_way.remove(&name);
                log_outcome(&name, &outcome, retries.get(&name));
                let next = Retry::after(outcome, retries.get(&name));
                retries.insert(name, next);
            }
            // On a change and on a timeout alike, everything is checked again.
            _ = tokio::time::timeout(RESYNC_PERIOD, changed.notified()) => {}
        }
    }
}

async fn pass(handlers: Arc<Handlers>, name: String) -> (String, Outcome) {
    let outcome = empty(&handlers, &name).await.unwrap_or_else(|error| Outcome::Failed(error.to_string()));
    (name, outcome)
}

fn log_outcome(name: &str, outcome: &Outcome, before: Option<&Retry>) {
    let reason = match outcome {
        _ if before.is_some_and(|before| before.outcome == *outcome) => return,
        Outcome::Done | Outcome::Held(_) => return,
        Outcome::NotServed(folder) => format!("this server does not serve the kind of the objects under {folder}"),
        Outcome::Failed(error) => error.clone(),
    };
    tracing::warn!(namespace = name, reason, "the objects of a terminating namespace could not be deleted yet");
}

/// Deletes everything in a namespace; once nothing is left, removes its finalizer.
async fn empty(handlers: &Handlers, name: &str) -> Result<Outcome, ApiError> {
    let Some((namespaces, namespaces_version)) = handlers.core.core_resource("namespaces") else {
        return Ok(Outcome::Done);
    };
    let object_ref = ObjectRef { resource: &namespaces, version: &namespaces_version, namespace: "", name };
    let Some(instance) = NamespaceInstance::terminating(handlers, object_ref).await? else { return Ok(Outcome::Done) };
    let (mut left, mut failure) = (0, None);
    for resource in handlers.registry().resources() {
        let Some((storage, version)) = deletable(resource) else { continue };
        let mut pages = KeyPages::new(storage.range(name));
        while let Some(keys) = pages.next(handlers.objects().store().as_ref()).await? {
            for key in keys {
                let object = crate::storage::key_pages::name_of(&key);
                match delete_object(handlers, resource, version, (name, object), &instance).await {
                    Ok(Changed::Removed(_) | Changed::Absent) => {}
                    Ok(Changed::Created(_) | Changed::Updated(_)) => left += 1,
                    // One failure must not stop the others.
                    Err(error) => failure = Some(error),
                }
            }
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    if left > 0 {
        return Ok(Outcome::Held(left));
    }
    if let Some(folder) = find_not_served(handlers, name).await? {
        return Ok(Outcome::NotServed(folder));
    }
    let Elsewhere::Left(elsewhere) = delete_elsewhere(handlers, name, &instance).await? else {
        return Ok(Outcome::Done);
    };
    if instance.has_conditions || !elsewhere.is_empty() {
        handlers.objects().change(object_ref, &mut ShowContents { contents: &elsewhere, instance: &instance }).await?;
    }
    if !elsewhere.is_empty() {
        return Ok(Outcome::Failed(elsewhere.reason()));
    }
    handlers.objects().change(object_ref, &mut RemoveFinalizer { instance: &instance }).await?;
    Ok(Outcome::Done)
}

/// A terminating namespace, identified by its create revision. This server may not have seen that the namespace was deleted and
/// created again, so every write compares that it is still the same one. A terminating namespace stays terminating, and nothing
/// new is created in it: once it is empty, it stays empty.
struct NamespaceInstance {
    entry: Entry,
    uid: String,
    has_conditions: bool,
}

impl NamespaceInstance {
    /// The stored namespace, if it is terminating.
    async fn terminating(handlers: &Handlers, object_ref: ObjectRef<'_>) -> Result<Option<Self>, ApiError> {
        let Some(entry) = handlers.objects().get(object_ref).await? else { return Ok(None) };
        let object = object_ref.resource.decode(&entry, object_ref.version).await?;
        let uid = object.uid().to_string();
        let has_conditions = object.at(&["status", "conditions"]).is_some();
        Ok(object.is_being_deleted().then_some(NamespaceInstance { entry, uid, has_conditions }))
    }

    fn still_exists(&self) -> Compare {
        Compare::create_revision(&self.entry.key, self.entry.create_revision)
    }
}

/// The storage and version by which the objects of a resource are deleted with their namespace; `None` if they are not.
fn deletable(resource: &Resource) -> Option<(&Storage, &GroupVersion)> {
    let goes_with_it = resource.scope == Scope::Namespaced && resource.verbs.contains(&Verb::Delete);
    resource.storage.as_deref().zip(resource.served.first()).filter(|_| goes_with_it)
}

/// The prefix of objects in a namespace whose kind this server does not serve. It may be served soon, for instance when the CRD
/// has been read. The prefixes are found in the store itself, one read each.
async fn find_not_served(handlers: &Handlers, name: &str) -> Result<Option<String>, ApiError> {
    let store = handlers.objects().store();
    let registry = handlers.registry();
    let deletable = registry.resources().iter().filter_map(|resource| Some(deletable(resource)?.0.folder()));
    let deletable: BTreeSet<String> = deletable.collect();
    let first_in = |range: KeyRange| RangeRequest::new(range).content(Content::KeysOnly).limit(1);
    let mut rest = KeyRange::prefix("/");
    loop {
        let page = store.range(first_in(rest.clone())).await?;
        let Some(folder) = page.entries.first().map(|entry| folder_of(&entry.key)) else { return Ok(None) };
        // Keys under /restow/ are no objects.
        if !deletable.contains(&folder) && !folder.starts_with("/restow/") {
            let inside = store.range(first_in(KeyRange::prefix(format!("{folder}{name}/")))).await?;
            if !inside.entries.is_empty() {
                return Ok(Some(folder));
            }
        }
        let last = Key::new([folder.as_bytes(), &[0xff]].concat());
        rest = rest.after(&last.map_err(|error| ApiError::Internal(error.to_string()))?);
    }
}

/// The group and the resource that a key begins with.
fn folder_of(key: &Key) -> String {
    let text = String::from_utf8_lossy(key.as_bytes());
    text.split_inclusive('/').take(3).collect()
}

async fn delete_object(
    handlers: &Handlers,
    resource: &Arc<Resource>,
    version: &GroupVersion,
    (namespace, name): (&str, &str),
    instance: &NamespaceInstance,
) -> Result<Changed, ApiError> {
    let object_ref = ObjectRef { resource, version, namespace, name };
    let call = Call { handlers, request: Request::by_controller(ACCOUNT, resource.clone(), object_ref) };
    handlers.objects().change(object_ref, &mut AdmittedDeletion { call, instance, attempts: 0 }).await
}

/// Deletes or marks an object if admission allows it, and its namespace is still the same terminating one.
struct AdmittedDeletion<'a> {
    call: Call<'a>,
    instance: &'a NamespaceInstance,
    attempts: usize,
}

#[async_trait]
impl ObjectDecision for AdmittedDeletion<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        self.attempts += 1;
        if self.attempts > 1 {
            // Something has changed, perhaps the namespace. The next pass checks it again.
            let found = self.call.handlers.objects().store().get(&self.instance.entry.key).await?;
            if !self.instance.still_exists().holds(found.as_ref()) {
                return Ok(ObjectChange::Keep);
            }
        }
        let change = DeleteOrMark.decide(before).await?;
        if let (Some(old), ObjectChange::Remove | ObjectChange::Write(_)) = (before, &change) {
            admission::admit_removal(&self.call.admission(), old, DryRun::No).await?;
        }
        Ok(change)
    }

    fn conditions(&self) -> Vec<Compare> {
        vec![self.instance.still_exists()]
    }
}

/// Shows in the conditions of a namespace what other API servers still have in it.
struct ShowContents<'a> {
    contents: &'a AggregatedContents,
    instance: &'a NamespaceInstance,
}

#[async_trait]
impl ObjectDecision for ShowContents<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let same = |object: &&Object| object.is_being_deleted() && object.uid() == self.instance.uid;
        let shown = before.filter(same).and_then(|object| self.contents.shown_in(object));
        Ok(shown.map_or(ObjectChange::Keep, ObjectChange::Write))
    }
}

/// Removes the server's finalizer from a namespace, if it is still the one that was found empty; the namespace is deleted if
/// that was the last one.
struct RemoveFinalizer<'a> {
    instance: &'a NamespaceInstance,
}

#[async_trait]
impl ObjectDecision for RemoveFinalizer<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let same = |object: &&Object| object.is_being_deleted() && object.uid() == self.instance.uid;
        let Some(object) = before.filter(same) else { return Ok(ObjectChange::Keep) };
        let finalizers = object.at(&["spec", "finalizers"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let others: Vec<Value> = finalizers.into_iter().filter(|finalizer| finalizer != "kubernetes").collect();
        if others.is_empty() && object.finalizers().is_empty() {
            return Ok(ObjectChange::Remove);
        }
        let mut released = object.clone();
        let mut spec = object.get("spec").cloned().unwrap_or_default();
        spec["finalizers"] = others.into();
        released.set("spec", Some(spec));
        Ok(ObjectChange::Write(released))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_held_is_retried_with_backoff() {
        let held = Outcome::Held(3);
        let mut found = Vec::new();
        let mut before = None;
        for _ in 0..6 {
            let next = pause(&held, before);
            found.push(next.as_millis());
            before = Some((&held, next));
        }
        assert_eq!(found, [500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(pause(&Outcome::Held(2), before), RESYNC_PERIOD, "an object was deleted");
        assert_eq!(pause(&Outcome::NotServed("/a/b/".into()), None), MAX_PAUSE);
    }
}
