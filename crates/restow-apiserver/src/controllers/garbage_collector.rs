//! The garbage collector: deletes objects whose last owner is gone, and removes the finalizers of owners that waited for their
//! dependents.
//!
//! It watches the whole store and keeps in memory only objects that have owners or wait for dependents. Every step is decided
//! from the stored object at that moment and is bound to its uid, so that doing it twice, or late, does no harm. That an owner
//! is gone counts only in a transaction that compares it (`classify.rs`).

mod classify;
mod graph;
mod queue;

use crate::admission;
use crate::core::leader_election::{LeaderLock, RENEW_INTERVAL};
use crate::error::ApiError;
use crate::handlers::{Call, Handlers};
use crate::request::Request;
use crate::request::options::DryRun;
use crate::resource::ObjectRef;
use crate::resource::Resource;
use crate::storage::deletion::{self, DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use crate::storage::format_mark;
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use async_trait::async_trait;
use classify::Classification;
use futures::{StreamExt, stream};
use graph::{DependentAction, Graph, Node, Work};
use queue::{Queue, RETRY};
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_store::{Change, Compare, Event, Key, KeyRange, RangeRequest, Revision, StoreExt, WatchRequest};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The service account that webhooks see.
const ACCOUNT: &str = "generic-garbage-collector";
/// How long to wait after a failure.
const RESYNC_PERIOD: Duration = Duration::from_millis(500);
/// How many times the owners of one object are classified in a row, where others change them or where a CRD has changed that
/// this server has not seen.
const MAX_ATTEMPTS: usize = 3;
/// How many objects are read at once, and how many are processed before the leader lock is renewed.
const PAGE: usize = 500;
/// How many objects are processed at once: an admission webhook may take long.
const WORKERS: usize = 16;

/// Collects garbage while this server is the leader, until the server stops.
pub(crate) async fn collect_garbage(handlers: Arc<Handlers>) {
    let Ok(leader_lock) = LeaderLock::new("garbage-collector", handlers.objects().store().clone()) else { return };
    tokio::select! {
        biased;
        () = hold_and_collect(&handlers, &leader_lock) => {}
        // Another server takes over at once, and need not wait until the lock expires.
        () = handlers.core.stopping() => leader_lock.release().await,
    }
}

async fn hold_and_collect(handlers: &Handlers, leader_lock: &LeaderLock) {
    loop {
        let pause = match leader_lock.renew().await {
            Ok(true) => match collect(handlers, leader_lock).await {
                Err(ApiError::UnusableStore(reason)) => {
                    tracing::error!(reason, "the garbage collector does not run");
                    RENEW_INTERVAL
                }
                Err(error) => {
                    tracing::debug!(%error, "garbage collection was interrupted");
                    RESYNC_PERIOD
                }
                Ok(()) => RESYNC_PERIOD,
            },
            Ok(false) => RENEW_INTERVAL,
            Err(_) => RESYNC_PERIOD,
        };
        tokio::time::sleep(pause).await;
    }
}

/// Collects until the leader lock or the watch is lost.
async fn collect(handlers: &Handlers, leader_lock: &LeaderLock) -> Result<(), ApiError> {
    let mut graph = Graph::default();
    let mut queue = Queue::default();
    let revision = handlers.objects().store().status().await?.revision;
    scan(handlers, revision, &mut graph, &mut queue).await?;
    let request = WatchRequest::from(KeyRange::all(), revision.next()).with_previous();
    let mut watch = handlers.objects().store().watch(request).await?;
    let mut renewed = Instant::now();
    loop {
        work(handlers, &graph, &mut queue).await;
        if renewed.elapsed() > RENEW_INTERVAL {
            if !leader_lock.renew().await? {
                return Ok(());
            }
            renewed = Instant::now();
        }
        let wait = if queue.is_idle(Instant::now()) { RESYNC_PERIOD } else { Duration::ZERO };
        match tokio::time::timeout(wait, watch.next()).await {
            Err(_) => {}
            Ok(None) => return Ok(()),
            Ok(Some(batch)) => {
                for event in batch?.events {
                    if let Change::Put(entry) = &event.change {
                        check_store_owner(handlers, &entry.key)?;
                    }
                    queue.extend(note(&mut graph, &event));
                }
            }
        }
    }
}

/// Reads everything that is stored, page by page, also kinds that this server does not serve yet.
async fn scan(handlers: &Handlers, revision: Revision, graph: &mut Graph, queue: &mut Queue) -> Result<(), ApiError> {
    let mut range = KeyRange::all();
    loop {
        let request = RangeRequest::new(range.clone()).at(revision).limit(PAGE);
        let page = handlers.objects().store().range(request).await?;
        for entry in &page.entries {
            check_store_owner(handlers, &entry.key)?;
            if let Some(node) = Node::of(&entry.value) {
                queue.extend(graph.put(&entry.key, node));
            }
        }
        match page.entries.last().filter(|_| page.more) {
            Some(last) => range = range.after(&last.key),
            None => return Ok(()),
        }
    }
}

/// Ensures that a key may be one of Restow's. If another program uses the store too, an owner may be at an unknown key, so
/// nothing is collected at all.
fn check_store_owner(handlers: &Handlers, key: &Key) -> Result<(), ApiError> {
    match format_mark::may_be_ours(key, |group| format_mark::groups_of(&handlers.registry()).contains(group)) {
        true => Ok(()),
        false => Err(ApiError::UnusableStore(format!("another program uses the store too: found the key {key}"))),
    }
}

fn note(graph: &mut Graph, event: &Event) -> Vec<Work> {
    match &event.change {
        Change::Put(entry) => Node::of(&entry.value).map(|node| graph.put(&entry.key, node)).unwrap_or_default(),
        Change::Delete(key) => {
            let before = event.previous.as_ref().and_then(|entry| Node::of(&entry.value)).unwrap_or_default();
            graph.remove(key, &before.uid)
        }
    }
}

/// Processes a batch of the queue.
async fn work(handlers: &Handlers, graph: &Graph, queue: &mut Queue) {
    let next = queue.take(PAGE, Instant::now());
    let process = |item: Work| async move {
        let done = match &item {
            Work::Dependent(key) => process_dependent(handlers, graph, key).await.map(|()| Vec::new()),
            Work::Owner(key) => process_owner(handlers, graph, key).await,
        };
        (item, done)
    };
    let mut processed = stream::iter(next).map(process).buffer_unordered(WORKERS);
    while let Some((item, done)) = processed.next().await {
        match done {
            Ok(more) => {
                queue.done(&item);
                queue.extend(more);
            }
            Err(error) => {
                tracing::debug!(?item, %error, "an object could not be collected yet");
                queue.failed(item, Instant::now());
            }
        }
    }
}

async fn process_dependent(handlers: &Handlers, graph: &Graph, key: &Key) -> Result<(), ApiError> {
    // A kind that is not served yet may be served later.
    let found = StoredObject::at(handlers, key).ok_or(ApiError::NoSuchResource)?;
    let Some(entry) = handlers.objects().store().get(key).await? else { return Ok(()) };
    let Some(node) = Node::of(&entry.value) else { return Ok(()) };
    let classification = Classification::of(handlers, graph, node, &found.namespace).await?;
    match &classification.action {
        DependentAction::Keep => Ok(()),
        DependentAction::RemoveOwners(_) | DependentAction::Delete(_) => {
            let uid = classification.node.uid.clone();
            found.change(handlers, GcStep::AttemptToDelete(classification, graph), &uid).await
        }
    }
}

/// Processes an owner that is being deleted, and returns more work.
async fn process_owner(handlers: &Handlers, graph: &Graph, key: &Key) -> Result<Vec<Work>, ApiError> {
    // A kind that is not served yet may be served later.
    let found = StoredObject::at(handlers, key).ok_or(ApiError::NoSuchResource)?;
    let Some(entry) = handlers.objects().store().get(key).await? else { return Ok(Vec::new()) };
    let Some(node) = Node::of(&entry.value) else { return Ok(Vec::new()) };
    let dependents = graph.dependents(&node.uid);
    match node.waits_for {
        Some(Propagation::Orphan) => {
            for (key, _) in dependents {
                // A dependent of a kind that is not served must not keep the reference: when the kind is served again, its
                // owner would be gone, and it would be deleted though it should be orphaned.
                let dependent = StoredObject::at(handlers, &key).ok_or(ApiError::NoSuchResource)?;
                dependent.change(handlers, GcStep::RemoveOwners(vec![node.uid.clone()]), "").await?;
            }
            found.change(handlers, GcStep::RemoveFinalizer(ORPHAN), &node.uid).await?;
        }
        Some(Propagation::Foreground) if dependents.iter().any(|(_, blocks)| *blocks) => {
            return Ok(dependents.into_iter().map(|(key, _)| Work::Dependent(key)).collect());
        }
        Some(Propagation::Foreground) => found.change(handlers, GcStep::RemoveFinalizer(FOREGROUND), &node.uid).await?,
        Some(Propagation::Background) | None => {}
    }
    Ok(Vec::new())
}

/// The resource, namespace and name of a key.
struct StoredObject {
    resource: Arc<Resource>,
    version: GroupVersion,
    namespace: String,
    name: String,
}

impl StoredObject {
    fn at(handlers: &Handlers, key: &Key) -> Option<Self> {
        let text = std::str::from_utf8(key.as_ref()).ok()?;
        let registry = handlers.registry();
        let resource = registry
            .resources()
            .iter()
            .find(|resource| resource.storage.as_ref().is_some_and(|storage| text.starts_with(&storage.folder())))?;
        let storage = resource.storage.as_ref()?;
        let rest = text.strip_prefix(&storage.folder())?;
        let (namespace, name) = rest.split_once('/').unwrap_or(("", rest));
        Some(StoredObject {
            version: storage.encoding().version.clone(),
            resource: resource.clone(),
            namespace: namespace.to_string(),
            name: name.to_string(),
        })
    }

    async fn change(&self, handlers: &Handlers, step: GcStep<'_>, uid: &str) -> Result<(), ApiError> {
        let object_ref = ObjectRef {
            resource: &self.resource,
            version: &self.version,
            namespace: &self.namespace,
            name: &self.name,
        };
        let call = Call { handlers, request: Request::by_controller(ACCOUNT, self.resource.clone(), object_ref) };
        let mut decision = GcDecision { call, step, uid, attempts: 0 };
        handlers.objects().change(object_ref, &mut decision).await.map(drop)
    }
}

/// What the collector does to one object.
enum GcStep<'a> {
    /// Acts on the classification of the owners of a dependent.
    AttemptToDelete(Classification, &'a Graph),
    RemoveOwners(Vec<String>),
    RemoveFinalizer(&'static str),
}

struct GcDecision<'a> {
    call: Call<'a>,
    step: GcStep<'a>,
    /// The uid that the object must have, unless it is empty.
    uid: &'a str,
    /// How many times it was decided.
    attempts: usize,
}

impl GcDecision<'_> {
    /// Acts on the classification. If the object has changed since, its owners are classified again.
    async fn attempt_to_delete(&mut self, object: &Object) -> Result<ObjectChange, ApiError> {
        let GcStep::AttemptToDelete(classification, graph) = &mut self.step else { return Ok(ObjectChange::Keep) };
        let Some(node) = Node::of_object(object) else { return Ok(ObjectChange::Keep) };
        self.attempts += 1;
        if self.attempts > MAX_ATTEMPTS {
            let message = "its owners could not be classified consistently yet".into();
            return Err(ApiError::Unavailable { message, retry_after: RETRY });
        }
        if self.attempts > 1 || classification.node != node {
            *classification = Classification::of(self.call.handlers, graph, node, &self.call.target.namespace).await?;
        }
        let (uid, action) = (&classification.node.uid, &classification.action);
        let propagation = match action {
            DependentAction::Keep => return Ok(ObjectChange::Keep),
            DependentAction::RemoveOwners(uids) => return Ok(without_owners(object, uids)),
            DependentAction::Delete(propagation) => *propagation,
        };
        // Its owner waits for it, and it would wait for an object that waits already: break the cycle.
        let cycle = propagation == Propagation::Foreground && graph.in_cycle(uid);
        let unblocked = if cycle { unblocked(object) } else { ObjectChange::Keep };
        let going = if let ObjectChange::Write(unblocked) = &unblocked { unblocked } else { object };
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        let strategy = self.call.resource.strategy.as_ref();
        let change = deletion::decide(strategy, going, &options, restow_host::now());
        if matches!(change, ObjectChange::Keep) {
            return Ok(unblocked);
        }
        self.call.handlers.check_deletion(&self.call.resource, object).await?;
        admission::admit_removal(&self.call.admission(), object, DryRun::No).await?;
        Ok(change)
    }
}

