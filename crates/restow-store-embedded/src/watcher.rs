//! A watch: its position in the history, and reading the events from there on.

use crate::layout::Record;
use crate::pending::PendingChange;
use crate::shared::{Progress, SharedState};
use bytes::Bytes;
use futures::Stream;
use restow_store::{Change, Entry, Event, Key, Revision, StoreError, WatchBatch, WatchRequest};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How many changes are read from the disk at once for a watch that is behind.
const CATCH_UP_CHANGES: usize = 512;
/// The size of values at which a read from the disk ends.
const CATCH_UP_BYTES: usize = 4 << 20;

/// A watch that has delivered everything before `next`.
pub(crate) struct Watcher {
    /// Weak, so that a watch that is not polled does not keep a closed store open.
    shared: Weak<SharedState>,
    request: WatchRequest,
    next: Revision,
    progress: watch::Receiver<Progress>,
    /// The time of the last delivery.
    delivered: Instant,
}

impl Watcher {
    pub(crate) fn new(shared: &Arc<SharedState>, request: WatchRequest, first: Revision) -> Self {
        let progress = shared.progress.subscribe();
        Watcher { shared: Arc::downgrade(shared), request, next: first, progress, delivered: Instant::now() }
    }

    /// The watch as a stream that ends after an error.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<WatchBatch, StoreError>> + Send {
        futures::stream::unfold(Some(self), |watcher| async {
            let mut watcher = watcher?;
            match watcher.batch().await {
                Ok(batch) => {
                    watcher.delivered = Instant::now();
                    Some((Ok(batch), Some(watcher)))
                }
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    async fn batch(&mut self) -> Result<WatchBatch, StoreError> {
        loop {
            let Progress { revision: latest, closed } = *self.progress.borrow_and_update();
            if closed {
                return Err(store_closed());
            }
            if self.next <= latest {
                let (events, reached) = self.advance(latest).await?;
                self.next = reached.next();
                if let Some(last) = events.last() {
                    return Ok(WatchBatch { revision: last.revision, events });
                }
                // Keys outside the range may change so often that the wait below never times out.
                if self.until_progress().is_some_and(|wait| wait.is_zero()) {
                    return Ok(WatchBatch { revision: reached, events });
                }
                continue;
            }
            let until_progress = self.until_progress();
            let changed = self.progress.changed();
            let waited = match until_progress {
                None => Ok(changed.await),
                Some(wait) => tokio::time::timeout(wait, changed).await,
            };
            match waited {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(store_closed()),
                Err(_idle) => return Ok(WatchBatch { revision: latest, events: Vec::new() }),
            }
        }
    }

    /// The time until a progress notification is due, if they were requested.
    fn until_progress(&self) -> Option<Duration> {
        self.request.progress.map(|idle| idle.saturating_sub(self.delivered.elapsed()))
    }

    /// Events from `next` on, and the revision up to which they are complete, which is at most `latest`.
    async fn advance(&self, latest: Revision) -> Result<(Vec<Event>, Revision), StoreError> {
        let shared = self.shared.upgrade().ok_or_else(store_closed)?;
        if let Some(changes) = shared.recent_changes.between(self.next, latest) {
            let wanted = changes.iter().filter(|change| self.request.range.contains(&change.key));
            let events = wanted.map(|change| self.event(&shared, change)).collect::<Result<_, _>>()?;
            return Ok((events, latest));
        }
        let (request, next) = (self.request.clone(), self.next);
        let read = tokio::task::spawn_blocking(move || catch_up(&shared, &request, next, latest));
        read.await.map_err(|error| StoreError::Unavailable(format!("reading history failed: {error}")))?
    }

    fn event(&self, shared: &SharedState, change: &PendingChange) -> Result<Event, StoreError> {
        let current = match &change.current {
            Some(slot) => Change::Put(slot.state.entry(change.key.clone(), slot.value.clone().unwrap_or_default())),
            None => Change::Delete(change.key.clone()),
        };
        let previous = match &change.previous {
            Some(slot) if self.request.previous => match &slot.value {
                Some(value) => Some(slot.state.entry(change.key.clone(), value.clone())),
                None => previous(&shared.snapshot()?, &change.key, slot.state.mod_revision.next())?,
            },
            _ => None,
        };
        Ok(Event { revision: change.revision, change: current, previous })
    }
}

/// Reads events from the disk.
fn catch_up(
    shared: &SharedState,
    request: &WatchRequest,
    first: Revision,
    latest: Revision,
) -> Result<(Vec<Event>, Revision), StoreError> {
    let snapshot = shared.snapshot()?;
    // Read after the snapshot was taken: what is not compacted now is complete in the snapshot.
    let oldest = shared.index().compacted();
    if first < oldest {
        return Err(StoreError::Compacted { oldest });
    }
    let changes = snapshot.changes(first, latest, CATCH_UP_CHANGES)?;
    let complete = changes.len() < CATCH_UP_CHANGES;
    let reached = if complete { latest } else { changes.last().map_or(latest, |change| change.revision) };
    let mut events: Vec<Event> = Vec::new();
    let mut bytes = 0;
    for change in changes.into_iter().filter(|change| request.range.contains(&change.key)) {
        if let Some(last) = events.last().filter(|last| last.revision != change.revision && bytes > CATCH_UP_BYTES) {
            let enough = last.revision;
            return Ok((events, enough));
        }
        let record = snapshot.version(&change.key, change.revision)?;
        let previous = match request.previous {
            true => previous(&snapshot, &change.key, change.revision)?,
            false => None,
        };
        let current = match record {
            Some(Record::Put { state, value }) => Change::Put(state.entry(change.key, value)),
            Some(Record::Deleted) => Change::Delete(change.key),
            None => return Err(StoreError::Corrupted(format!("the change of {} is missing", change.key))),
        };
        bytes += bytes_of(&current) + previous.as_ref().map_or(0, |entry| entry.value.len());
        events.push(Event { revision: change.revision, change: current, previous });
    }
    Ok((events, reached))
}

fn store_closed() -> StoreError {
    StoreError::Unavailable("the store was closed".into())
}

fn bytes_of(change: &Change) -> usize {
    match change {
        Change::Put(entry) => entry.value.len(),
        Change::Delete(_) => 0,
    }
}

/// The entry of a key before `revision`, if it is not compacted.
fn previous(
    snapshot: &crate::snapshot::EngineSnapshot,
    key: &Key,
    revision: Revision,
) -> Result<Option<Entry>, StoreError> {
    let before = Revision::new(revision.get().saturating_sub(1));
    Ok(match snapshot.version_at(key, before)? {
        Some((_, Record::Put { state, value })) => Some(state.entry(key.clone(), Bytes::clone(&value))),
        _ => None,
    })
}
