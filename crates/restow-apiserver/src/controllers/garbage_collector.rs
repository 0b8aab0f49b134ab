//! Deletes what has lost its last owner, and lets owners go that waited for their dependents.
//!
//! It follows the whole store and keeps in memory only what has owners or waits. Every step is decided from the object as
//! it lies in the store at that moment and is bound to its unique id, so that doing it twice, or late, does no harm. That an
//! owner is gone counts only in a transaction that compares it (`judgement.rs`).

mod graph;
mod judgement;
mod queue;

use crate::admission::{self, DryRun};
use crate::controllers::leadership::{Claim, RENEWAL};
use crate::error::ApiError;
use crate::handlers::{Call, Handlers};
use crate::request::Request;
use crate::resource::ObjectRef;
use crate::resource::Resource;
use crate::storage::deletion::{self, DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use crate::storage::format_mark;
use crate::storage::object_store::{Change, Decision};
use async_trait::async_trait;
use futures::{StreamExt, stream};
use graph::{Fate, Graph, Seen, Work};
use judgement::Judgement;
use queue::{Queue, RETRY};
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_store::{
    Change as StoreChange, Compare, Event, Key, KeyRange, RangeRequest, Revision, StoreExt, WatchRequest,
};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Whom webhooks see when they are asked about what is deleted.
const ACCOUNT: &str = "generic-garbage-collector";
/// How long to wait after a failure.
const RESYNC_PERIOD: Duration = Duration::from_millis(500);
/// How often the owners of one object are looked at again at once, where others change them or where a definition has changed
/// of which this server has not heard.
const PATIENCE: usize = 3;
/// How many objects are read at once, and how many are looked at before the claim is.
const PAGE: usize = 500;
/// How many objects are tended to at once: a webhook that is asked about one of them may take long.
const AT_ONCE: usize = 16;

/// Collects garbage until the server stops, whenever it is this server's turn.
pub(crate) async fn collect_garbage(handlers: Arc<Handlers>) {
    let Ok(claim) = Claim::to("garbage-collector", handlers.objects().store().clone()) else { return };
    tokio::select! {
        () = hold_and_collect(&handlers, &claim) => {}
        // Another server takes over at once, and need not wait until the claim expires.
        () = handlers.core.stopping() => claim.release().await,
    }
}

async fn hold_and_collect(handlers: &Handlers, claim: &Claim) {
    loop {
        let pause = match claim.renew().await {
            Ok(true) => match collect(handlers, claim).await {
                Err(ApiError::UnusableStore(reason)) => {
                    tracing::error!(reason, "no garbage is collected");
                    RENEWAL
                }
                Err(error) => {
                    tracing::debug!(%error, "collecting garbage was interrupted");
                    RESYNC_PERIOD
                }
                Ok(()) => RESYNC_PERIOD,
            },
            Ok(false) => RENEWAL,
            Err(_) => RESYNC_PERIOD,
        };
        tokio::time::sleep(pause).await;
    }
}

/// Collects until the claim or the place in the store's history is lost.
async fn collect(handlers: &Handlers, claim: &Claim) -> Result<(), ApiError> {
    let mut graph = Graph::default();
    let mut queue = Queue::default();
    let revision = handlers.objects().store().status().await?.revision;
    scan(handlers, revision, &mut graph, &mut queue).await?;
    let request = WatchRequest::from(KeyRange::all(), revision.next()).with_previous();
    let mut watch = handlers.objects().store().watch(request).await?;
    let mut renewed = Instant::now();
    loop {
        work(handlers, &graph, &mut queue).await;
        if renewed.elapsed() > RENEWAL {
            if !claim.renew().await? {
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
                    if let StoreChange::Put(entry) = &event.change {
                        check_owner(handlers, &entry.key)?;
                    }
                    queue.extend(note(&mut graph, &event));
                }
            }
        }
    }
}

/// Looks at everything that is stored, a page at a time: also at kinds that this server does not serve yet.
async fn scan(handlers: &Handlers, revision: Revision, graph: &mut Graph, queue: &mut Queue) -> Result<(), ApiError> {
    let mut range = KeyRange::all();
    loop {
        let request = RangeRequest::new(range.clone()).at(revision).limit(PAGE);
        let page = handlers.objects().store().range(request).await?;
        for entry in &page.entries {
            check_owner(handlers, &entry.key)?;
            if let Some(seen) = Seen::of(&entry.value) {
                queue.extend(graph.put(&entry.key, seen));
            }
        }
        match page.entries.last().filter(|_| page.more) {
            Some(last) => range = range.after(&last.key),
            None => return Ok(()),
        }
    }
}

