//! The watch cache: fans the changes of the store out to any number of watchers.
//!
//! The server watches the whole store once. The recent changes of each collection are in a ring buffer; a watcher is a cursor
//! into a ring, so a thousand watchers cost no more memory than one. A slow watcher delays no others: when its cursor has
//! expired from the ring, it continues with the store's own history. The memory of each ring and of all rings is bounded.

use crate::resource::codec::Opening;
use bytes::Bytes;
use restow_store::{Change, Entry, Event, Key, KeyRange, Revision, Store, StoreError, WatchRequest};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The maximum number of changes in a ring.
const RING_EVENTS: usize = 4096;
/// The maximum bytes of a ring, beyond the latest change.
const RING_BYTES: usize = 16 << 20;
/// The maximum bytes of all rings together.
const ALL_BYTES: usize = 128 << 20;
/// The bytes of changes that a watcher receives at once, beyond the first revision.
const BATCH_BYTES: usize = 256 << 10;

/// The recent changes of a store, by collection.
pub struct WatchCache {
    state: Mutex<State>,
    reached: watch::Sender<Revision>,
    /// How many times the store was reset to an earlier state, as when a backup is restored.
    losses: watch::Sender<u64>,
    /// The bytes in all rings.
    held_bytes: Arc<AtomicUsize>,
    /// The maximum of `held_bytes`.
    max_bytes: usize,
}

struct State {
    rings: BTreeMap<String, Arc<Ring>>,
    /// Every change after this revision has been seen.
    since: Revision,
    /// The latest revision of a history that was lost. Until the present history has reached it, a revision that has not been
    /// reached may be a lost one.
    lost: Revision,
}

/// The recent changes of one collection.
struct Ring {
    events: Mutex<RingEvents>,
    /// The number of the next event, to wake watchers by.
    next: watch::Sender<u64>,
    /// The bytes in all rings.
    held_bytes: Arc<AtomicUsize>,
}

struct RingEvents {
    queue: VecDeque<Arc<CacheEvent>>,
    /// The number of the first event in the queue.
    first: u64,
    bytes: usize,
    /// Every change of this collection after this revision is in the queue.
    floor: Revision,
    /// The watch on the store was interrupted with a gap; this ring gets no more changes.
    closed: bool,
}

/// A change to one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEvent {
    /// The revision of the change.
    pub revision: Revision,
    /// The object's key.
    pub key: Key,
    /// The object after the change; `None` when it was deleted.
    pub current: Option<Entry>,
    /// The object before the change; `None` when it was created.
    pub previous: Option<Entry>,
    rendered: Rendered,
}

/// The number of encodings (JSON, protobuf) in which a change is cached.
pub(crate) const FORMS: usize = 2;

/// The encoded watch event of a change. The first watcher that needs it encodes it, the others share it.
#[derive(Clone, Debug, Default)]
struct Rendered([OnceLock<(Opening, Bytes)>; FORMS]);

/// The cached encodings are not part of the change.
impl PartialEq for Rendered {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Rendered {}

/// A cursor in the changes of a range of keys.
pub struct Subscription {
    ring: Arc<Ring>,
    range: KeyRange,
    cursor: u64,
    after: Revision,
    wake: watch::Receiver<u64>,
    reached: watch::Receiver<Revision>,
}

/// The requested changes are not in the watch cache any more, or the watcher was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired;

impl WatchCache {
    /// Starts a watch cache at the latest revision of a store. The caller runs the returned future for as long as the cache is used.
    pub async fn start(
        store: Arc<dyn Store>,
    ) -> Result<(Arc<Self>, impl Future<Output = ()> + Send + 'static), StoreError> {
        let since = store.status().await?.revision;
        let (reached, _) = watch::channel(since);
        let state = State { rings: BTreeMap::new(), since, lost: Revision::ZERO };
        let (state, losses) = (Mutex::new(state), watch::Sender::new(0));
        let watch_cache =
            Arc::new(WatchCache { state, reached, losses, held_bytes: Arc::default(), max_bytes: ALL_BYTES });
        let following = watch_cache.clone().run(store, since);
        Ok((watch_cache, following))
    }

    /// The revision up to which all changes were published.
    pub fn reached(&self) -> Revision {
        *self.reached.borrow()
    }

    /// Changes whenever the store was reset to an earlier state, so that what was read before is invalid.
    pub(crate) fn losses(&self) -> watch::Receiver<u64> {
        self.losses.subscribe()
    }