#[async_trait]
impl ObjectDecision for GcDecision<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(object) = before.filter(|object| self.uid.is_empty() || object.uid() == self.uid) else {
            return Ok(ObjectChange::Keep);
        };
        Ok(match &self.step {
            GcStep::AttemptToDelete(..) => self.attempt_to_delete(object).await?,
            GcStep::RemoveFinalizer(finalizer) => {
                deletion::without_finalizer(self.call.resource.strategy.as_ref(), object, finalizer)
            }
            GcStep::RemoveOwners(uids) => without_owners(object, uids),
        })
    }

    fn conditions(&self) -> Vec<Compare> {
        match &self.step {
            GcStep::AttemptToDelete(classification, _) => classification.preconditions.clone(),
            GcStep::RemoveOwners(_) | GcStep::RemoveFinalizer(_) => Vec::new(),
        }
    }
}

fn unblocked(object: &Object) -> ObjectChange {
    let mut changed = object.clone();
    let owners = changed.metadata_mut().get_mut("ownerReferences").and_then(Value::as_array_mut);
    for owner in owners.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true) {
        owner["blockOwnerDeletion"] = false.into();
    }
    if changed == *object { ObjectChange::Keep } else { ObjectChange::Write(changed) }
}

fn without_owners(object: &Object, uids: &[String]) -> ObjectChange {
    let lost = |owner: &Value| uids.iter().any(|uid| owner["uid"] == uid.as_str());
    let owners = object.at(&["metadata", "ownerReferences"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let kept: Vec<Value> = owners.iter().filter(|owner| !lost(owner)).cloned().collect();
    if kept.len() == owners.len() {
        return ObjectChange::Keep;
    }
    let mut changed = object.clone();
    match kept.is_empty() {
        true => drop(changed.metadata_mut().remove("ownerReferences")),
        false => drop(changed.metadata_mut().insert("ownerReferences".into(), kept.into())),
    }
    ObjectChange::Write(changed)
}
