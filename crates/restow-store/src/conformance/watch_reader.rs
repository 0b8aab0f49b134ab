//! Reads a watch and verifies, batch by batch, the guarantees of every watch: no event comes twice or out of order, and no
//! revision is split. Whether *all* changes came, the caller has to compare.

use super::{TIMEOUT, short};
use crate::{Change, Event, Revision, Store, StoreError, Watch, WatchBatch, WatchRequest};
use std::collections::HashSet;
use tokio::time::timeout;

/// A watch that is read and verified. Its methods panic when the watch violates a guarantee.
pub struct WatchReader {
    watch: Watch,
    request: WatchRequest,
    delivered: Revision,
    notifications: usize,
    events: Vec<Event>,
}

impl WatchReader {
    /// Starts a watch.
    pub async fn start(store: &dyn Store, request: WatchRequest) -> Result<Self, StoreError> {
        let watch = timeout(TIMEOUT, store.watch(request.clone())).await.expect("a watch must start in time")?;
        Ok(WatchReader { watch, request, delivered: Revision::ZERO, notifications: 0, events: Vec::new() })
    }

    /// The next batch, verified; or the error that ended the watch.
    pub async fn batch(&mut self) -> Result<WatchBatch, StoreError> {
        let next = timeout(TIMEOUT, self.watch.next()).await;
        let item = next.unwrap_or_else(|_| panic!("nothing came from {:?} after {}", self.request, self.delivered));
        match item.unwrap_or_else(|| panic!("{:?} ended without an error", self.request)) {
            Ok(batch) => {
                self.verify(&batch);
                self.delivered = batch.revision;
                self.notifications += usize::from(batch.events.is_empty());
                self.events.extend(batch.events.iter().cloned());
                Ok(batch)
            }
            Err(error) => {
                let after = timeout(TIMEOUT, self.watch.next()).await.expect("a watch must end after an error");
                assert!(after.is_none(), "{:?} went on after {error:?}: {after:?}", self.request);
                Err(error)
            }
        }
    }

    /// Reads until everything up to and including `revision` is delivered. The range must have a change there, or the
    /// watch ask for progress notifications.
    pub async fn until(&mut self, revision: Revision) -> Result<(), StoreError> {
        while self.delivered < revision {
            self.batch().await?;
        }
        Ok(())
    }

    /// The events so far.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The revision up to which the watch has delivered everything.
    pub fn delivered(&self) -> Revision {
        self.delivered
    }

    /// The number of progress notifications.
    pub fn notifications(&self) -> usize {
        self.notifications
    }

    fn verify(&self, batch: &WatchBatch) {
        let about = || short(&(batch, "of", &self.request, "which had delivered up to", self.delivered));
        assert!(batch.revision >= self.delivered, "a batch must not go back: {}", about());
        let mut last = self.delivered;
        let mut seen = HashSet::new();
        for event in &batch.events {
            assert!(event.revision > self.delivered, "this revision was already complete: {}", about());
            assert!(event.revision >= last, "events come in order of revision: {}", about());
            assert!(event.revision <= batch.revision, "a batch's revision covers its events: {}", about());
            assert!(self.request.from.is_none_or(|from| event.revision >= from), "too early an event: {}", about());
            assert!(self.request.range.contains(event.key()), "outside the range: {}", about());
            assert!(seen.insert((event.revision, event.key())), "a key changes once in a revision: {}", about());
            if let Change::Put(entry) = &event.change {
                assert_eq!(entry.mod_revision, event.revision, "a put was made at its own revision: {}", about());
                assert_eq!(entry.version == 1, entry.create_revision == entry.mod_revision, "{}", about());
            }
            if let Some(previous) = &event.previous {
                assert!(self.request.previous, "the entry before was not requested: {}", about());
                assert_eq!(&previous.key, event.key(), "{}", about());
                assert!(previous.mod_revision < event.revision, "{}", about());
            }
            last = event.revision;
        }
    }
}
