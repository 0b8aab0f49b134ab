//! How a simulated server reaches the store: every call takes time, and can be lost on the way there or back.

use crate::checks::{Checker, WritingProcess};
use crate::dice::Dice;
use crate::triggers::{Trigger, Triggers};
use async_trait::async_trait;
use futures::{StreamExt, stream};
use restow_host::simulated::Process;
use restow_store::conformance::ModelStore;
use restow_store::{
    Mutation, Put, RangeRequest, RangeResponse, Revision, Store, StoreError, StoreStatus, Txn, TxnOutcome, Watch,
    WatchBatch, WatchRequest,
};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long an identity lease lasts.
const LEASE: Duration = Duration::from_secs(10);
/// A cut that nobody has to mind: an observer that reads again within half of the lease's duration goes on observing.
const SHORT: Duration = Duration::from_secs(5);
/// How long a call waits for a store that cannot be reached.
const DEADLINE: Duration = Duration::from_secs(5);

/// What happens to one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnFault {
    /// It never arrives, and the caller knows.
    Refuse,
    /// It is applied, and the answer is lost.
    LoseAnswer,
    /// The caller gives up, and it is applied this much later.
    ApplyLate(Duration),
    /// It is under way for so long, and the caller waits.
    ArriveLate(Duration),
    /// It is applied, the answer is under way for so long, and the caller waits.
    AnswerLate(Duration),
    /// The server crashes before it is sent.
    CrashBefore,
    /// The server crashes after it was applied.
    CrashAfter,
}

/// To which transaction it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnChoice {
    /// After so many others.
    After(u32),
    /// The next one that writes the report about a resource that users write.
    NextReport,
    /// The next one that writes such an object.
    NextWrite,
}

impl TxnChoice {
    /// Whether it is this transaction.
    fn is_for(self, txn: &Txn) -> bool {
        match self {
            TxnChoice::After(left) => left == 0,
            TxnChoice::NextReport => puts(txn, REPORTS).next().is_some(),
            TxnChoice::NextWrite => puts(txn, OBJECTS).next().is_some(),
        }
    }
}

/// The keys of the StorageVersions of what users write.
const REPORTS: &[&str] = &[
    "/internal.apiserver.k8s.io/storageversions/example.com.widgets",
    "/internal.apiserver.k8s.io/storageversions/discovery.k8s.io.endpointslices",
];
/// The prefixes of the keys of what users write.
const OBJECTS: &[&str] = &["/example.com/widgets/", "/discovery.k8s.io/endpointslices/"];

/// What a transaction writes to such keys.
fn puts<'t>(txn: &'t Txn, prefixes: &'static [&str]) -> impl Iterator<Item = &'t Put> {
    let starts = |put: &Put| prefixes.iter().any(|prefix| put.key.as_bytes().starts_with(prefix.as_bytes()));
    txn.then.iter().filter_map(move |mutation| match mutation {
        Mutation::Put(put) if starts(put) => Some(put),
        _ => None,
    })
}

/// Whether it records that the servers agree on the version of something that users write.
fn concludes_agreement(txn: &Txn) -> bool {
    let agrees = |put: &Put| {
        let object: Value = serde_json::from_slice(&put.value).unwrap_or_default();
        !object["status"]["commonEncodingVersion"].is_null()
    };
    puts(txn, REPORTS).any(agrees)
}

/// The link between one server and the store.
#[derive(Default)]
pub(crate) struct Link {
    state: Mutex<LinkState>,
    changed: Notify,
}

#[derive(Default)]
struct LinkState {
    /// From when to when nothing passed.
    cuts: Vec<(Instant, Instant)>,
    watches_stall_until: Option<Instant>,
    slow_until: Option<Instant>,
    /// How often the watches were broken.
    broken: u64,
    /// What will happen to which transactions.
    faults: Vec<(TxnChoice, TxnFault)>,
}

impl LinkState {
    /// Until when nothing passes.
    fn cut_until(&self) -> Option<Instant> {
        self.cuts.last().map(|(_, until)| *until).filter(|until| *until > Instant::now())
    }
}

