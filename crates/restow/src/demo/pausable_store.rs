//! A store that can be paused: to its server it looks as if the machine was suspended. Requests wait, and go on later as if
//! nothing had happened.

use async_trait::async_trait;
use restow_store::{
    RangeRequest, RangeResponse, Revision, Store, StoreError, StoreStatus, Txn, TxnOutcome, Watch, WatchRequest,
};
use std::sync::Arc;
use tokio::sync::{RwLock, RwLockReadGuard, watch};

/// What waits, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pause {
    /// Nothing.
    None,
    /// Transactions, so that the server can be suspended with one under way.
    Transactions,
    /// Everything.
    Everything,
}

/// A store that can be paused.
pub(super) struct PausableStore {
    /// The store, until it is closed.
    store: RwLock<Option<Arc<dyn Store>>>,
    pause: watch::Sender<Pause>,
    /// The keys that held transactions compare.
    held: watch::Sender<Vec<String>>,
}

impl PausableStore {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        let (pause, held) = (watch::Sender::new(Pause::None), watch::Sender::new(Vec::new()));
        PausableStore { store: RwLock::new(Some(store)), pause, held }
    }

    /// Pauses this much from now on.
    pub(super) fn pause(&self, pause: Pause) {
        self.pause.send_replace(pause);
    }

    /// The keys of the transactions that were held so far.
    pub(super) fn held(&self) -> watch::Receiver<Vec<String>> {
        self.held.subscribe()
    }

    /// Waits for requests under way and drops the store. Later requests fail.
    pub(super) async fn close(&self) {
        self.pause(Pause::None);
        self.store.write().await.take();
    }

    /// Waits until no more than this is paused.
    async fn wait_while_paused(&self, most: Pause) {
        // An error means that nothing can pause it any more.
        let _ = self.pause.subscribe().wait_for(|pause| *pause <= most).await;
    }

    async fn open_store(&self) -> Result<RwLockReadGuard<'_, Arc<dyn Store>>, StoreError> {
        RwLockReadGuard::try_map(self.store.read().await, Option::as_ref)
            .map_err(|_| StoreError::Unavailable("the server has been stopped".into()))
    }
}

#[async_trait]
impl Store for PausableStore {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.wait_while_paused(Pause::Transactions).await;
        self.open_store().await?.range(request).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        if *self.pause.borrow() != Pause::None {
            self.held.send_modify(|held| held.extend(txn.when.iter().map(|compare| compare.key.to_string())));
        }
        self.wait_while_paused(Pause::None).await;
        self.open_store().await?.txn(txn).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError> {
        self.wait_while_paused(Pause::Transactions).await;
        self.open_store().await?.watch(request).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.wait_while_paused(Pause::Transactions).await;
        self.open_store().await?.compact(revision).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        self.wait_while_paused(Pause::Transactions).await;
        self.open_store().await?.status().await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.wait_while_paused(Pause::Transactions).await;
        self.open_store().await?.ready().await
    }
}