/// Makes sure that a key may be one of ours. Where somebody else has begun to use the store, an owner may lie in a place of
/// which we know nothing, so nothing is collected at all.
fn check_owner(handlers: &Handlers, key: &Key) -> Result<(), ApiError> {
    match format_mark::may_be_ours(key, |group| format_mark::groups_of(&handlers.registry()).contains(group)) {
        true => Ok(()),
        false => Err(ApiError::UnusableStore(format!("somebody else uses the store too: {key} lies there"))),
    }
}

fn note(graph: &mut Graph, event: &Event) -> Vec<Work> {
    match &event.change {
        StoreChange::Put(entry) => Seen::of(&entry.value).map(|seen| graph.put(&entry.key, seen)).unwrap_or_default(),
        StoreChange::Delete(key) => {
            let before = event.previous.as_ref().and_then(|entry| Seen::of(&entry.value)).unwrap_or_default();
            graph.remove(key, &before.uid)
        }
    }
}

/// Does some of what there is to do.
async fn work(handlers: &Handlers, graph: &Graph, queue: &mut Queue) {
    let next = queue.take(PAGE, Instant::now());
    let tend = |item: Work| async move {
        let done = match &item {
            Work::Dependent(key) => tend_dependent(handlers, graph, key).await.map(|()| Vec::new()),
            Work::Owner(key) => tend_owner(handlers, graph, key).await,
        };
        (item, done)
    };
    let mut tended = stream::iter(next).map(tend).buffer_unordered(AT_ONCE);
    while let Some((item, done)) = tended.next().await {
        match done {
            Ok(more) => {
                queue.done(&item);
                queue.extend(more);
            }
            Err(error) => {
                tracing::debug!(?item, %error, "this could not be collected yet");
                queue.failed(item, Instant::now());
            }
        }
    }
}

async fn tend_dependent(handlers: &Handlers, graph: &Graph, key: &Key) -> Result<(), ApiError> {
    // A kind that is not served yet may be served later.
    let found = Found::at(handlers, key).ok_or(ApiError::NoSuchResource)?;
    let Some(entry) = handlers.objects().store().get(key).await? else { return Ok(()) };
    let Some(seen) = Seen::of(&entry.value) else { return Ok(()) };
    let judgement = Judgement::of(handlers, graph, seen, &found.namespace).await?;
    match &judgement.fate {
        Fate::Stays => Ok(()),
        Fate::LosesOwners(_) | Fate::Goes(_) => {
            let uid = judgement.seen.uid.clone();
            found.change(handlers, Step::Carry(judgement, graph), &uid).await
        }
    }
}

/// Does what there is to do about an owner, and returns what comes next.
async fn tend_owner(handlers: &Handlers, graph: &Graph, key: &Key) -> Result<Vec<Work>, ApiError> {
    // A kind that is not served yet may be served later.
    let found = Found::at(handlers, key).ok_or(ApiError::NoSuchResource)?;
    let Some(entry) = handlers.objects().store().get(key).await? else { return Ok(Vec::new()) };
    let Some(seen) = Seen::of(&entry.value) else { return Ok(Vec::new()) };
    let dependents = graph.dependents(&seen.uid);
    match seen.waits_for {
        Some(Propagation::Orphan) => {
            for (key, _) in dependents {
                // One of a kind that is not served must not be left with the reference: when the kind is served again, its
                // owner would be gone, and it would be deleted though it was to be kept.
                let dependent = Found::at(handlers, &key).ok_or(ApiError::NoSuchResource)?;
                dependent.change(handlers, Step::LoseOwners(vec![seen.uid.clone()]), "").await?;
            }
            found.change(handlers, Step::Release(ORPHAN), &seen.uid).await?;
        }
        Some(Propagation::Foreground) if dependents.iter().any(|(_, blocks)| *blocks) => {
            return Ok(dependents.into_iter().map(|(key, _)| Work::Dependent(key)).collect());
        }
        Some(Propagation::Foreground) => found.change(handlers, Step::Release(FOREGROUND), &seen.uid).await?,
        Some(Propagation::Background) | None => {}
    }
    Ok(Vec::new())
}

/// An object by its key.
struct Found {
    resource: Arc<Resource>,
    version: GroupVersion,
    namespace: String,
    name: String,
}

