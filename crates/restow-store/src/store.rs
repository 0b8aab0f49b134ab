//! The trait that every back end implements.

use crate::{
    At, Compare, Content, Entry, Key, KeyRange, RangeRequest, RangeResponse, Revision, StoreError, Txn, TxnOutcome,
    Watch, WatchRequest,
};
use async_trait::async_trait;
use bytes::Bytes;

/// A versioned, watchable, transactional key-value store. The crate's documentation states its semantics.
///
/// Every call is bounded in time by the back end's own deadline. Dropping the future of a call abandons it; a
/// transaction that was abandoned has an unknown outcome.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Reads a range of keys at one revision.
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError>;

    /// Compares, then changes all or nothing. When it returns [`TxnOutcome::Committed`], the change is durable.
    async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError>;

    /// Follows the changes of a range, from a revision on. A start revision that is compacted is reported as
    /// [`StoreError::Compacted`], here or as the first item; one in the future is waited for.
    async fn watch(&self, request: WatchRequest) -> Result<Watch, StoreError>;

    /// Gives up the history before `revision`: reads at `revision` and later still work, reads and watches before it
    /// fail with [`StoreError::Compacted`]. Returns when the cut is in force; space is reclaimed in the background.
    ///
    /// Compacting at or before an earlier cut fails with [`StoreError::Compacted`], beyond the latest revision with
    /// [`StoreError::FutureRevision`].
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;

    /// Asks how the store is. Succeeds only if the store can serve reads now.
    async fn status(&self) -> Result<Status, StoreError>;

    /// Says whether the store serves reads and takes writes now; if not, why. A back end that learns of it only by writing
    /// answers as [`Store::status`] does.
    async fn ready(&self) -> Result<(), StoreError>;
}

/// How a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The back end and its version, for people: "embedded (fjall)", "etcd 3.4.23".
    pub backend: String,
    /// The latest revision.
    pub revision: Revision,
    /// The bytes that the store takes on disk.
    pub disk_bytes: u64,
    /// Whether a watch that asks for progress marks gets them soon after it was asked, even when nothing changes.
    pub prompt_progress: bool,
}

/// What is often asked of a store, in terms of [`Store`]'s own calls.
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

    /// Writes a value whatever was there before.
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

    /// Runs a transaction about `key`; when it is refused, says what is stored there in a [`StoreError::Conflict`].
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
