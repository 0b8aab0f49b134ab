//! Empties namespaces that are to go, and lets them go. Webhooks and policies are asked about every object, as they would be
//! if a client deleted it: one that they keep keeps the namespace.

use crate::admission::{self, DryRun};
use crate::error::ApiError;
use crate::handlers::{Call, Handlers};
use crate::request::Request;
use crate::resource::ObjectRef;
use crate::resource::{Resource, Scope, Storage, Verb};
use crate::storage::deletion::Dismiss;
use crate::storage::key_pages::KeyPages;
use crate::storage::object_store::{Change, Changed, Decision};
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

/// Whom webhooks see.
const ACCOUNT: &str = "namespace-controller";
/// How long to wait before looking again: what held a namespace may have let go.
const RESYNC_PERIOD: Duration = Duration::from_millis(500);
/// How long to wait at most, and where a kind is not served: it takes reads of the whole store to find that out.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many namespaces are emptied at once, so that a large one does not hold up the others.
const AT_ONCE: usize = 16;

/// What came of a pass over a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing is left, or the namespace need not go any more.
    Done,
    /// So many objects are held by their finalizers.
    Held(usize),
    /// Something lies there that cannot be deleted because its kind is not served.
    Unserved(String),
    Failed(String),
}

/// The last outcome, and when to try again.
struct Waiting {
    outcome: Outcome,
    pause: Duration,
    until: Instant,
}

impl Waiting {
    fn after(outcome: Outcome, before: Option<&Waiting>) -> Self {
        let pause = pause(&outcome, before.map(|before| (&before.outcome, before.pause)));
        Waiting { outcome, pause, until: Instant::now() + pause }
    }
}

/// How long to wait after a pass: longer each time that it came to the same, because it costs as much as the first.
fn pause(outcome: &Outcome, before: Option<(&Outcome, Duration)>) -> Duration {
    match before {
        _ if matches!(outcome, Outcome::Unserved(_)) => PATIENCE,
        Some((same, pause)) if same == outcome => (pause * 2).min(PATIENCE),
        _ => RESYNC_PERIOD,
    }
}

/// Empties terminating namespaces until the server ends.
pub(crate) async fn empty_namespaces(handlers: Arc<Handlers>) {
    let mut waiting: BTreeMap<String, Waiting> = BTreeMap::new();
    let mut under_way: BTreeSet<String> = BTreeSet::new();
    let mut passes = FuturesUnordered::new();
    loop {
        let changed = handlers.namespaces.changed();
        let terminating = handlers.namespaces.terminating();
        waiting.retain(|name, _| terminating.contains(name));
        for name in terminating {
            let waits = waiting.get(&name).is_some_and(|waiting| Instant::now() < waiting.until);
            if !waits && passes.len() < AT_ONCE && under_way.insert(name.clone()) {
                passes.push(pass(handlers.clone(), name));
            }
        }
        tokio::select! {
            Some((name, outcome)) = passes.next() => {
                under_way.remove(&name);
                tell(&name, &outcome, waiting.get(&name));
                let next = Waiting::after(outcome, waiting.get(&name));
                waiting.insert(name, next);
            }
            // Whether it was told of a change or only waited, everything is looked at again.
            _ = tokio::time::timeout(RESYNC_PERIOD, changed.notified()) => {}
        }
    }
}

async fn pass(handlers: Arc<Handlers>, name: String) -> (String, Outcome) {
    let outcome = empty(&handlers, &name).await.unwrap_or_else(|error| Outcome::Failed(error.to_string()));
    (name, outcome)
}

fn tell(name: &str, outcome: &Outcome, before: Option<&Waiting>) {
    let reason = match outcome {
        _ if before.is_some_and(|before| before.outcome == *outcome) => return,
        Outcome::Done | Outcome::Held(_) => return,
        Outcome::Unserved(folder) => format!("no server here serves the kind of what lies below {folder}"),
        Outcome::Failed(error) => error.clone(),
    };
    tracing::warn!(namespace = name, reason, "a namespace could not be emptied yet");
}

