//! The store of the aggregated server, which records every transaction that writes plants.
//!
//! A transaction waits for a moment before it begins. It can wait so in any store, and a process that is suspended meanwhile commits
//! long after its API server has checked whether it may write.

use super::RESOURCE;
use super::record::{Ending, Line, Record, RecordedWrite, StoreChange};
use crate::checks::{ObjectKey, StoredObject};
use async_trait::async_trait;
use restow_store::{
    Change, Event, KeyRange, Mutation, RangeRequest, RangeResponse, Revision, Store, StoreError, StoreStatus, Txn,
    TxnOutcome, Watch, WatchRequest,
};
use restow_store_embedded::EmbeddedStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest time that a transaction waits, in milliseconds.
const LONGEST_WAIT: u64 = 200;
/// How often the latest revision is recorded.
const INTERVAL: Duration = Duration::from_millis(200);

/// A store that records.
pub(crate) struct RecordingStore {
    store: Arc<EmbeddedStore>,
    record: Arc<Record>,
    transactions: AtomicU64,
}

impl RecordingStore {
    pub(crate) fn new(store: EmbeddedStore, record: Arc<Record>) -> Arc<Self> {
        record.write(&Line::Started { at: restow_host::since_boot() });
        Arc::new(RecordingStore { store: Arc::new(store), record, transactions: AtomicU64::new(0) })
    }

    /// Records all changes from a revision on. It ends with an error.
    pub(crate) async fn record_changes(self: Arc<Self>, from: Revision) -> Result<(), StoreError> {
        let mut watch = self.store.watch(WatchRequest::from(KeyRange::all(), from)).await?;
        loop {
            tokio::select! {
                biased;
                batch = watch.next() => {
                    let Some(batch) = batch else { return Ok(()) };
                    let batch = batch?;
                    let changes = batch.events.iter().map(change).collect();
                    self.record.write(&Line::Changed { revision: batch.revision.get(), changes });
                }
                () = tokio::time::sleep(INTERVAL) => {
                    let at = restow_host::since_boot();
                    let revision = self.store.status().await?.revision.get();
                    self.record.write(&Line::Exists { revision, at });
                }
            }
        }
    }
}

#[async_trait]
impl Store for RecordingStore {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.store.range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        let writes = plants_in(&txn);
        if writes.is_empty() {
            return self.store.txn(txn).await;
        }
        let transaction = self.transactions.fetch_add(1, Ordering::Relaxed);
        self.record.write(&Line::Arrived { transaction, writes });
        // A client that gives up does not take back what is on its way to the store.
        let done = tokio::spawn(record(self.store.clone(), self.record.clone(), transaction, txn)).await;
        done.unwrap_or_else(|error| Err(StoreError::OutcomeUnknown(error.to_string())))
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.store.watch(request).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.store.compact(revision).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.store.status().await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.store.ready().await
    }
}

/// Runs a transaction after a moment, and records when.
async fn record(
    store: Arc<EmbeddedStore>,
    record: Arc<Record>,
    transaction: u64,
    txn: Txn,
) -> Result<TxnOutcome, StoreError> {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..LONGEST_WAIT))).await;
    record.write(&Line::Began { transaction, at: restow_host::since_boot() });
    let outcome = store.txn(txn).await;
    let ending = match &outcome {
        Ok(TxnOutcome::Committed { .. }) => Ending::Committed,
        Ok(TxnOutcome::Refused { .. }) => Ending::Refused,
        Err(_) => Ending::Unknown,
    };
    record.write(&Line::Ended { transaction, at: restow_host::since_boot(), outcome: ending });
    outcome
}

fn change(event: &Event) -> StoreChange {
    let value = match &event.change {
        Change::Put(entry) => serde_json::from_slice(&entry.value).ok(),
        Change::Delete(_) => None,
    };
    StoreChange { revision: event.revision.get(), key: event.key().to_string(), value }
}

/// The plants that a transaction writes.
fn plants_in(txn: &Txn) -> Vec<RecordedWrite> {
    let plant = |mutation: &Mutation| {
        let Mutation::Put(put) = mutation else { return None };
        ObjectKey::parse(put.key.as_bytes()).filter(|key| key.resource == RESOURCE)?;
        let object = StoredObject::new(serde_json::from_slice(&put.value).ok()?, Revision::new(0));
        Some(RecordedWrite { token: object.token()?.to_owned(), version: object.version })
    };
    txn.then.iter().filter_map(plant).collect()
}
