//! A watch: a place in the history, and how it moves on.

use crate::layout::Record;
use crate::pending::PendingChange;
use crate::store::{Progress, Shared};
use bytes::Bytes;
use futures::Stream;
use restow_store::{Change, Entry, Event, Key, Revision, StoreError, WatchBatch, WatchRequest};
use std::sync::Arc;
use tokio::sync::watch;

/// How many changes are read from the disk at once for a watcher that is behind.
const CATCH_UP: usize = 512;

/// A watch that has delivered everything before `next`.
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    request: WatchRequest,
    next: Revision,
    progress: watch::Receiver<Progress>,
}

impl Watcher {
    pub(crate) fn new(shared: Arc<Shared>, request: WatchRequest, first: Revision) -> Self {
        let progress = shared.progress.subscribe();
        Watcher { shared, request, next: first, progress }
    }

    /// The watch as a stream that ends after an error.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<WatchBatch, StoreError>> + Send {
        futures::stream::unfold(Some(self), |watcher| async {
            let mut watcher = watcher?;
            match watcher.batch().await {
                Ok(batch) => Some((Ok(batch), Some(watcher))),
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    async fn batch(&mut self) -> Result<WatchBatch, StoreError> {
        loop {
            let Progress { revision: latest, closed } = *self.progress.borrow_and_update();
            if closed {
                return Err(StoreError::Unavailable("the store was closed".into()));
            }
            if self.next <= latest {
                let (events, reached) = self.advance(latest).await?;
                self.next = reached.next();
                if let Some(last) = events.last() {
                    return Ok(WatchBatch { revision: last.revision, events });
                }
                continue;
            }
            let changed = self.progress.changed();
            let waited = match self.request.progress {
                None => Ok(changed.await),
                Some(idle) => tokio::time::timeout(idle, changed).await,
            };
            match waited {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(StoreError::Unavailable("the store was closed".into())),
                Err(_idle) => return Ok(WatchBatch { revision: latest, events: Vec::new() }),
            }
        }
    }

    /// The events from `next` on, and the revision up to which these are all. Never beyond `latest`.
    async fn advance(&self, latest: Revision) -> Result<(Vec<Event>, Revision), StoreError> {
        if let Some(changes) = self.shared.recent.between(self.next, latest) {
            let wanted = changes.iter().filter(|change| self.request.range.contains(&change.key));
            let events = wanted.map(|change| self.event(change)).collect::<Result<_, _>>()?;
            return Ok((events, latest));
        }
        let (shared, request, next) = (self.shared.clone(), self.request.clone(), self.next);
        let read = tokio::task::spawn_blocking(move || catch_up(&shared, &request, next, latest));
        read.await.map_err(|error| StoreError::Unavailable(format!("reading history failed: {error}")))?
    }

    fn event(&self, change: &PendingChange) -> Result<Event, StoreError> {
        let current = match &change.current {
            Some(slot) => Change::Put(slot.state.entry(change.key.clone(), slot.value.clone().unwrap_or_default())),
            None => Change::Delete(change.key.clone()),
        };
        let previous = match &change.previous {
            Some(slot) if self.request.previous => match &slot.value {
                Some(value) => Some(slot.state.entry(change.key.clone(), value.clone())),
                None => previous(&self.shared.engine.snapshot(), &change.key, slot.state.mod_revision.next())?,
            },
            _ => None,
        };
        Ok(Event { revision: change.revision, change: current, previous })
    }
}

/// Reads some of the history from the disk.
fn catch_up(
    shared: &Shared,
    request: &WatchRequest,
    first: Revision,
    latest: Revision,
) -> Result<(Vec<Event>, Revision), StoreError> {
    let view = shared.engine.snapshot();
    // Asked after the snapshot was taken: what is not compacted now is whole in the snapshot.
    let oldest = shared.index().compacted();
    if first < oldest {
        return Err(StoreError::Compacted { oldest });
    }
    let changes = view.changes(first, latest, CATCH_UP)?;
    let whole = changes.len() < CATCH_UP;
    let reached = if whole { latest } else { changes.last().map_or(latest, |change| change.revision) };
    let mut events = Vec::new();
    for change in changes.into_iter().filter(|change| request.range.contains(&change.key)) {
        let record = view.version(&change.key, change.revision)?;
        let previous = match request.previous {
            true => previous(&view, &change.key, change.revision)?,
            false => None,
        };
        let current = match record {
            Some(Record::Put { state, value }) => Change::Put(state.entry(change.key, value)),
            Some(Record::Deleted) => Change::Delete(change.key),
            None => return Err(StoreError::Corrupted(format!("the change of {} is missing", change.key))),
        };
        events.push(Event { revision: change.revision, change: current, previous });
    }
    Ok((events, reached))
}

/// The entry of a key as it was before `revision`, if that is not compacted.
fn previous(view: &crate::engine::View, key: &Key, revision: Revision) -> Result<Option<Entry>, StoreError> {
    let before = Revision::new(revision.get().saturating_sub(1));
    Ok(match view.version_at(key, before)? {
        Some((_, Record::Put { state, value })) => Some(state.entry(key.clone(), Bytes::clone(&value))),
        _ => None,
    })
}
