//! The in-memory index: all existing keys with their metadata, and a cache of values within a budget.

use crate::layout::KeyState;
use bytes::Bytes;
use restow_store::{Key, KeyRange, Revision};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

/// The store at its latest revision. While its lock is held, the revision does not change.
pub(crate) struct Index {
    revision: Revision,
    compacted: Revision,
    keys: BTreeMap<Key, Slot>,
    /// The keys with a time to live, by expiry.
    expiring: BTreeSet<(u64, Key)>,
    deleted_keys: DeletedKeys,
    cache: Cache,
}

/// Recently deleted keys, in order, so that the keys at an earlier revision can be counted without reading the disk.
struct DeletedKeys {
    keys: VecDeque<DeletedKey>,
    /// All keys that were deleted after this revision are here.
    since: Revision,
}

struct DeletedKey {
    deleted: Revision,
    created: Revision,
    key: Key,
}

/// How many deleted keys are kept. Counts at earlier revisions read the disk.
const MAX_DELETED_KEYS: usize = 200_000;

/// A key that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) state: KeyState,
    /// The value, if it is cached.
    pub(crate) value: Option<Bytes>,
}

/// The cached values, in the order in which they were added.
struct Cache {
    budget: usize,
    used: usize,
    order: VecDeque<(Key, Revision)>,
}

