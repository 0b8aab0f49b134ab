//! A store that can be made to stall, as it looks from a machine that is suspended: what is under way waits, and goes on
//! later as if nothing had happened.

use async_trait::async_trait;
use restow_store::{
    RangeRequest, RangeResponse, Revision, Status, Store, StoreError, Txn, TxnOutcome, Watch, WatchRequest,
};
use std::sync::Arc;
use tokio::sync::watch;

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stall {
    /// Nothing.
    None,
    /// Transactions, so that one can be caught on its way.
    Transactions,
    /// Everything.
    Everything,
}

/// A store behind a gate.
pub(super) struct StallingStore {
    store: Arc<dyn Store>,
    stall: watch::Receiver<Stall>,
    /// The keys that transactions which were held up were about.
    held: watch::Sender<Vec<String>>,
}

impl StallingStore {
    pub(super) fn new(store: Arc<dyn Store>, stall: watch::Receiver<Stall>, held: watch::Sender<Vec<String>>) -> Self {
        StallingStore { store, stall, held }
    }

    async fn pass(&self) {
        // An error means that nobody can stall it any more.
        let _ = self.stall.clone().wait_for(|stall| *stall != Stall::Everything).await;
    }
}

#[async_trait]
impl Store for StallingStore {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.pass().await;
        self.store.range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        if *self.stall.borrow() != Stall::None {
            self.held.send_modify(|held| held.extend(txn.when.iter().map(|compare| compare.key.to_string())));
        }
        let _ = self.stall.clone().wait_for(|stall| *stall == Stall::None).await;
        self.store.txn(txn).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.pass().await;
        self.store.watch(request).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.pass().await;
        self.store.compact(revision).await
    }

    async fn status(&self) -> Result<Status, StoreError> {
        self.pass().await;
        self.store.status().await
    }
}