impl Link {
    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing passes for so long.
    pub(crate) fn cut(&self, time: Duration) {
        let (mut state, now) = (self.state(), Instant::now());
        match state.cuts.last_mut().filter(|(_, until)| *until > now) {
            // It takes the place of a cut that is under way.
            Some((_, until)) => *until = now + time,
            None => state.cuts.push((now, now + time)),
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Every message is slow for so long.
    pub(crate) fn slow_down(&self, time: Duration) {
        self.state().slow_until = Some(Instant::now() + time);
    }

    fn is_slow(&self) -> bool {
        self.state().slow_until.is_some_and(|until| until > Instant::now())
    }

    /// Whether it was not cut for long in this time.
    fn undisturbed_for(&self, time: Duration) -> bool {
        let state = self.state();
        let long = state.cuts.iter().filter(|(since, until)| *until - *since > SHORT);
        long.map(|(_, until)| *until + time).all(|end| end < Instant::now())
    }

    /// Watches deliver nothing for so long.
    pub(crate) fn stall_watches(&self, time: Duration) {
        self.state().watches_stall_until = Some(Instant::now() + time);
        self.changed.notify_waiters();
    }

    /// All watches end with an error.
    pub(crate) fn break_watches(&self) {
        self.state().broken += 1;
        self.changed.notify_waiters();
    }

    /// Something will happen to a transaction.
    pub(crate) fn plan_fault(&self, choice: TxnChoice, fault: TxnFault) {
        self.state().faults.push((choice, fault));
    }

    /// Everything works again.
    pub(crate) fn heal(&self) {
        let (mut state, now) = (self.state(), Instant::now());
        let mut cuts = std::mem::take(&mut state.cuts);
        cuts.iter_mut().for_each(|(_, until)| *until = (*until).min(now));
        *state = LinkState { broken: state.broken, cuts, ..LinkState::default() };
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits while the link is cut, at most until the deadline.
    async fn pass(&self) -> Result<(), StoreError> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let changed = self.changed.notified();
            let until = self.state().cut_until();
            let Some(until) = until else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(StoreError::Unavailable("no answer in time".into()));
            }
            let _ = tokio::time::timeout_at(until.min(deadline), changed).await;
        }
    }

    /// Waits while watches stall; whether they were broken since.
    async fn watch_passes(&self, broken: u64) -> bool {
        loop {
            let changed = self.changed.notified();
            let until = {
                let state = self.state();
                if state.broken != broken {
                    return false;
                }
                state.watches_stall_until.filter(|until| *until > Instant::now()).max(state.cut_until())
            };
            let Some(until) = until else { return true };
            let _ = tokio::time::timeout_at(until, changed).await;
        }
    }

    fn next_fault(&self, txn: &Txn) -> Option<TxnFault> {
        let mut state = self.state();
        let due = state.faults.iter().position(|(choice, _)| choice.is_for(txn));
        for (choice, _) in &mut state.faults {
            if let TxnChoice::After(left) = choice {
                *left = left.saturating_sub(1);
            }
        }
        due.map(|due| state.faults.remove(due).1)
    }
}

/// The store as one process reaches it.
pub(crate) struct StoreClient {
    pub(crate) store: Arc<ModelStore>,
    pub(crate) writer: WritingProcess,
    pub(crate) process: Arc<Process>,
    pub(crate) link: Arc<Link>,
    pub(crate) dice: Arc<Dice>,
    pub(crate) checker: Arc<Checker>,
    pub(crate) triggers: Arc<Triggers>,
}

impl StoreClient {
    /// Waits as long as a message is under way.
    async fn travel(&self) {
        self.dice.under_way().await;
        if self.link.is_slow() {
            self.dice.slowly_under_way().await;
        }
    }

    /// The process as it is now, when it decides to write.
    fn writer(&self) -> WritingProcess {
        let is_observant = self.link.undisturbed_for(LEASE) && self.process.ran_for(LEASE);
        WritingProcess { is_observant, ..self.writer }
    }

    fn fire_triggers(&self, txn: &Txn) {
        let triggers = txn.then.iter().filter_map(|mutation| Trigger::of_key(mutation.key().as_bytes()));
        triggers.for_each(|trigger| self.triggers.fire(trigger));
    }

