//! Empties namespaces that are to go, and lets them go. Webhooks and policies are asked about every object, as they would be
//! if a client deleted it: one that they keep keeps the namespace.

use crate::admission::{self, Rehearsal};
use crate::error::ApiError;
use crate::namespaces::Dismiss;
use crate::object::Object;
use crate::object_store::{Change, Changed, Decision, Place};
use crate::resource::{Resource, Scope, Storage, Verb};
use crate::server::ApiServer;
use crate::verbs::Call;
use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_store::{Compare, Content, Entry, Key, KeyRange, RangeRequest, StoreExt};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Whom webhooks see.
const ACCOUNT: &str = "namespace-controller";
/// How long to wait before looking again: what held a namespace may have let go.
const BREATH: Duration = Duration::from_millis(500);
/// How long to wait where a kind is not served: it takes reads of the whole store to find that out.
const PATIENCE: Duration = Duration::from_secs(5);

/// Empties namespaces for as long as the server lives.
pub(crate) async fn empty_namespaces(server: Weak<ApiServer>) {
    let mut told: BTreeMap<String, (String, Instant)> = BTreeMap::new();
    while let Some(strong) = server.upgrade() {
        let changed = strong.namespaces().changed();
        let terminating = strong.namespaces().terminating();
        told.retain(|name, _| terminating.contains(name));
        for name in terminating {
            let waits = told.get(&name).is_some_and(|(_, until)| Instant::now() < *until);
            let (reason, pause) = match waits {
                true => continue,
                false => match empty(&strong, &name).await {
                    Ok(None) => continue,
                    Ok(Some(folder)) => {
                        (format!("no server here serves the kind of what lies below {folder}"), PATIENCE)
                    }
                    Err(error) => (error.to_string(), Duration::ZERO),
                },
            };
            if told.get(&name).is_none_or(|(before, _)| *before != reason) {
                tracing::warn!(namespace = name, reason, "a namespace could not be emptied yet");
            }
            told.insert(name, (reason, Instant::now() + pause));
        }
        drop(strong);
        // Whether it was told of a change or only waited, everything is looked at again.
        let _ = tokio::time::timeout(BREATH, changed.notified()).await;
    }
}

/// Deletes everything in a namespace; once nothing is left, lets the namespace go. Returns where something lies that cannot
/// be deleted because its kind is not served.
async fn empty(server: &ApiServer, name: &str) -> Result<Option<String>, ApiError> {
    let Some((namespaces, namespaces_version)) = server.namespace_resource() else { return Ok(None) };
    let place = Place { resource: &namespaces, version: &namespaces_version, namespace: "", name };
    let Some(instance) = Instance::to_go(server, place).await? else { return Ok(None) };
    let (mut left, mut failure) = (0, None);
    for resource in server.registry().resources() {
        let Some((storage, version)) = emptied(resource) else { continue };
        let entries = server.objects().store().range(RangeRequest::new(storage.range(name))).await?.entries;
        for entry in entries {
            let object = crate::following::name_of(&entry.key);
            match dismiss(server, resource, version, (name, object), &instance).await {
                Ok(Changed::Removed(_) | Changed::Absent) => {}
                Ok(Changed::Created(_) | Changed::Updated(_)) => left += 1,
                // One that cannot go must not keep the others.
                Err(error) => failure = Some(error),
            }
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    if left > 0 {
        return Ok(None);
    }
    let unserved = unserved(server, name).await?;
    if unserved.is_none() {
        server.objects().change(place, &mut Release { instance: &instance }).await?;
    }
    Ok(unserved)
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
    async fn to_go(server: &ApiServer, place: Place<'_>) -> Result<Option<Self>, ApiError> {
        let Some(entry) = server.objects().get(place).await? else { return Ok(None) };
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
async fn unserved(server: &ApiServer, name: &str) -> Result<Option<String>, ApiError> {
    let store = server.objects().store();
    let registry = server.registry();
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
    server: &ApiServer,
    resource: &Arc<Resource>,
    version: &GroupVersion,
    (namespace, name): (&str, &str),
    instance: &Instance,
) -> Result<Changed, ApiError> {
    let place = Place { resource, version, namespace, name };
    let call = Call::by_controller(server, ACCOUNT, resource.clone(), place);
    server.objects().change(place, &mut Admitted { call, instance, asked: 0 }).await
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
            let found = self.call.server.objects().store().get(&self.instance.entry.key).await?;
            if !self.instance.is_still_there().holds(found.as_ref()) {
                return Ok(Change::Keep);
            }
        }
        let change = Dismiss.decide(before).await?;
        if let (Some(old), Change::Remove | Change::Write(_)) = (before, &change) {
            admission::admit_removal(&self.call, old, Rehearsal::No).await?;
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
