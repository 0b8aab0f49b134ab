//! A store that can be made to stall, as it looks from a machine that is suspended: what is under way waits, and goes on
//! later as if nothing had happened.

use async_trait::async_trait;
use restow_store::{
    RangeRequest, RangeResponse, Revision, Status, Store, StoreError, Txn, TxnOutcome, Watch, WatchRequest,
};
use std::sync::Arc;
use tokio::sync::{RwLock, RwLockReadGuard, watch};

/// What waits, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The store, until the gate is closed for good.
    store: RwLock<Option<Arc<dyn Store>>>,
    stall: watch::Sender<Stall>,
    /// The keys that transactions which were held up were about.
    held: watch::Sender<Vec<String>>,
}

impl StallingStore {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        let (stall, held) = (watch::Sender::new(Stall::None), watch::Sender::new(Vec::new()));
        StallingStore { store: RwLock::new(Some(store)), stall, held }
    }

    /// Makes this much wait from now on.
    pub(super) fn stall(&self, stall: Stall) {
        self.stall.send_replace(stall);
    }

    /// The keys of the transactions that were held up, as they become more.
    pub(super) fn held(&self) -> watch::Receiver<Vec<String>> {
        self.held.subscribe()
    }

    /// Waits for what is under way and lets go of the store. Whoever still asks for something is told that it is gone.
    pub(super) async fn close(&self) {
        self.stall(Stall::None);
        self.store.write().await.take();
    }

    /// Waits until no more than this is stalled.
    async fn wait_at_gate(&self, most: Stall) {
        // An error means that nobody can stall it any more.
        let _ = self.stall.subscribe().wait_for(|stall| *stall <= most).await;
    }

    async fn behind_gate(&self) -> Result<RwLockReadGuard<'_, Arc<dyn Store>>, StoreError> {
        RwLockReadGuard::try_map(self.store.read().await, Option::as_ref)
            .map_err(|_| StoreError::Unavailable("the server has been stopped".into()))
    }
}

#[async_trait]
impl Store for StallingStore {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.wait_at_gate(Stall::Transactions).await;
        self.behind_gate().await?.range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        if *self.stall.borrow() != Stall::None {
            self.held.send_modify(|held| held.extend(txn.when.iter().map(|compare| compare.key.to_string())));
        }
        self.wait_at_gate(Stall::None).await;
        self.behind_gate().await?.txn(txn).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.wait_at_gate(Stall::Transactions).await;
        self.behind_gate().await?.watch(request).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.wait_at_gate(Stall::Transactions).await;
        self.behind_gate().await?.compact(revision).await
    }

    async fn status(&self) -> Result<Status, StoreError> {
        self.wait_at_gate(Stall::Transactions).await;
        self.behind_gate().await?.status().await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.wait_at_gate(Stall::Transactions).await;
        self.behind_gate().await?.ready().await
    }
}
