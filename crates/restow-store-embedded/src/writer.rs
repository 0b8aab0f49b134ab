//! The writer thread: group commit. It takes all queued transactions, applies them in order, and commits them as one batch
//! with one sync. The more clients write, the more of them share a sync.

use crate::compactor;
use crate::disk_space::DiskSpace;
use crate::engine::{Durability, Engine, explain};
use crate::fingerprint::Fingerprint;
use crate::index::Slot;
use crate::layout::Record;
use crate::pending::{Pending, PendingChange, milliseconds, value_bytes};
use crate::reopen::{self, Check, WriteFailure};
use crate::shared::SharedState;
use crate::witness::Witness;
use restow_host::SteadyClock;
use restow_store::{Compare, Key, Revision, StoreError, Txn, TxnOutcome};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// The most transactions in one batch.
const BATCH_TXNS: usize = 1024;
/// The size of a batch's values at which no more transactions are added.
const BATCH_BYTES: usize = 4 << 20;
/// The most expired keys that one batch deletes.
const BATCH_EXPIRIES: usize = 256;
/// The longest time that the thread waits for transactions before it looks for expired keys and checks the engine.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// How often the thread looks whether a check has finished.
const CHECK_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A request to the writer.
pub(crate) enum Job {
    Txn { txn: Txn, reply: oneshot::Sender<Result<TxnOutcome, StoreError>>, _permit: OwnedSemaphorePermit },
    Compact { revision: Revision, reply: oneshot::Sender<Result<(), StoreError>> },
    Stop,
}

/// The state of the writer thread.
pub(crate) struct Writer {
    shared: Arc<SharedState>,
    space: DiskSpace,
    compactor: Sender<compactor::Command>,
    /// Decides when keys expire. Their deadlines survive the process, so they are wall-clock times; but a wall clock that is
    /// set forward must not expire keys early.
    clock: SteadyClock,
    /// The last acknowledged state.
    acknowledged: Acknowledged,
    /// The failure since which nothing can be written, if there is one.
    write_failure: Option<WriteFailure>,
    /// The check of the files after a failure, while it runs.
    check: Option<Check>,
}

/// The fingerprint of the last acknowledged state, and the witness that records it.
pub(crate) struct Acknowledged {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) witness: Witness,
}

type StagedReply = (oneshot::Sender<Result<TxnOutcome, StoreError>>, Result<TxnOutcome, StoreError>);

impl Writer {
    pub(crate) fn new(
        shared: Arc<SharedState>,
        acknowledged: Acknowledged,
        space: DiskSpace,
        compactor: Sender<compactor::Command>,
    ) -> Self {
        let clock = SteadyClock::beginning_at(SystemTime::now());
        Writer { shared, space, compactor, clock, acknowledged, write_failure: None, check: None }
    }

