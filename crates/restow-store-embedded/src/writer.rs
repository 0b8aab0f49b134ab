//! The thread that writes. It takes every transaction that waits, works them out in order, and commits them with one
//! sync; so the more writers there are, the more of them share it.

use crate::compactor;
use crate::engine::{Durability, explain};
use crate::index::Slot;
use crate::layout::{META_COMPACTED, META_REVISION, Record};
use crate::pending::{Pending, PendingChange, milliseconds};
use crate::space::Space;
use crate::store::Shared;
use restow_clock::SteadyClock;
use restow_store::{Compare, Key, Mutation, Revision, StoreError, Txn, TxnOutcome};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// The most transactions in one batch.
const BATCH_TXNS: usize = 1024;
/// The bytes of values after which a batch is closed.
const BATCH_BYTES: usize = 4 << 20;
/// The most keys that are let expire in one batch.
const BATCH_EXPIRIES: usize = 256;
/// How long the thread sleeps at most before it looks at the clock again.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Something for the writer to do.
pub(crate) enum Job {
    Txn { txn: Txn, reply: oneshot::Sender<Result<TxnOutcome, StoreError>>, _permit: OwnedSemaphorePermit },
    Compact { revision: Revision, reply: oneshot::Sender<Result<(), StoreError>> },
    Stop,
}

/// The writer's own state.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    space: Space,
    compactor: Sender<compactor::Order>,
    /// By this it is told when keys expire. Deadlines outlive the process, so they are times of day; but a wall clock that
    /// jumps must not let them come early.
    clock: SteadyClock,
    /// Why nothing can be written any more, once that is so.
    broken: Option<String>,
}

