//! An in-memory store for tests: the [`Model`] behind a lock, with watches and a clock.

use super::Model;
use crate::{
    Key, Limits, Mutation, RangeRequest, RangeResponse, Revision, Store, StoreError, StoreStatus, Txn, TxnOutcome,
    Watch, WatchBatch, WatchRequest,
};
use async_trait::async_trait;
use futures::stream;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

/// An in-memory [`Store`] for tests: the suite tests itself with it, and others need no disk and no server.
///
/// Its calls yield to other tasks, as those of a real store do, so that a loop of calls does not starve others.
pub struct ModelStore {
    shared: Arc<Shared>,
}

struct Shared {
    model: Mutex<Model>,
    /// Wakes the watches, always in the same order. Each then reads its new events from the model.
    changed: Notify,
}

impl ModelStore {
    /// An empty store at revision 1.
    pub fn new(limits: Limits) -> Self {
        let model = Mutex::new(Model::new(Revision::new(1), limits));
        ModelStore { shared: Arc::new(Shared { model, changed: Notify::new() }) }
    }

    /// Everything that is stored now, with its history.
    pub fn back_up(&self) -> Model {
        self.shared.model().clone()
    }

    /// Applies a transaction at once.
    pub fn apply(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let outcome = self.shared.apply(&txn)?;
        if let TxnOutcome::Committed { revision } = outcome {
            for mutation in txn.then {
                if let Mutation::Put(put) = mutation
                    && let Some(time_to_live) = put.time_to_live
                {
                    tokio::spawn(expire(Arc::downgrade(&self.shared), put.key, revision, time_to_live));
                }
            }
        }
        Ok(outcome)
    }

    /// Reads the store and its history, without a copy.
    pub fn read<T>(&self, read: impl FnOnce(&Model) -> T) -> T {
        read(&self.shared.model())
    }

    /// Restores a backup, without notice to the watches.
    pub fn restore(&self, backup: Model) {
        *self.shared.model() = backup;
    }
}

impl Default for ModelStore {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

#[async_trait]
impl Store for ModelStore {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        yield_now().await;
        self.shared.model().range(&request)
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        yield_now().await;
        let outcome = self.apply(txn)?;
        // A call that is canceled here has an unknown outcome, and was applied.
        yield_now().await;
        Ok(outcome)
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        let next = request.from.unwrap_or_else(|| self.shared.model().revision().next());
        let cursor = Cursor { shared: self.shared.clone(), request, next, delivered_at: Instant::now(), ended: false };
        Ok(Watch::new(stream::unfold(cursor, Cursor::advance)))
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.shared.model().compact(revision)?;
        self.shared.changed.notify_waiters();
        Ok(())
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        yield_now().await;
        let model = self.shared.model();
        Ok(StoreStatus {
            backend: "in-memory model".to_owned(),
            revision: model.revision(),
            disk_bytes: model.bytes(),
            prompt_progress: true,
        })
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.status().await.map(drop)
    }
}

impl Shared {
    fn model(&self) -> MutexGuard<'_, Model> {
        // A panic elsewhere cannot leave the model half changed, because nothing in it panics.
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        let outcome = self.model().txn(txn);
        self.changed.notify_waiters();
        outcome
    }
}

/// Deletes the key when it expires, unless it was written again.
async fn expire(shared: Weak<Shared>, key: Key, written: Revision, time_to_live: Duration) {
    tokio::time::sleep(time_to_live).await;
    let Some(shared) = shared.upgrade() else { return };
    let txn = Txn::new().when(crate::Compare::mod_revision(&key, written)).delete(&key);
    // A refusal means that the key was written again; no other failure is possible for a delete.
    let _ = shared.apply(&txn);
}

/// The position of a watch.
struct Cursor {
    shared: Arc<Shared>,
    request: WatchRequest,
    next: Revision,
    delivered_at: Instant,
    ended: bool,
}

impl Cursor {
    async fn advance(mut self) -> Option<(Result<WatchBatch, StoreError>, Self)> {
        if self.ended {
            return None;
        }
        loop {
            // What changes from here on wakes the wait below, so nothing slips between looking and waiting.
            let shared = self.shared.clone();
            let mut changed = pin!(shared.changed.notified());
            changed.as_mut().enable();
            let due = self.request.progress.is_some_and(|idle| self.delivered_at.elapsed() >= idle);
            match self.look() {
                Ok(batch) if due || !batch.events.is_empty() => {
                    self.delivered_at = Instant::now();
                    return Some((Ok(batch), self));
                }
                // Only a change or the time of a progress notification ends it.
                Ok(_) => match self.request.progress {
                    Some(idle) => drop(tokio::time::timeout_at(self.delivered_at + idle, changed).await),
                    None => changed.await,
                },
                Err(error) => {
                    self.ended = true;
                    return Some((Err(error), self));
                }
            }
        }
    }

    /// Everything new in the range, and the revision up to which it is everything.
    fn look(&mut self) -> Result<WatchBatch, StoreError> {
        let model = self.shared.model();
        let events = model.events(&self.request.range, self.next, self.request.previous)?;
        self.next = self.next.max(model.revision().next());
        Ok(WatchBatch { revision: model.revision(), events })
    }
}
