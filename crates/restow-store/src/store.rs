//! The trait that every back end implements.

use crate::{
    At, Compare, Content, Entry, Key, KeyRange, RangeRequest, RangeResponse, Revision, StoreError, Txn, TxnOutcome,
    Watch, WatchRequest,
};
use async_trait::async_trait;
use bytes::Bytes;

/// A versioned, watchable, transactional key-value store. The crate's documentation states its semantics.
///
/// Every call has a deadline, which the back end sets. A call is canceled by dropping its future; the outcome of a canceled
/// transaction is unknown.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Reads a range of keys at one revision.
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError>;

    /// Runs a transaction, atomically. When it returns [`TxnOutcome::Committed`], the change is durable.
    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError>;

    /// Watches the changes of a range, from a revision on. A compacted start revision fails with
    /// [`StoreError::Compacted`], here or as the first item; a watch from a future revision waits for it.
    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError>;

    /// Compacts the history before `revision`: reads at `revision` and later still work, reads and watches before it fail
    /// with [`StoreError::Compacted`]. Space is reclaimed later, in the background.
    ///
    /// Compacting at or before the last compact revision fails with [`StoreError::Compacted`], beyond the latest revision
    /// with [`StoreError::FutureRevision`].
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;

    /// The status of the store. It succeeds only if the store can serve reads now.
    async fn status(&self) -> Result<StoreStatus, StoreError>;

    /// Fails if the store cannot serve reads or accept writes now. A back end that learns only from a write that it cannot
    /// accept writes checks what [`Store::status`] does.
    async fn ready(&self) -> Result<(), StoreError>;
}

/// The status of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// The back end and its version, for display: "embedded (fjall)", "etcd 3.4.23".
    pub backend: String,
    /// The latest revision.
    pub revision: Revision,
    /// The size of the store on disk, in bytes.
    pub disk_bytes: u64,
    /// Whether a watch gets the progress notifications that it requested in time, even when nothing changes.
    pub prompt_progress: bool,
}

/// Common operations, in terms of [`Store`]'s calls.
#[async_trait]
pub trait StoreExt: Store {
    /// Reads one key at the latest revision.
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        Ok(self.range(RangeRequest::key(key)).await?.entries.pop())
    }

    /// Counts the keys of a range.
    async fn count(&self, range: KeyRange, at: At) -> Result<u64, StoreError> {
        let response = self.range(RangeRequest { range, at, limit: None, content: Content::CountOnly }).await?;
        Ok(response.count.unwrap_or_default())
    }

    /// Writes a value unconditionally.
    async fn put(&self, key: &Key, value: Bytes) -> Result<Revision, StoreError> {
        self.commit(key, Txn::new().put(key, value)).await
    }

    /// Creates a key, or fails with [`StoreError::Conflict`] when it exists.
    async fn create(&self, key: &Key, value: Bytes) -> Result<Revision, StoreError> {
        self.commit(key, Txn::new().when(Compare::absent(key)).put(key, value)).await
    }

    /// Replaces the value that was written at `expected`, or fails with [`StoreError::Conflict`].
    async fn update(&self, key: &Key, value: Bytes, expected: Revision) -> Result<Revision, StoreError> {
        self.commit(key, Txn::new().when(Compare::mod_revision(key, expected)).put(key, value)).await
    }

    /// Removes the key that was last written at `expected`, or fails with [`StoreError::Conflict`].
    async fn remove(&self, key: &Key, expected: Revision) -> Result<Revision, StoreError> {
        self.commit(key, Txn::new().when(Compare::mod_revision(key, expected)).delete(key)).await
    }

    /// Runs a transaction; if it is refused, fails with a [`StoreError::Conflict`] that has the current entry of `key`.
    async fn commit(&self, key: &Key, txn: Txn) -> Result<Revision, StoreError> {
        match self.txn(txn.otherwise_get(key)).await? {
            TxnOutcome::Committed { revision } => Ok(revision),
            TxnOutcome::Refused { mut found, .. } => {
                Err(StoreError::Conflict { key: key.clone(), current: found.pop().flatten().map(Box::new) })
            }
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
