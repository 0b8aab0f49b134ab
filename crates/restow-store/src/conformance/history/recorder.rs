//! Records the calls of clients.

use super::{Call, Operation};
use crate::conformance::WatchReader;
use crate::{
    Entry, Event, KeyRange, RangeRequest, RangeResponse, Revision, Store, StoreError, Txn, TxnOutcome, WatchRequest,
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Passes calls to a store and records them. Clients on several tasks share one recorder.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    operations: Mutex<Vec<Operation>>,
}

/// Everything in a store at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The revision.
    pub revision: Revision,
    /// The entries.
    pub entries: Vec<Entry>,
}

impl Recorder {
    /// Begins a history.
    pub fn new() -> Self {
        Recorder { began: Instant::now(), operations: Mutex::new(Vec::new()) }
    }

    /// Runs a transaction. If this future is dropped before the response came, the outcome is recorded as unknown.
    pub async fn txn(&self, store: &dyn Store, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let number = self.note_start(Call::Txn(txn.clone(), None));
        let answer = store.txn(txn).await;
        self.note_end(number, |call| {
            if let Call::Txn(_, noted) = call {
                *noted = Some(answer.clone());
            }
        });
        answer
    }

    /// Reads a range.
    pub async fn range(&self, store: &dyn Store, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let number = self.note_start(Call::Range(request.clone(), None));
        let answer = store.range(request).await;
        self.note_end(number, |call| {
            if let Call::Range(_, noted) = call {
                *noted = Some(answer.clone());
            }
        });
        answer
    }

    /// The recorded calls.
    pub fn operations(&self) -> Vec<Operation> {
        self.noted().clone()
    }

    fn note_start(&self, call: Call) -> usize {
        let mut operations = self.noted();
        operations.push(Operation { started: self.began.elapsed(), ended: None, call });
        operations.len() - 1
    }

    fn note_end(&self, number: usize, answer: impl FnOnce(&mut Call)) {
        // The clock is read first: waiting for the lock must not make the call look longer than it was.
        let ended = self.began.elapsed();
        let mut operations = self.noted();
        operations[number].ended = Some(ended);
        answer(&mut operations[number].call);
    }

    fn noted(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshot {
    /// Reads everything that a store holds now.
    pub async fn read(store: &dyn Store) -> Result<Self, StoreError> {
        let response = store.range(RangeRequest::new(KeyRange::all())).await?;
        Ok(Snapshot { revision: response.revision, entries: response.entries })
    }
}

/// Reads every change from `from` up to and including `until` by a watch. It panics when the watch violates a guarantee.
pub async fn read_log(store: &dyn Store, from: Revision, until: Revision) -> Result<Vec<Event>, StoreError> {
    if until < from {
        return Ok(Vec::new());
    }
    let mut reader = WatchReader::start(store, WatchRequest::from(KeyRange::all(), from)).await?;
    reader.until(until).await?;
    Ok(reader.events().iter().filter(|event| event.revision <= until).cloned().collect())
}