type Waiting = (oneshot::Sender<Result<TxnOutcome, StoreError>>, Result<TxnOutcome, StoreError>);

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, space: Space, compactor: Sender<compactor::Order>) -> Self {
        Writer { shared, space, compactor, clock: SteadyClock::beginning_at(SystemTime::now()), broken: None }
    }

    /// Works until it is told to stop.
    pub(crate) fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let mut next = match jobs.recv_timeout(self.sleep()) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut txns = Vec::new();
            let mut bytes = 0;
            while let Some(job) = next.take() {
                match job {
                    Job::Stop => {
                        self.commit(txns);
                        return;
                    }
                    Job::Compact { revision, reply } => {
                        self.commit(std::mem::take(&mut txns));
                        // A caller that has gone away needs no answer.
                        let _ = reply.send(self.compact(revision));
                    }
                    Job::Txn { txn, reply, .. } => {
                        bytes += size_of(&txn);
                        txns.push((txn, reply));
                    }
                }
                if txns.len() < BATCH_TXNS && bytes < BATCH_BYTES {
                    next = jobs.try_recv().ok();
                }
            }
            self.commit(txns);
            self.tidy();
        }
    }

    /// While room is scarce, has the engine give back what it can.
    fn tidy(&mut self) {
        self.space.refresh(&self.shared.engine);
        if self.broken.is_some() || !self.space.asks_for_tidying() {
            return;
        }
        if let Err(error) = self.shared.engine.tidy() {
            self.fail(&error, Vec::new());
        }
    }

    fn sleep(&self) -> Duration {
        let now = milliseconds(self.clock.now());
        let wait = self.shared.index().next_expiry().map(|due| Duration::from_millis(due.saturating_sub(now)));
        // A short pause gathers the keys that expire together, and keeps a key that cannot be deleted from spinning.
        let wait = wait.map_or(LONGEST_SLEEP, |wait| wait.clamp(Duration::from_millis(20), LONGEST_SLEEP));
        wait.min(self.space.patience())
    }

    fn commit(&mut self, txns: Vec<(Txn, oneshot::Sender<Result<TxnOutcome, StoreError>>)>) {
        let now = self.clock.now();
        let expired = self.shared.index().expired(milliseconds(now), BATCH_EXPIRIES);
        if txns.is_empty() && expired.is_empty() {
            return;
        }
        let (changes, revision, waiting) = self.work_out(txns, expired, now);
        let outcome = if changes.is_empty() { Ok(()) } else { self.write(&changes, revision) };
        match outcome {
            Ok(()) => {
                self.publish(changes, revision);
                for (reply, answer) in waiting {
                    let _ = reply.send(answer);
                }
            }
            Err(error) => self.fail(&error, waiting),
        }
    }

    fn work_out(
        &mut self,
        txns: Vec<(Txn, oneshot::Sender<Result<TxnOutcome, StoreError>>)>,
        expired: Vec<(Key, Revision)>,
        now: SystemTime,
    ) -> (Vec<PendingChange>, Revision, Vec<Waiting>) {
        self.space.refresh(&self.shared.engine);
        let broken = self.broken.as_deref().map(read_only);
        let open_view = || self.shared.engine.snapshot();
        let index = self.shared.index();
        let mut pending = Pending::new(&index, &open_view);
        if broken.is_none() && self.space.may_write().is_ok() {
            for (key, revision) in expired {
                let expiry = Txn::new().when(Compare::mod_revision(&key, revision)).delete(&key);
                if let Err(error) = pending.apply(expiry, now) {
                    tracing::warn!(%key, %error, "an expired key could not be deleted");
                }
            }
        }
        let mut waiting = Vec::with_capacity(txns.len());
        for (txn, reply) in txns {
            let answer = match &broken {
                Some(error) if !txn.then.is_empty() => Err(error.clone()),
                _ => self.space.admit(&txn).and_then(|()| pending.apply(txn, now)),
            };
            waiting.push((reply, answer));
        }
        let revision = pending.revision();
        (pending.into_changes(), revision, waiting)
    }

    fn write(&self, changes: &[PendingChange], revision: Revision) -> fjall::Result<()> {
        let mut batch = self.shared.engine.batch(Durability::Synced);
        let mut last: HashMap<&Key, Option<&Slot>> = HashMap::new();
        for change in changes {
            let record = match &change.current {
                Some(Slot { state, value }) => Record::Put { state: *state, value: value.clone().unwrap_or_default() },
                None => Record::Deleted,
            };
            batch.put_version(&change.key, change.revision, change.place, &record);
            last.insert(&change.key, change.current.as_ref());
        }
        for (key, slot) in last {
            batch.set_key(key, slot.map(|slot| &slot.state));
        }
        batch.set_number(META_REVISION, revision);
        batch.commit()
    }

    fn publish(&self, changes: Vec<PendingChange>, revision: Revision) {
        if changes.is_empty() {
            return;
        }
        let slots = changes.iter().map(|change| (change.revision, change.key.clone(), change.current.clone()));
        self.shared.index_mut().publish(revision, slots);
        self.shared.recent.push(changes);
        self.shared.progress.send_modify(|progress| progress.revision = revision);
    }

    /// The batch may or may not have reached the disk. Nothing more is written, so that what is on the disk stays a
    /// prefix of what was answered; whoever restarts the store finds out which it was.
    fn fail(&mut self, error: &fjall::Error, waiting: Vec<Waiting>) {
        let reason = explain(error);
        tracing::error!(reason, "writing to the disk failed; the store is read-only until it is opened again");
        for (reply, answer) in waiting {
            let answer = match answer {
                Ok(TxnOutcome::Committed { .. }) => Err(unwritten(error)),
                Ok(TxnOutcome::Refused { .. }) => Err(read_only(&reason)),
                Err(error) => Err(error),
            };
            let _ = reply.send(answer);
        }
        self.broken = Some(reason);
    }

    fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        let (current, compacted) = {
            let index = self.shared.index();
            (index.revision(), index.compacted())
        };
        if revision > current {
            return Err(StoreError::FutureRevision { requested: revision, current });
        }
        if revision <= compacted {
            return Err(StoreError::Compacted { oldest: compacted });
        }
        if let Some(reason) = &self.broken {
            return Err(read_only(reason));
        }
        self.space.refresh(&self.shared.engine);
        self.space.may_write()?;
        let mut batch = self.shared.engine.batch(Durability::Synced);
        batch.set_number(META_COMPACTED, revision);
        if let Err(error) = batch.commit() {
            self.fail(&error, Vec::new());
            return Err(unwritten(&error));
        }
        self.shared.index_mut().set_compacted(revision);
        // The compactor is gone only when the store is closing; then the next start takes the work up.
        let _ = self.compactor.send(compactor::Order::UpTo(revision));
        Ok(())
    }
}

fn read_only(reason: &str) -> StoreError {
    StoreError::Unavailable(format!(
        "the store is read-only since a write to the disk failed ({reason}); mend the disk and restart"
    ))
}

/// What became of a batch that could not be committed.
fn unwritten(error: &fjall::Error) -> StoreError {
    match error {
        // An engine that has given up says so before it writes anything.
        fjall::Error::Poisoned => read_only(&explain(error)),
        _ => StoreError::OutcomeUnknown(format!(
            "writing to the disk failed: {}; the store is read-only until it is opened again",
            explain(error)
        )),
    }
}

/// The bytes of the values that a transaction writes.
pub(crate) fn size_of(txn: &Txn) -> usize {
    let value = |mutation: &Mutation| match mutation {
        Mutation::Put(put) => put.value.len(),
        Mutation::Delete(_) => 0,
    };
    txn.then.iter().map(value).sum()
}