    async fn crash(&self) -> ! {
        self.process.crash();
        std::future::pending().await
    }
}

#[async_trait]
impl Store for StoreClient {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.travel().await;
        self.link.pass().await?;
        let found = self.store.read(|model| model.range(&request));
        self.travel().await;
        found
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let fault = self.link.next_fault(&txn);
        if fault == Some(TxnFault::CrashBefore) {
            self.crash().await;
        }
        self.fire_triggers(&txn);
        let writer = self.writer();
        self.travel().await;
        if let Some(TxnFault::ArriveLate(late)) = fault {
            tokio::time::sleep(late).await;
        }
        self.link.pass().await?;
        match fault {
            Some(TxnFault::Refuse) => return Err(StoreError::Unavailable("the connection was refused".into())),
            Some(TxnFault::ApplyLate(late)) => {
                let (store, checker) = (self.store.clone(), self.checker.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(late).await;
                    // Nobody waits for the outcome any more.
                    let _ = checker.transaction(&store, Some(writer), txn);
                });
                tokio::time::sleep(DEADLINE.min(late)).await;
                return Err(StoreError::OutcomeUnknown("no answer in time".into()));
            }
            _ => {}
        }
        let agreement = concludes_agreement(&txn);
        let outcome = self.checker.transaction(&self.store, Some(writer), txn);
        if agreement && matches!(outcome, Ok(TxnOutcome::Committed { .. })) {
            self.triggers.fire(Trigger::Agreement);
        }
        match fault {
            Some(TxnFault::CrashAfter) => self.crash().await,
            Some(TxnFault::AnswerLate(late)) => tokio::time::sleep(late).await,
            Some(TxnFault::LoseAnswer) => {
                self.travel().await;
                return Err(StoreError::OutcomeUnknown("the connection was closed".into()));
            }
            _ => {}
        }
        self.travel().await;
        // What is cut off now has been applied.
        match self.link.pass().await {
            Ok(()) => outcome,
            Err(_) => Err(StoreError::OutcomeUnknown("no answer in time".into())),
        }
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.travel().await;
        self.link.pass().await?;
        let watch = self.store.watch(request).await?;
        let broken = self.link.state().broken;
        let (link, dice) = (self.link.clone(), self.dice.clone());
        let delivered = stream::unfold(Some((watch, link, dice)), move |state| async move {
            let (mut watch, link, dice) = state?;
            let batch: Option<Result<WatchBatch, StoreError>> = watch.next().await;
            dice.under_way().await;
            if !link.watch_passes(broken).await {
                return Some((Err(StoreError::Unavailable("the watch was broken".into())), None));
            }
            batch.map(|batch| (batch, Some((watch, link, dice))))
        });
        Ok(Watch::new(delivered.boxed()))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.travel().await;
        self.link.pass().await?;
        self.store.compact(revision).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.travel().await;
        self.link.pass().await?;
        self.store.status().await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.status().await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_cut_counts_for_as_long_as_it_lasts_and_not_as_it_was_planned() {
        let seconds = Duration::from_secs;
        for (planned, replaced_by, undisturbed) in
            [(5, None, true), (6, None, false), (6, Some(1), true), (1, Some(6), false)]
        {
            let link = Link::default();
            tokio::time::sleep(LEASE).await;
            link.cut(seconds(planned));
            if let Some(other) = replaced_by {
                tokio::time::sleep(Duration::from_millis(100)).await;
                link.cut(seconds(other));
            }
            tokio::time::sleep(seconds(7)).await;
            assert_eq!(link.undisturbed_for(LEASE), undisturbed, "{planned} s, then {replaced_by:?}");
            tokio::time::sleep(LEASE).await;
            assert!(link.undisturbed_for(LEASE));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_ends_when_the_link_heals() {
        let link = Link::default();
        link.cut(Duration::from_secs(60));
        tokio::time::sleep(Duration::from_secs(1)).await;
        link.heal();
        assert!(link.undisturbed_for(LEASE), "it was short");
        link.pass().await.unwrap();
    }
}