impl Index {
    pub(crate) fn new(revision: Revision, compacted: Revision, keys: Vec<(Key, KeyState)>, cache_bytes: usize) -> Self {
        let cache = Cache { budget: cache_bytes, used: 0, order: VecDeque::new() };
        let deleted_keys = DeletedKeys { keys: VecDeque::new(), since: revision };
        let mut index =
            Index { revision, compacted, keys: BTreeMap::new(), expiring: BTreeSet::new(), deleted_keys, cache };
        for (key, state) in keys {
            index.set(key, Some(Slot { state, value: None }), revision);
        }
        index
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn compacted(&self) -> Revision {
        self.compacted
    }

    pub(crate) fn set_compacted(&mut self, revision: Revision) {
        self.compacted = revision;
        let past = self.deleted_keys.keys.partition_point(|deleted| deleted.deleted <= revision);
        self.deleted_keys.keys.drain(..past);
    }

    /// The number of keys of a range at an earlier revision; `None` if that is too long ago to tell.
    pub(crate) fn count_at(&self, range: &KeyRange, at: Revision) -> Option<u64> {
        if at < self.deleted_keys.since {
            return None;
        }
        let first = self.deleted_keys.keys.partition_point(|deleted| deleted.deleted <= at);
        let deleted_keys = self.deleted_keys.keys.range(first..);
        let deleted_keys = deleted_keys.filter(|deleted| deleted.created <= at && range.contains(&deleted.key)).count();
        let present = self.range(range).filter(|(_, slot)| slot.state.create_revision <= at).count();
        Some((deleted_keys + present) as u64)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Slot> {
        self.keys.get(key)
    }

    /// The keys of a range in order.
    pub(crate) fn range(&self, range: &KeyRange) -> impl Iterator<Item = (&Key, &Slot)> {
        let start = Bound::Included(range.start().as_ref());
        // An empty range may end before it starts, for which the map would panic.
        let end = match range.end() {
            Some(_) if range.is_empty() => Bound::Included(range.start().as_ref()),
            Some(end) => Bound::Excluded(end.as_ref()),
            None => Bound::Unbounded,
        };
        self.keys.range::<[u8], _>((start, end)).filter(|(key, _)| range.contains(key))
    }

    /// Applies these changes, each at its own revision, and advances to `revision`; `None` deletes a key.
    pub(crate) fn publish(
        &mut self,
        revision: Revision,
        changes: impl IntoIterator<Item = (Revision, Key, Option<Slot>)>,
    ) {
        for (at, key, slot) in changes {
            self.set(key, slot, at);
        }
        self.revision = revision;
    }

    /// The keys that have expired at `now`.
    pub(crate) fn expired(&self, now: u64, limit: usize) -> Vec<(Key, Revision)> {
        let due = self.expiring.iter().take_while(|(time, _)| *time <= now).take(limit);
        due.filter_map(|(_, key)| Some((key.clone(), self.keys.get(key)?.state.mod_revision))).collect()
    }

    /// When the next key expires.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.expiring.first().map(|(time, _)| *time)
    }

    /// Caches a value that was read from the disk, if no other value has to be evicted for it.
    pub(crate) fn cache_value(&mut self, key: &Key, revision: Revision, value: &Bytes) {
        if self.cache.used + value.len() > self.cache.budget {
            return;
        }
        let Some(slot) = self.keys.get_mut(key) else { return };
        if slot.state.mod_revision == revision && slot.value.is_none() {
            slot.value = Some(value.clone());
            self.cache.used += value.len();
            self.cache.order.push_back((key.clone(), revision));
        }
    }

    fn set(&mut self, key: Key, slot: Option<Slot>, now: Revision) {
        let expires_at = slot.as_ref().map_or(0, |slot| slot.state.expires_at);
        if expires_at != 0 {
            self.expiring.insert((expires_at, key.clone()));
        }
        if let Some(Slot { state, value: Some(value) }) = &slot {
            self.cache.used += value.len();
            self.cache.order.push_back((key.clone(), state.mod_revision));
        }
        let is_deleted = slot.is_none();
        let before = match slot {
            Some(slot) => self.keys.insert(key.clone(), slot),
            None => self.keys.remove(&key),
        };
        if let Some(before) = before {
            self.cache.used -= before.value.map_or(0, |value| value.len());
            if before.state.expires_at != 0 && before.state.expires_at != expires_at {
                self.expiring.remove(&(before.state.expires_at, key.clone()));
            }
            if is_deleted {
                self.deleted_keys.add(DeletedKey { deleted: now, created: before.state.create_revision, key });
            }
        }
        self.evict();
    }

    fn evict(&mut self) {
        while self.cache.used > self.cache.budget {
            let Some((key, revision)) = self.cache.order.pop_front() else { break };
            if let Some(slot) = self.keys.get_mut(&key).filter(|slot| slot.state.mod_revision == revision) {
                self.cache.used -= slot.value.take().map_or(0, |value| value.len());
            }
        }
        // Keys that are written often leave stale entries in the queue.
        if self.cache.order.len() > 2 * self.keys.len() + 1024 {
            let keys = &self.keys;
            self.cache.order.retain(|(key, revision)| {
                keys.get(key).is_some_and(|slot| slot.state.mod_revision == *revision && slot.value.is_some())
            });
        }
    }
}

impl DeletedKeys {
    fn add(&mut self, deleted: DeletedKey) {
        if self.keys.len() >= MAX_DELETED_KEYS
            && let Some(forgotten) = self.keys.pop_front()
        {
            self.since = forgotten.deleted;
        }
        self.keys.push_back(deleted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::try_from(text).unwrap()
    }

    fn slot(revision: u64, value: &str, expires_at: u64) -> Option<Slot> {
        let revision = Revision::new(revision);
        let state = KeyState { create_revision: revision, mod_revision: revision, version: 1, expires_at };
        Some(Slot { state, value: Some(Bytes::copy_from_slice(value.as_bytes())) })
    }

    fn cached(index: &Index) -> usize {
        index.keys.values().filter_map(|slot| slot.value.as_ref()).map(Bytes::len).sum()
    }

    #[test]
    fn the_oldest_values_are_evicted_first_and_the_keys_stay() {
        let mut index = Index::new(Revision::new(1), Revision::ZERO, Vec::new(), 10);
        for n in 2..8 {
            index.publish(Revision::new(n), [(Revision::new(n), key(&format!("k{n}")), slot(n, "1234", 0))]);
            assert_eq!(index.cache.used, cached(&index));
            assert!(index.cache.used <= 10);
        }
        assert_eq!(index.range(&KeyRange::all()).count(), 6);
        assert!(index.get(&key("k2")).unwrap().value.is_none());
        assert!(index.get(&key("k7")).unwrap().value.is_some());
        index.publish(
            Revision::new(9),
            [(Revision::new(9), key("k7"), None), (Revision::new(9), key("k6"), slot(9, "", 0))],
        );
        assert_eq!(index.cache.used, 0);
        index.cache_value(&key("k2"), Revision::new(2), &"1234".into());
        index.cache_value(&key("k3"), Revision::new(99), &"1234".into());
        assert_eq!((index.cache.used, cached(&index)), (4, 4));
    }

    #[test]
    fn a_key_that_is_written_often_does_not_fill_the_queue() {
        let mut index = Index::new(Revision::new(1), Revision::ZERO, Vec::new(), 1000);
        for n in 2..10_000 {
            index.publish(Revision::new(n), [(Revision::new(n), key("lease"), slot(n, "x", 0))]);
        }
        assert!(index.cache.order.len() < 2000);
        assert_eq!(index.cache.used, 1);
    }

    #[test]
    fn expiry_follows_the_last_write_of_a_key() {
        let mut index = Index::new(Revision::new(1), Revision::ZERO, Vec::new(), 1000);
        index.publish(
            Revision::new(2),
            [(Revision::new(2), key("a"), slot(2, "", 50)), (Revision::new(2), key("b"), slot(2, "", 60))],
        );
        assert_eq!(index.next_expiry(), Some(50));
        index.publish(Revision::new(3), [(Revision::new(3), key("a"), slot(3, "", 0))]);
        assert_eq!(index.next_expiry(), Some(60));
        index.publish(Revision::new(4), [(Revision::new(4), key("b"), slot(4, "", 60))]);
        assert_eq!(index.expired(59, 9), Vec::new());
        assert_eq!(index.expired(60, 9), [(key("b"), Revision::new(4))]);
        index.publish(Revision::new(5), [(Revision::new(5), key("b"), None)]);
        assert_eq!(index.next_expiry(), None);
    }

    #[test]
    fn keys_at_an_earlier_revision_are_counted() {
        let mut index = Index::new(Revision::new(1), Revision::ZERO, Vec::new(), 1000);
        let at = Revision::new;
        let created = |n| slot(n, "", 0);
        let again = || {
            let slot = created(2).unwrap();
            Some(Slot { state: KeyState { mod_revision: at(4), version: 2, ..slot.state }, ..slot })
        };
        index.publish(at(3), [(at(2), key("a"), created(2)), (at(3), key("b"), created(3))]);
        // `a` is changed, `b` is deleted and made again, `c` comes and goes.
        index.publish(at(5), [(at(4), key("a"), again()), (at(5), key("b"), None)]);
        index.publish(at(8), [(at(6), key("b"), created(6)), (at(7), key("c"), created(7)), (at(8), key("c"), None)]);
        let counts = |index: &Index| [1, 2, 3, 4, 5, 6, 7, 8].map(|n| index.count_at(&KeyRange::all(), at(n)));
        assert_eq!(counts(&index), [0, 1, 2, 2, 1, 2, 3, 2].map(Some));
        assert_eq!(index.count_at(&KeyRange::exactly(&key("b")), at(3)), Some(1));
        index.set_compacted(at(6));
        assert_eq!(counts(&index)[5..], [2, 3, 2].map(Some));
        for n in 9..9 + 2 * MAX_DELETED_KEYS as u64 {
            let change = if n % 2 == 1 { created(n) } else { None };
            index.publish(at(n), [(at(n), key("c"), change)]);
        }
        assert_eq!(index.count_at(&KeyRange::all(), at(7)), None, "that was too long ago");
        assert_eq!(index.count_at(&KeyRange::all(), at(9 + MAX_DELETED_KEYS as u64)), Some(3));
    }

    #[test]
    fn ranges_may_be_empty() {
        let mut index = Index::new(Revision::new(1), Revision::ZERO, Vec::new(), 1000);
        index.publish(Revision::new(2), [(Revision::new(2), key("a"), slot(2, "", 0))]);
        let empty = KeyRange::exactly(&key("a")).after(&key("b"));
        assert_eq!(index.range(&empty).count(), 0);
        assert_eq!(index.range(&KeyRange::exactly(&key("a"))).count(), 1);
    }
}