    /// Runs until [`Job::Stop`].
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
                        self.sync_witness();
                        return;
                    }
                    Job::Compact { revision, reply } => {
                        self.commit(std::mem::take(&mut txns));
                        // The caller may not wait any more.
                        let _ = reply.send(self.compact(revision));
                    }
                    Job::Txn { txn, reply, .. } => {
                        bytes += value_bytes(&txn);
                        txns.push((txn, reply));
                    }
                }
                if txns.len() < BATCH_TXNS && bytes < BATCH_BYTES {
                    next = jobs.try_recv().ok();
                }
            }
            let idle = txns.is_empty();
            self.commit(txns);
            if idle {
                self.sync_witness();
            }
            self.maintain_engine();
        }
    }

    /// Reopens the engine after a failed write, and deletes obsolete files while disk space is low.
    fn maintain_engine(&mut self) {
        let engine = self.shared.engine().ok();
        self.space.refresh(engine.as_deref());
        if let (None, Some(engine)) = (&self.write_failure, engine) {
            let checked =
                if self.space.should_delete_obsolete_files() { engine.delete_obsolete_files() } else { engine.check() };
            if let Err(error) = checked {
                self.fail(&error, Vec::new());
            }
        }
        self.try_reopen();
        let not_ready = match &self.write_failure {
            Some(write_failure) => Some(read_only(&write_failure.reason)),
            None => self.space.may_grow().err(),
        };
        self.shared.set_not_ready(not_ready);
    }

    /// Reopens the engine after a failed write: checks its files first, on another thread, as soon as there is disk space.
    fn try_reopen(&mut self) {
        if let Some(check) = self.check.take_if(|check| check.is_finished()) {
            let checked = check.join().unwrap_or_else(|_| Err("the check of the files panicked".into()));
            let reopened = checked.and_then(|()| self.reopen());
            if let Err(error) = reopened {
                tracing::warn!(error, "the store could not be reopened for writing; it is tried again");
            }
            return;
        }
        let due = self.check.is_none() && self.write_failure.as_mut().is_some_and(WriteFailure::is_due);
        if !due || self.space.may_grow().is_err() {
            return;
        }
        match reopen::start_check(&self.shared) {
            Ok(check) => self.check = Some(check),
            Err(error) => tracing::warn!(%error, "could not start a thread to check the store; it is tried again"),
        }
    }

    /// Reopens the engine, and publishes those writes of unknown outcome that turn out to be on disk.
    fn reopen(&mut self) -> Result<(), String> {
        let fingerprint = reopen::reopen(&self.shared)?;
        let changes = reopen::unpublished_changes(&self.shared).map_err(|error| error.to_string())?;
        self.resume(fingerprint, changes);
        Ok(())
    }

    fn resume(&mut self, fingerprint: Fingerprint, changes: Vec<PendingChange>) {
        tracing::info!(
            found = changes.len(),
            "the store is writable again; changes of unknown outcome were found on disk"
        );
        self.write_failure = None;
        self.publish(changes, fingerprint.revision);
        self.acknowledged.fingerprint = fingerprint;
        if fingerprint.compacted > self.shared.index().compacted() {
            self.shared.index_mut().set_compacted(fingerprint.compacted);
        }
        if fingerprint.compacted > Revision::ZERO {
            // The compactor stopped when the engine failed.
            let _ = self.compactor.send(compactor::Command::UpTo(fingerprint.compacted));
        }
    }

    fn sync_witness(&mut self) {
        if let Err(error) = self.acknowledged.witness.sync() {
            self.fail(&fjall::Error::Io(error), Vec::new());
        }
    }

    fn sleep(&self) -> Duration {
        let now = milliseconds(self.clock.now());
        let wait = self.shared.index().next_expiry().map(|due| Duration::from_millis(due.saturating_sub(now)));
        // A minimum wait lets keys that expire together share a batch, and prevents a busy loop if one cannot be deleted.
        let wait = wait.map_or(MAX_SLEEP, |wait| wait.clamp(Duration::from_millis(20), MAX_SLEEP));
        let wait = wait.min(self.space.refresh_interval());
        if self.check.is_some() { wait.min(CHECK_POLL_INTERVAL) } else { wait }
    }

    fn commit(&mut self, txns: Vec<(Txn, oneshot::Sender<Result<TxnOutcome, StoreError>>)>) {
        let now = self.clock.now();
        let expired = self.shared.index().expired(milliseconds(now), BATCH_EXPIRIES);
        if txns.is_empty() && expired.is_empty() {
            return;
        }
        let (changes, revision, waiting) = self.stage(txns, expired, now);
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

    fn stage(
        &mut self,
        txns: Vec<(Txn, oneshot::Sender<Result<TxnOutcome, StoreError>>)>,
        expired: Vec<(Key, Revision)>,
        now: SystemTime,
    ) -> (Vec<PendingChange>, Revision, Vec<StagedReply>) {
        self.space.refresh(self.shared.engine().ok().as_deref());
        let write_failure = self.write_failure.as_ref().map(|write_failure| read_only(&write_failure.reason));
        let open_snapshot = || self.shared.snapshot();
        let index = self.shared.index();
        let mut pending = Pending::new(&index, &open_snapshot);
        if write_failure.is_none() && self.space.may_write().is_ok() {
            for (key, revision) in expired {
                let expiry = Txn::new().when(Compare::mod_revision(&key, revision)).delete(&key);
                if let Err(error) = pending.apply(expiry, now) {
                    tracing::warn!(%key, %error, "an expired key could not be deleted");
                }
            }
        }
        let mut waiting = Vec::with_capacity(txns.len());
        for (txn, reply) in txns {
            let answer = match &write_failure {
                Some(error) if !txn.then.is_empty() => Err(error.clone()),
                _ => self.space.admit(&txn).and_then(|()| pending.apply(txn, now)),
            };
            waiting.push((reply, answer));
        }
        let revision = pending.revision();
        (pending.into_changes(), revision, waiting)
    }

    fn write(&mut self, changes: &[PendingChange], revision: Revision) -> fjall::Result<()> {
        let engine = self.engine()?;
        let mut fingerprint = Fingerprint { revision, ..self.acknowledged.fingerprint };
        let mut batch = engine.batch(Durability::Synced);
        let mut last: HashMap<&Key, Option<&Slot>> = HashMap::new();
        for change in changes {
            let record = match &change.current {
                Some(Slot { state, value }) => Record::Put { state: *state, value: value.clone().unwrap_or_default() },
                None => Record::Deleted,
            };
            batch.put_version(&change.key, change.revision, change.position, &record);
            last.insert(&change.key, change.current.as_ref());
            if let Some(previous) = &change.previous {
                fingerprint.remove(&change.key, &previous.state);
            }
            if let Some(current) = &change.current {
                fingerprint.add(&change.key, &current.state);
            }
        }
        for (key, slot) in last {
            batch.set_key(key, slot.map(|slot| &slot.state));
        }
        batch.set_fingerprint(&fingerprint);
        batch.commit()?;
        self.acknowledged.record(fingerprint)
    }

    fn engine(&self) -> fjall::Result<Arc<Engine>> {
        self.shared.engine().map_err(|_| fjall::Error::Poisoned)
    }

    fn publish(&self, changes: Vec<PendingChange>, revision: Revision) {
        if changes.is_empty() {
            return;
        }
        let slots = changes.iter().map(|change| (change.revision, change.key.clone(), change.current.clone()));
        self.shared.index_mut().publish(revision, slots);
        self.shared.recent_changes.push(changes);
        self.shared.progress.send_modify(|progress| progress.revision = revision);
    }

    /// A write failed: the batch may or may not be on disk. Nothing more is written until the engine is reopened, so that
    /// the disk holds a prefix of what was acknowledged; reopening finds out whether the batch is on disk.
    fn fail(&mut self, error: &fjall::Error, waiting: Vec<StagedReply>) {
        let reason = explain(error);
        tracing::error!(reason, "a write to the disk failed; the store is read-only until it can be reopened");
        // Before the replies are sent: a client that gets one may ask for readiness at once.
        self.shared.set_not_ready(Some(read_only(&reason)));
        for (reply, answer) in waiting {
            let answer = match answer {
                Ok(TxnOutcome::Committed { .. }) => Err(commit_error(error)),
                Ok(TxnOutcome::Refused { .. }) => Err(read_only(&reason)),
                Err(error) => Err(error),
            };
            let _ = reply.send(answer);
        }
        self.write_failure = Some(WriteFailure::new(reason));
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
        if let Some(write_failure) = &self.write_failure {
            return Err(read_only(&write_failure.reason));
        }
        self.space.refresh(self.shared.engine().ok().as_deref());
        self.space.may_write()?;
        if let Err(error) = self.write_compacted(revision) {
            self.fail(&error, Vec::new());
            return Err(commit_error(&error));
        }
        self.shared.index_mut().set_compacted(revision);
        // The compactor has ended only if the store is closing; then the next start compacts.
        let _ = self.compactor.send(compactor::Command::UpTo(revision));
        Ok(())
    }

    fn write_compacted(&mut self, revision: Revision) -> fjall::Result<()> {
        let engine = self.engine()?;
        let fingerprint = Fingerprint { compacted: revision, ..self.acknowledged.fingerprint };
        let mut batch = engine.batch(Durability::Synced);
        batch.set_fingerprint(&fingerprint);
        batch.commit()?;
        self.acknowledged.record(fingerprint)
    }
}

impl Acknowledged {
    /// Records what was written and synced. It must return before clients get their responses.
    fn record(&mut self, fingerprint: Fingerprint) -> fjall::Result<()> {
        self.witness.record(&fingerprint)?;
        self.fingerprint = fingerprint;
        Ok(())
    }
}

fn read_only(reason: &str) -> StoreError {
    StoreError::Unavailable(format!(
        "the store is read-only since a write to the disk failed ({reason}); it recovers by itself when the disk accepts writes"
    ))
}

/// The error for a batch whose commit failed.
fn commit_error(error: &fjall::Error) -> StoreError {
    match error {
        // An engine in which an earlier write failed writes nothing.
        fjall::Error::Poisoned => read_only(&explain(error)),
        _ => StoreError::OutcomeUnknown(format!(
            "a write to the disk failed: {}; the store is read-only until it can be reopened",
            explain(error)
        )),
    }
}
