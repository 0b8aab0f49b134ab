//! A store that can be made to stall, as it looks from a machine that is suspended: what is under way waits, and goes on
//! later as if nothing had happened.

use async_trait::async_trait;
use restow_store::{
    RangeRequest, RangeResponse, Revision, Status, Store, StoreError, Txn, TxnOutcome, Watch, WatchRequest,
};
use std::sync::Arc;
use tokio::sync::watch;

/// A store behind a gate.
pub(super) struct StallingStore {
    store: Arc<dyn Store>,
    is_stalled: watch::Receiver<bool>,
}

impl StallingStore {
    pub(super) fn new(store: Arc<dyn Store>, is_stalled: watch::Receiver<bool>) -> Self {
        StallingStore { store, is_stalled }
    }

    async fn pass(&self) {
        // An error means that nobody can stall it any more.
        let _ = self.is_stalled.clone().wait_for(|is_stalled| !is_stalled).await;
    }
}

#[async_trait]
impl Store for StallingStore {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.pass().await;
        self.store.range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        self.pass().await;
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