/// Deletes everything in a namespace; once nothing is left, lets the namespace go.
async fn empty(handlers: &Handlers, name: &str) -> Result<Outcome, ApiError> {
    let Some((namespaces, namespaces_version)) = handlers.core.core_resource("namespaces") else {
        return Ok(Outcome::Done);
    };
    let place = ObjectRef { resource: &namespaces, version: &namespaces_version, namespace: "", name };
    let Some(instance) = Instance::to_go(handlers, place).await? else { return Ok(Outcome::Done) };
    let (mut left, mut failure) = (0, None);
    for resource in handlers.registry().resources() {
        let Some((storage, version)) = emptied(resource) else { continue };
        let mut pages = KeyPages::new(storage.range(name));
        while let Some(keys) = pages.next(handlers.objects().store().as_ref()).await? {
            for key in keys {
                let object = crate::storage::key_pages::name_of(&key);
                match dismiss(handlers, resource, version, (name, object), &instance).await {
                    Ok(Changed::Removed(_) | Changed::Absent) => {}
                    Ok(Changed::Created(_) | Changed::Updated(_)) => left += 1,
                    // One that cannot go must not keep the others.
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
    if let Some(folder) = unserved(handlers, name).await? {
        return Ok(Outcome::Unserved(folder));
    }
    handlers.objects().change(place, &mut Release { instance: &instance }).await?;
    Ok(Outcome::Done)
}

/// One life of a namespace that is to go. This server may not have heard that the namespace went and was made again, so
/// everything that is done because of what was found compares that it is still this one. What is to go stays so, and nothing
/// new is made in it: whatever was found empty afterwards stays empty.
struct Instance {
    entry: Entry,
    uid: String,
}

impl Instance {
    /// The namespace as it lies in the store, if it is to go.
    async fn to_go(handlers: &Handlers, place: ObjectRef<'_>) -> Result<Option<Self>, ApiError> {
        let Some(entry) = handlers.objects().get(place).await? else { return Ok(None) };
        let object = place.resource.decode(&entry, place.version).await?;
        let uid = object.uid().to_string();
        Ok(object.is_being_deleted().then_some(Instance { entry, uid }))
    }

    fn is_still_there(&self) -> Compare {
        Compare::create_revision(&self.entry.key, self.entry.create_revision)
    }
}

/// Where and as what the objects of a resource are deleted with their namespace; nothing if they are not.
fn emptied(resource: &Resource) -> Option<(&Storage, &GroupVersion)> {
    let goes_with_it = resource.scope == Scope::Namespaced && resource.verbs.contains(&Verb::Delete);
    resource.storage.as_deref().zip(resource.served.first()).filter(|_| goes_with_it)
}

/// Where something lies in a namespace that is of no kind which this server serves: it may be served soon, for instance
/// when its definition has been read. The folders are found in the store itself, one read each.
async fn unserved(handlers: &Handlers, name: &str) -> Result<Option<String>, ApiError> {
    let store = handlers.objects().store();
    let registry = handlers.registry();
    let emptied = registry.resources().iter().filter_map(|resource| Some(emptied(resource)?.0.folder()));
    let emptied: BTreeSet<String> = emptied.collect();
    let first_in = |range: KeyRange| RangeRequest::new(range).content(Content::KeysOnly).limit(1);
    let mut rest = KeyRange::prefix("/");
    loop {
        let page = store.range(first_in(rest.clone())).await?;
        let Some(folder) = page.entries.first().map(|entry| folder_of(&entry.key)) else { return Ok(None) };
        // What lies in our own folder is no object.
        if !emptied.contains(&folder) && !folder.starts_with("/restow/") {
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

async fn dismiss(
    handlers: &Handlers,
    resource: &Arc<Resource>,
    version: &GroupVersion,
    (namespace, name): (&str, &str),
    instance: &Instance,
) -> Result<Changed, ApiError> {
    let place = ObjectRef { resource, version, namespace, name };
    let call = Call { handlers, request: Request::by_controller(ACCOUNT, resource.clone(), place) };
    handlers.objects().change(place, &mut Admitted { call, instance, asked: 0 }).await
}

/// Removes or marks an object if nobody is against it, and its namespace is still the one that is to go.
struct Admitted<'a> {
    call: Call<'a>,
    instance: &'a Instance,
    asked: usize,
}

#[async_trait]
impl Decision for Admitted<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        self.asked += 1;
        if self.asked > 1 {
            // Something has changed, perhaps the namespace. It is looked at again with everything else in it.
            let found = self.call.handlers.objects().store().get(&self.instance.entry.key).await?;
            if !self.instance.is_still_there().holds(found.as_ref()) {
                return Ok(Change::Keep);
            }
        }
        let change = Dismiss.decide(before).await?;
        if let (Some(old), Change::Remove | Change::Write(_)) = (before, &change) {
            admission::admit_removal(&self.call.admission(), old, DryRun::No).await?;
        }
        Ok(change)
    }

    fn conditions(&self) -> Vec<Compare> {
        vec![self.instance.is_still_there()]
    }
}

/// Takes the finalizer of the server off a namespace, if it is still the one that was found empty; without any left, the
/// namespace is gone.
struct Release<'a> {
    instance: &'a Instance,
}

#[async_trait]
impl Decision for Release<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let same = |object: &&Object| object.is_being_deleted() && object.uid() == self.instance.uid;
        let Some(object) = before.filter(same) else { return Ok(Change::Keep) };
        let finalizers = object.at(&["spec", "finalizers"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let others: Vec<Value> = finalizers.into_iter().filter(|finalizer| finalizer != "kubernetes").collect();
        if others.is_empty() && object.finalizers().is_empty() {
            return Ok(Change::Remove);
        }
        let mut released = object.clone();
        let mut spec = object.get("spec").cloned().unwrap_or_default();
        spec["finalizers"] = others.into();
        released.set("spec", Some(spec));
        Ok(Change::Write(released))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_held_is_looked_at_less_and_less_often() {
        let held = Outcome::Held(3);
        let mut found = Vec::new();
        let mut before = None;
        for _ in 0..6 {
            let next = pause(&held, before);
            found.push(next.as_millis());
            before = Some((&held, next));
        }
        assert_eq!(found, [500, 1000, 2000, 4000, 5000, 5000]);
        assert_eq!(pause(&Outcome::Held(2), before), RESYNC_PERIOD, "something went");
        assert_eq!(pause(&Outcome::Unserved("/a/b/".into()), None), PATIENCE);
    }
}
