//! The keys that exist now, in memory, with the values that fit into a budget.

use crate::layout::KeyState;
use bytes::Bytes;
use restow_store::{Key, KeyRange, Revision};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

/// The present state of the store. Whoever holds its lock sees one revision.
pub(crate) struct Index {
    revision: Revision,
    compacted: Revision,
    keys: BTreeMap<Key, Slot>,
    /// The keys that expire, by time.
    expiring: BTreeSet<(u64, Key)>,
    cache: Cache,
}

/// A key that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) state: KeyState,
    /// The value, when it is kept in memory.
    pub(crate) value: Option<Bytes>,
}

/// Which values are in memory, the oldest first.
struct Cache {
    budget: usize,
    used: usize,
    order: VecDeque<(Key, Revision)>,
}

impl Index {
    pub(crate) fn new(revision: Revision, compacted: Revision, keys: Vec<(Key, KeyState)>, cache_bytes: usize) -> Self {
        let cache = Cache { budget: cache_bytes, used: 0, order: VecDeque::new() };
        let mut index = Index { revision, compacted, keys: BTreeMap::new(), expiring: BTreeSet::new(), cache };
        for (key, state) in keys {
            index.set(key, Some(Slot { state, value: None }));
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
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Slot> {
        self.keys.get(key)
    }

    /// The keys of a range in order.
    pub(crate) fn range(&self, range: &KeyRange) -> impl Iterator<Item = (&Key, &Slot)> {
        let start = Bound::Included(range.start().as_ref());
        // An empty range may have its bounds the wrong way round, which the map does not like.
        let end = match range.end() {
            Some(_) if range.is_empty() => Bound::Included(range.start().as_ref()),
            Some(end) => Bound::Excluded(end.as_ref()),
            None => Bound::Unbounded,
        };
        self.keys.range::<[u8], _>((start, end)).filter(|(key, _)| range.contains(key))
    }

    /// Moves on to `revision` with these changes; `None` deletes a key.
    pub(crate) fn publish(&mut self, revision: Revision, changes: impl IntoIterator<Item = (Key, Option<Slot>)>) {
        for (key, slot) in changes {
            self.set(key, slot);
        }
        self.revision = revision;
    }

    /// The keys whose time is up at `now`.
    pub(crate) fn expired(&self, now: u64, limit: usize) -> Vec<(Key, Revision)> {
        let due = self.expiring.iter().take_while(|(time, _)| *time <= now).take(limit);
        due.filter_map(|(_, key)| Some((key.clone(), self.keys.get(key)?.state.mod_revision))).collect()
    }

    /// When the next key expires.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.expiring.first().map(|(time, _)| *time)
    }

    /// Remembers a value that was read from the disk, if there is room for it without forgetting another.
    pub(crate) fn remember(&mut self, key: &Key, revision: Revision, value: &Bytes) {
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

    fn set(&mut self, key: Key, slot: Option<Slot>) {
        let expires_at = slot.as_ref().map_or(0, |slot| slot.state.expires_at);
        if expires_at != 0 {
            self.expiring.insert((expires_at, key.clone()));
        }
        if let Some(Slot { state, value: Some(value) }) = &slot {
            self.cache.used += value.len();
            self.cache.order.push_back((key.clone(), state.mod_revision));
        }
        let before = match slot {
            Some(slot) => self.keys.insert(key.clone(), slot),
            None => self.keys.remove(&key),
        };
        if let Some(before) = before {
            self.cache.used -= before.value.map_or(0, |value| value.len());
            if before.state.expires_at != 0 && before.state.expires_at != expires_at {
                self.expiring.remove(&(before.state.expires_at, key));
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
        // Keys that are written again and again leave their earlier places in the queue behind.
        if self.cache.order.len() > 2 * self.keys.len() + 1024 {
            let keys = &self.keys;
            self.cache.order.retain(|(key, revision)| {
                keys.get(key).is_some_and(|slot| slot.state.mod_revision == *revision && slot.value.is_some())
            });
        }
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
    fn the_oldest_values_are_forgotten_first_and_the_keys_stay() {
        let mut index = Index::new(Revision::new(1), Revision::ZERO, Vec::new(), 10);
        for n in 2..8 {
            index.publish(Revision::new(n), [(key(&format!("k{n}")), slot(n, "1234", 0))]);
            assert_eq!(index.cache.used, cached(&index));
            assert!(index.cache.used <= 10);
        }
        assert_eq!(index.range(&KeyRange::all()).count(), 6);
        assert!(index.get(&key("k2")).unwrap().value.is_none());
        assert!(index.get(&key("k7")).unwrap().value.is_some());
        index.publish(Revision::new(9), [(key("k7"), None), (key("k6"), slot(9, "", 0))]);
        assert_eq!(index.cache.used, 0);
        index.remember(&key("k2"), Revision::new(2), &"1234".into());
        index.remember(&key("k3"), Revision::new(99), &"1234".into());
        assert_eq!((index.cache.used, cached(&index)), (4, 4));
    }

    #[test]
    fn a_key_that_is_written_often_does_not_fill_the_queue() {
        let mut index = Index::new(Revision::new(1), Revision::ZERO, Vec::new(), 1000);
        for n in 2..10_000 {
            index.publish(Revision::new(n), [(key("lease"), slot(n, "x", 0))]);
        }
        assert!(index.cache.order.len() < 2000);
        assert_eq!(index.cache.used, 1);
    }

    #[test]
    fn expiry_follows_the_last_write_of_a_key() {
        let mut index = Index::new(Revision::new(1), Revision::ZERO, Vec::new(), 1000);
        index.publish(Revision::new(2), [(key("a"), slot(2, "", 50)), (key("b"), slot(2, "", 60))]);
        assert_eq!(index.next_expiry(), Some(50));
        index.publish(Revision::new(3), [(key("a"), slot(3, "", 0))]);
        assert_eq!(index.next_expiry(), Some(60));
        index.publish(Revision::new(4), [(key("b"), slot(4, "", 60))]);
        assert_eq!(index.expired(59, 9), Vec::new());
        assert_eq!(index.expired(60, 9), [(key("b"), Revision::new(4))]);
        index.publish(Revision::new(5), [(key("b"), None)]);
        assert_eq!(index.next_expiry(), None);
    }

    #[test]
    fn ranges_may_be_empty() {
        let mut index = Index::new(Revision::new(1), Revision::ZERO, Vec::new(), 1000);
        index.publish(Revision::new(2), [(key("a"), slot(2, "", 0))]);
        let empty = KeyRange::exactly(&key("a")).after(&key("b"));
        assert_eq!(index.range(&empty).count(), 0);
        assert_eq!(index.range(&KeyRange::exactly(&key("a"))).count(), 1);
    }
}
