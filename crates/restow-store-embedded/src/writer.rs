//! The thread that writes. It takes every transaction that waits, works them out in order, and commits them with one
//! sync; so the more writers there are, the more of them share it.

use crate::account::Account;
use crate::compactor;
use crate::engine::{Durability, Engine, explain};
use crate::index::Slot;
use crate::layout::Record;
use crate::pending::{Pending, PendingChange, milliseconds};
use crate::reopening::{self, Broken, Check};
use crate::space::Space;
use crate::store::Shared;
use crate::witness::Witness;
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

/// How often it looks whether a check is over.
const CHECK_PAUSE: Duration = Duration::from_millis(50);

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
    /// What was acknowledged so far.
    ledger: Ledger,
    /// Why nothing can be written, for as long as that is so.
    broken: Option<Broken>,
    /// Whether it can go on, which is being found out.
    check: Option<Check>,
}

/// What the store holds, and who testifies to it.
pub(crate) struct Ledger {
    pub(crate) account: Account,
    pub(crate) witness: Witness,
}

type Waiting = (oneshot::Sender<Result<TxnOutcome, StoreError>>, Result<TxnOutcome, StoreError>);

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, ledger: Ledger, space: Space, compactor: Sender<compactor::Order>) -> Self {
        let clock = SteadyClock::beginning_at(SystemTime::now());
        Writer { shared, space, compactor, clock, ledger, broken: None, check: None }
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
                        self.sync_witness();
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
            let idle = txns.is_empty();
            self.commit(txns);
            if idle {
                self.sync_witness();
            }
            self.look_after_the_engine();
        }
    }

    /// Opens an engine that has given up again, and while room is scarce, has it give back what it can.
    fn look_after_the_engine(&mut self) {
        let engine = self.shared.engine().ok();
        self.space.refresh(engine.as_deref());
        if let (None, Some(engine)) = (&self.broken, engine) {
            let tidied = if self.space.asks_for_tidying() { engine.tidy() } else { engine.check() };
            if let Err(error) = tidied {
                self.fail(&error, Vec::new());
            }
        }
        self.heal();
        let obstacle = match &self.broken {
            Some(broken) => Some(read_only(&broken.reason)),
            None => self.space.may_grow().err(),
        };
        self.shared.set_obstacle(obstacle);
    }

    /// Opens the engine again after a failed write, as soon as there is room.
    fn heal(&mut self) {
        if let Some(check) = self.check.take_if(|check| check.is_finished()) {
            let checked = check.join().unwrap_or_else(|_| Err("looking at the files failed".into()));
            let reopened = checked.and_then(|()| self.reopen());
            if let Err(error) = reopened {
                tracing::warn!(error, "the store cannot be written to yet; it is tried again");
            }
            return;
        }
        let due = self.check.is_none() && self.broken.as_mut().is_some_and(Broken::is_due);
        if !due || self.space.may_grow().is_err() {
            return;
        }
        match reopening::begin_check(&self.shared) {
            Ok(check) => self.check = Some(check),
            Err(error) => tracing::warn!(%error, "no thread can be started; it is tried again"),
        }
    }

    /// Opens the engine again. Whatever became of the writes whose outcome was unknown is found out, and published.
    fn reopen(&mut self) -> Result<(), String> {
        let account = reopening::reopen(&self.shared)?;
        let changes = reopening::unpublished_changes(&self.shared).map_err(|error| error.to_string())?;
        self.go_on(account, changes);
        Ok(())
    }

    fn go_on(&mut self, account: Account, changes: Vec<PendingChange>) {
        tracing::info!(
            found = changes.len(),
            "the store can be written to again; changes of unknown outcome were found"
        );
        self.broken = None;
        self.publish(changes, account.revision);
        self.ledger.account = account;
        if account.compacted > self.shared.index().compacted() {
            self.shared.index_mut().set_compacted(account.compacted);
        }
        if account.compacted > Revision::ZERO {
            // The compactor gave up when the engine did.
            let _ = self.compactor.send(compactor::Order::UpTo(account.compacted));
        }
    }

    fn sync_witness(&mut self) {
        if let Err(error) = self.ledger.witness.sync() {
            self.fail(&fjall::Error::Io(error), Vec::new());
        }
    }

    fn sleep(&self) -> Duration {
        let now = milliseconds(self.clock.now());
        let wait = self.shared.index().next_expiry().map(|due| Duration::from_millis(due.saturating_sub(now)));
        // A short pause gathers the keys that expire together, and keeps a key that cannot be deleted from spinning.
        let wait = wait.map_or(LONGEST_SLEEP, |wait| wait.clamp(Duration::from_millis(20), LONGEST_SLEEP));
        let wait = wait.min(self.space.patience());
        if self.check.is_some() { wait.min(CHECK_PAUSE) } else { wait }
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
        self.space.refresh(self.shared.engine().ok().as_deref());
        let broken = self.broken.as_ref().map(|broken| read_only(&broken.reason));
        let open_view = || self.shared.view();
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

    fn write(&mut self, changes: &[PendingChange], revision: Revision) -> fjall::Result<()> {
        let engine = self.engine()?;
        let mut account = Account { revision, ..self.ledger.account };
        let mut batch = engine.batch(Durability::Synced);
        let mut last: HashMap<&Key, Option<&Slot>> = HashMap::new();
        for change in changes {
            let record = match &change.current {
                Some(Slot { state, value }) => Record::Put { state: *state, value: value.clone().unwrap_or_default() },
                None => Record::Deleted,
            };
            batch.put_version(&change.key, change.revision, change.place, &record);
            last.insert(&change.key, change.current.as_ref());
            if let Some(previous) = &change.previous {
                account.remove(&change.key, &previous.state);
            }
            if let Some(current) = &change.current {
                account.add(&change.key, &current.state);
            }
        }
        for (key, slot) in last {
            batch.set_key(key, slot.map(|slot| &slot.state));
        }
        batch.set_account(&account);
        batch.commit()?;
        self.ledger.note(account)
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
        self.shared.recent.push(changes);
        self.shared.progress.send_modify(|progress| progress.revision = revision);
    }

    /// The batch may or may not have reached the disk. Nothing more is written, so that what is on the disk stays a
    /// prefix of what was answered; whoever opens the store again finds out which it was.
    fn fail(&mut self, error: &fjall::Error, waiting: Vec<Waiting>) {
        let reason = explain(error);
        tracing::error!(reason, "writing to the disk failed; the store is read-only until that works again");
        // Before anybody is answered: whoever hears of it may ask at once how the store is.
        self.shared.set_obstacle(Some(read_only(&reason)));
        for (reply, answer) in waiting {
            let answer = match answer {
                Ok(TxnOutcome::Committed { .. }) => Err(unwritten(error)),
                Ok(TxnOutcome::Refused { .. }) => Err(read_only(&reason)),
                Err(error) => Err(error),
            };
            let _ = reply.send(answer);
        }
        self.broken = Some(Broken::because(reason));
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
        if let Some(broken) = &self.broken {
            return Err(read_only(&broken.reason));
        }
        self.space.refresh(self.shared.engine().ok().as_deref());
        self.space.may_write()?;
        if let Err(error) = self.write_compacted(revision) {
            self.fail(&error, Vec::new());
            return Err(unwritten(&error));
        }
        self.shared.index_mut().set_compacted(revision);
        // The compactor is gone only when the store is closing; then the next start takes the work up.
        let _ = self.compactor.send(compactor::Order::UpTo(revision));
        Ok(())
    }

    fn write_compacted(&mut self, revision: Revision) -> fjall::Result<()> {
        let engine = self.engine()?;
        let account = Account { compacted: revision, ..self.ledger.account };
        let mut batch = engine.batch(Durability::Synced);
        batch.set_account(&account);
        batch.commit()?;
        self.ledger.note(account)
    }
}

impl Ledger {
    /// Testifies to what is written and synced. Nobody is answered before.
    fn note(&mut self, account: Account) -> fjall::Result<()> {
        self.witness.note(&account)?;
        self.account = account;
        Ok(())
    }
}

fn read_only(reason: &str) -> StoreError {
    StoreError::Unavailable(format!(
        "the store is read-only since a write to the disk failed ({reason}); it goes on by itself once the disk takes writes"
    ))
}

/// What became of a batch that could not be committed.
fn unwritten(error: &fjall::Error) -> StoreError {
    match error {
        // An engine that has given up says so before it writes anything.
        fjall::Error::Poisoned => read_only(&explain(error)),
        _ => StoreError::OutcomeUnknown(format!(
            "writing to the disk failed: {}; the store is read-only until that works again",
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