impl Found {
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
        Some(Found {
            version: storage.encoding().version.clone(),
            resource: resource.clone(),
            namespace: namespace.to_string(),
            name: name.to_string(),
        })
    }

    async fn change(&self, handlers: &Handlers, step: Step<'_>, uid: &str) -> Result<(), ApiError> {
        let place = ObjectRef {
            resource: &self.resource,
            version: &self.version,
            namespace: &self.namespace,
            name: &self.name,
        };
        let call = Call { handlers, request: Request::by_controller(ACCOUNT, self.resource.clone(), place) };
        let mut collecting = Collecting { call, step, uid, asked: 0 };
        handlers.objects().change(place, &mut collecting).await.map(drop)
    }
}

/// What is done to one object.
enum Step<'a> {
    /// What became clear about a dependent.
    Carry(Judgement, &'a Graph),
    LoseOwners(Vec<String>),
    Release(&'static str),
}

struct Collecting<'a> {
    call: Call<'a>,
    step: Step<'a>,
    /// The object must still be this one, unless it is empty.
    uid: &'a str,
    /// How often it was asked.
    asked: usize,
}

impl Collecting<'_> {
    /// Carries out what was judged. Whatever changed since then is judged anew.
    async fn carry(&mut self, object: &Object) -> Result<Change, ApiError> {
        let Step::Carry(judgement, graph) = &mut self.step else { return Ok(Change::Keep) };
        let Some(seen) = Seen::of_object(object) else { return Ok(Change::Keep) };
        self.asked += 1;
        if self.asked > PATIENCE {
            let message = "what its owners are is not known for certain here yet".into();
            return Err(ApiError::Unavailable { message, retry_after: RETRY });
        }
        if self.asked > 1 || judgement.seen != seen {
            *judgement = Judgement::of(self.call.handlers, graph, seen, &self.call.target.namespace).await?;
        }
        let (uid, fate) = (&judgement.seen.uid, &judgement.fate);
        let propagation = match fate {
            Fate::Stays => return Ok(Change::Keep),
            Fate::LosesOwners(uids) => return Ok(without_owners(object, uids)),
            Fate::Goes(propagation) => *propagation,
        };
        // Its owner waits for it, and it would wait for something that waits already: one must let go.
        let circle = propagation == Propagation::Foreground && graph.in_circle(uid);
        let unblocked = if circle { unblocked(object) } else { Change::Keep };
        let going = if let Change::Write(unblocked) = &unblocked { unblocked } else { object };
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        let strategy = self.call.resource.strategy.as_ref();
        let change = deletion::decide(strategy, going, &options, jiff::Timestamp::now());
        if matches!(change, Change::Keep) {
            return Ok(unblocked);
        }
        admission::admit_removal(&self.call.admission(), object, DryRun::No).await?;
        Ok(change)
    }
}

#[async_trait]
impl Decision for Collecting<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let Some(object) = before.filter(|object| self.uid.is_empty() || object.uid() == self.uid) else {
            return Ok(Change::Keep);
        };
        Ok(match &self.step {
            Step::Carry(..) => self.carry(object).await?,
            Step::Release(finalizer) => {
                deletion::without_finalizer(self.call.resource.strategy.as_ref(), object, finalizer)
            }
            Step::LoseOwners(uids) => without_owners(object, uids),
        })
    }

    fn conditions(&self) -> Vec<Compare> {
        match &self.step {
            Step::Carry(judgement, _) => judgement.premises.clone(),
            Step::LoseOwners(_) | Step::Release(_) => Vec::new(),
        }
    }
}

fn unblocked(object: &Object) -> Change {
    let mut changed = object.clone();
    let owners = changed.metadata_mut().get_mut("ownerReferences").and_then(Value::as_array_mut);
    for owner in owners.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true) {
        owner["blockOwnerDeletion"] = false.into();
    }
    if changed == *object { Change::Keep } else { Change::Write(changed) }
}

fn without_owners(object: &Object, uids: &[String]) -> Change {
    let lost = |owner: &Value| uids.iter().any(|uid| owner["uid"] == uid.as_str());
    let owners = object.at(&["metadata", "ownerReferences"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let kept: Vec<Value> = owners.iter().filter(|owner| !lost(owner)).cloned().collect();
    if kept.len() == owners.len() {
        return Change::Keep;
    }
    let mut changed = object.clone();
    match kept.is_empty() {
        true => drop(changed.metadata_mut().remove("ownerReferences")),
        false => drop(changed.metadata_mut().insert("ownerReferences".into(), kept.into())),
    }
    Change::Write(changed)
}
