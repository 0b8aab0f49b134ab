//! Watches: requests, events, and the stream of batches.

use crate::{Entry, Key, KeyRange, Revision, StoreError};
use futures::Stream;
use futures::stream::BoxStream;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// The keys to watch.
    pub range: KeyRange,
    /// The first revision to deliver: one after the revision of the list that the watcher has. `None` starts with the
    /// first change after the call returns.
    pub from: Option<Revision>,
    /// Whether each event has the entry before the change. It is missing if that revision is compacted.
    pub previous: bool,
    /// Requests a progress notification whenever nothing was delivered for this long; see [`WatchBatch`].
    pub progress: Option<Duration>,
}

/// The changes of one or more whole revisions, in order; or, without events, a progress notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchBatch {
    /// Everything in the range up to and including this revision has been delivered.
    pub revision: Revision,
    /// The changes, in order of revision and within one in the order of the transaction.
    pub events: Vec<Event>,
}

/// A change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The revision of the change.
    pub revision: Revision,
    /// What changed.
    pub change: Change,
    /// The entry before the change, if it was requested and there was one.
    pub previous: Option<Entry>,
}

/// What happened to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was written; created if the version is 1.
    Put(Entry),
    /// It was deleted, or its time to live ran out.
    Delete(Key),
}

/// A running watch: a stream of batches. It ends after an error; dropping it ends it at once.
pub struct Watch {
    batches: BoxStream<'static, Result<WatchBatch, StoreError>>,
}

impl WatchRequest {
    /// Watches a range from `revision` on.
    pub fn from(range: KeyRange, revision: Revision) -> Self {
        WatchRequest { range, from: Some(revision), previous: false, progress: None }
    }

    /// Watches a range from now on.
    pub fn from_now(range: KeyRange) -> Self {
        WatchRequest { range, from: None, previous: false, progress: None }
    }

    /// Adds the entry before the change to each event.
    pub fn with_previous(self) -> Self {
        WatchRequest { previous: true, ..self }
    }

    /// Requests a progress notification after each such time without a delivery.
    pub fn with_progress(self, idle: Duration) -> Self {
        WatchRequest { progress: Some(idle), ..self }
    }
}

impl Event {
    /// The key that was changed.
    pub fn key(&self) -> &Key {
        match &self.change {
            Change::Put(entry) => &entry.key,
            Change::Delete(key) => key,
        }
    }
}

impl Watch {
    /// Creates a watch from a back end's stream.
    pub fn new(batches: impl Stream<Item = Result<WatchBatch, StoreError>> + Send + 'static) -> Self {
        Watch { batches: Box::pin(batches) }
    }

    /// The next batch; `None` when the watch has ended.
    pub async fn next(&mut self) -> Option<Result<WatchBatch, StoreError>> {
        futures::StreamExt::next(&mut self.batches).await
    }
}

impl Stream for Watch {
    type Item = Result<WatchBatch, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.batches.as_mut().poll_next(context)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