    /// Subscribes to the changes after `after` in `range`, which lies in the collection `folder`.
    pub fn subscribe(&self, folder: &str, range: KeyRange, after: Revision) -> Result<Subscription, Expired> {
        let reached = self.reached();
        if after > reached && reached < lock(&self.state).lost {
            return Err(Expired);
        }
        let ring = self.ring(folder);
        let events = lock(&ring.events);
        if after < events.floor || events.closed {
            return Err(Expired);
        }
        let skipped = events.queue.partition_point(|event| event.revision <= after);
        let cursor = events.first + skipped as u64;
        drop(events);
        let wake = ring.next.subscribe();
        Ok(Subscription { wake, ring, range, cursor, after, reached: self.reached.subscribe() })
    }

    async fn run(self: Arc<Self>, store: Arc<dyn Store>, mut since: Revision) {
        let mut pause = Duration::from_millis(20);
        loop {
            let request =
                WatchRequest::from(KeyRange::all(), since.next()).with_previous().with_progress(Duration::from_secs(1));
            let ended = match store.watch(request).await {
                Err(error) => error,
                Ok(mut watch) => loop {
                    match watch.next().await {
                        Some(Ok(batch)) => {
                            pause = Duration::from_millis(20);
                            since = batch.revision;
                            self.publish(batch.events);
                            self.reached.send_replace(since);
                        }
                        Some(Err(error)) => break error,
                        None => break StoreError::Unavailable("the watch ended".into()),
                    }
                },
            };
            tracing::warn!(error = %ended, "the watch on the store was interrupted; starting it again");
            if let StoreError::Compacted { .. } | StoreError::HistoryLost = ended {
                since = self.reset(&store, &ended).await;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    /// The changes since the last one are lost: watchers cannot be served without a gap, so all must list again. They learn that
    /// once the store reports its revision.
    async fn reset(&self, store: &Arc<dyn Store>, why: &StoreError) -> Revision {
        let status = loop {
            match store.status().await {
                Ok(status) => break status,
                Err(error) => tracing::warn!(%error, "the revision of the store could not be read; trying again"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        if *why == StoreError::HistoryLost {
            let reached = self.reached();
            let mut state = lock(&self.state);
            state.lost = state.lost.max(reached);
        }
        self.reached.send_replace(status.revision);
        self.close_rings(status.revision);
        if *why == StoreError::HistoryLost {
            self.losses.send_modify(|losses| *losses += 1);
        }
        status.revision
    }

    fn close_rings(&self, since: Revision) {
        let mut state = lock(&self.state);
        for ring in state.rings.values() {
            ring.close();
        }
        state.rings.clear();
        state.since = since;
    }

    fn publish(&self, events: Vec<Event>) {
        let mut folders: BTreeMap<String, Vec<CacheEvent>> = BTreeMap::new();
        for event in events {
            let Some(folder) = folder_of(event.key()).map(str::to_string) else { continue };
            folders.entry(folder).or_default().push(event.into());
        }
        for (folder, events) in folders {
            self.ring(&folder).push(events);
        }
        if self.held_bytes.load(Ordering::Relaxed) > self.max_bytes {
            self.evict();
        }
    }

    /// Evicts the oldest changes from the largest rings. It evicts a little more than needed, so that it is seldom done.
    fn evict(&self) {
        let mut rings: Vec<Arc<Ring>> = lock(&self.state).rings.values().cloned().collect();
        rings.sort_by_cached_key(|ring| lock(&ring.events).bytes);
        let max_bytes = self.max_bytes - self.max_bytes / 8;
        while let Some(largest) = rings.pop()
            && self.held_bytes.load(Ordering::Relaxed) > max_bytes
        {
            let surplus = self.held_bytes.load(Ordering::Relaxed).saturating_sub(max_bytes);
            let mut events = lock(&largest.events);
            let bytes = events.bytes.saturating_sub(surplus);
            largest.evict_oldest(&mut events, bytes);
        }
    }

    fn ring(&self, folder: &str) -> Arc<Ring> {
        let mut state = lock(&self.state);
        if let Some(ring) = state.rings.get(folder) {
            return ring.clone();
        }
        let ring = Arc::new(Ring::new(state.since, self.held_bytes.clone()));
        state.rings.insert(folder.to_string(), ring.clone());
        ring
    }
}

impl Ring {
    fn new(floor: Revision, held_bytes: Arc<AtomicUsize>) -> Self {
        let events = RingEvents { queue: VecDeque::new(), first: 0, bytes: 0, floor, closed: false };
        Ring { events: Mutex::new(events), next: watch::channel(0).0, held_bytes }
    }

    /// Adds the changes of whole revisions at once, so that no watcher sees a part of a revision.
    fn push(&self, changes: Vec<CacheEvent>) {
        let mut events = lock(&self.events);
        for change in changes {
            let bytes = change.bytes();
            events.bytes += bytes;
            self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
            events.queue.push_back(Arc::new(change));
        }
        self.evict_oldest(&mut events, RING_BYTES);
        let next = events.first + events.queue.len() as u64;
        drop(events);
        self.next.send_replace(next);
    }

    /// Evicts the oldest changes until no more than `bytes` are left, or only the latest change.
    fn evict_oldest(&self, events: &mut RingEvents, bytes: usize) {
        while events.queue.len() > RING_EVENTS || events.bytes > bytes && events.queue.len() > 1 {
            let Some(oldest) = events.queue.pop_front() else { break };
            events.first += 1;
            events.bytes -= oldest.bytes();
            self.held_bytes.fetch_sub(oldest.bytes(), Ordering::Relaxed);
            events.floor = oldest.revision;
        }
    }

    /// Ends the subscriptions to this ring.
    fn close(&self) {
        let mut events = lock(&self.events);
        events.closed = true;
        events.queue.clear();
        self.held_bytes.fetch_sub(std::mem::take(&mut events.bytes), Ordering::Relaxed);
        drop(events);
        self.next.send_modify(|_| {});
    }
}

impl From<Event> for CacheEvent {
    fn from(event: Event) -> Self {
        let (key, current) = match event.change {
            Change::Put(entry) => (entry.key.clone(), Some(entry)),
            Change::Delete(key) => (key, None),
        };
        CacheEvent { revision: event.revision, key, current, previous: event.previous, rendered: Rendered::default() }
    }
}

impl CacheEvent {
    /// The type of the watch event and its object; `None` if the object existed neither before nor after.
    pub(crate) fn kind(&self) -> Option<(&'static str, &Entry)> {
        match (&self.current, &self.previous) {
            (Some(entry), None) => Some(("ADDED", entry)),
            (Some(entry), Some(_)) => Some(("MODIFIED", entry)),
            (None, Some(entry)) => Some(("DELETED", entry)),
            (None, None) => None,
        }
    }

    /// The change in one of the [`FORMS`], for watchers of all objects in the version with this prefix. The first
    /// watcher encodes it; `None` if it was encoded for another version or cannot be encoded.
    pub(crate) fn rendered(
        &self,
        form: usize,
        opening: &Opening,
        render: impl FnOnce() -> Option<Bytes>,
    ) -> Option<Bytes> {
        let slot = self.rendered.0.get(form)?;
        if slot.get().is_none() {
            let _ = slot.set((opening.clone(), render()?));
        }
        let (known, bytes) = slot.get()?;
        (known == opening).then(|| bytes.clone())
    }

    /// The approximate memory of the change, with its cached encodings.
    fn bytes(&self) -> usize {
        let size = |entry: &Option<Entry>| entry.as_ref().map_or(0, |entry| entry.value.len());
        2 * (size(&self.current) + size(&self.previous)) + self.key.as_ref().len()
    }
}

impl Subscription {
    /// The next changes, in order, a bounded number of them. Returns the revision up to which everything has been delivered.
    pub async fn next(&mut self) -> Result<(Vec<Arc<CacheEvent>>, Revision), Expired> {
        loop {
            self.wake.borrow_and_update();
            let (events, reached) = self.take()?;
            if !events.is_empty() {
                return Ok((events, reached));
            }
            if self.wake.changed().await.is_err() {
                return Err(Expired);
            }
        }
    }

    /// Whether the history of this subscription has ended: the store was reset, or compacted changes that were not delivered.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.ring.events).closed
    }

    /// The changes that are available now, a bounded number of them; empty only if there are none.
    pub fn take(&mut self) -> Result<(Vec<Arc<CacheEvent>>, Revision), Expired> {
        // The reached revision is read first, so that everything up to it is in the ring already.
        let reached = *self.reached.borrow();
        let events = lock(&self.ring.events);
        if events.closed || self.cursor < events.first {
            return Err(Expired);
        }
        let skip = usize::try_from(self.cursor - events.first).unwrap_or(usize::MAX);
        let (mut wanted, mut bytes, mut last) = (Vec::new(), 0, self.after);
        for event in events.queue.iter().skip(skip) {
            // A revision is delivered as a whole, so that the revision to resume from is well defined.
            if bytes >= BATCH_BYTES && event.revision > last {
                return Ok((wanted, last));
            }
            self.cursor += 1;
            if event.revision > self.after && self.range.contains(&event.key) {
                bytes += event.bytes();
                wanted.push(event.clone());
            }
            last = last.max(event.revision);
        }
        Ok((wanted, reached.max(last)))
    }
}

/// The collection of a key: its first two parts.
fn folder_of(key: &Key) -> Option<&str> {
    let text = std::str::from_utf8(key.as_ref()).ok()?;
    let mut slashes = text.match_indices('/').map(|(offset, _)| offset);
    let end = slashes.nth(2)?;
    Some(&text[..=end])
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held left at worst an event undelivered to a ring that is about to be rebuilt.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
