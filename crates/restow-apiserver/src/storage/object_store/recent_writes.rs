//! A cache of recent writes of this server.
//!
//! Clients often change an object several times in a row: they renew a lease, or update a status. The next change need
//! not read the object first, because its transaction compares the revision anyway. A stale entry costs one more
//! attempt and has no other effect.

use restow_store::{Entry, Key};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The number of entries in each of the two generations.
const GENERATION: usize = 256;
/// The size of the largest cached value.
const LARGEST: usize = 8 << 10;

/// The cached entries by key.
#[derive(Default)]
pub(super) struct RecentWrites(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<Key, Entry>,
    old: HashMap<Key, Entry>,
}

impl RecentWrites {
    /// The last write of a key.
    pub(super) fn get(&self, key: &Key) -> Option<Entry> {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.young.get(key).or_else(|| generations.old.get(key)).cloned()
    }

    /// Caches a write, unless a newer one is cached.
    pub(super) fn put(&self, entry: Entry) {
        if entry.value.len() > LARGEST {
            return self.forget(&entry.key);
        }
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = generations.young.get(&entry.key).or_else(|| generations.old.get(&entry.key));
        if known.is_some_and(|known| known.mod_revision >= entry.mod_revision) {
            return;
        }
        if generations.young.len() >= GENERATION {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.old.remove(&entry.key);
        generations.young.insert(entry.key.clone(), entry);
    }

    /// Removes all entries.
    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Generations::default();
    }

    /// Removes the entry of a key.
    pub(super) fn forget(&self, key: &Key) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.young.remove(key);
        generations.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_store::Revision;

    fn entry(name: usize, revision: u64) -> Entry {
        Entry {
            key: Key::try_from(format!("/a/{name}")).unwrap(),
            value: vec![b'x'; 10].into(),
            create_revision: Revision::new(1),
            mod_revision: Revision::new(revision),
            version: 1,
        }
    }

    #[test]
    fn the_newest_write_is_kept_and_the_oldest_is_evicted() {
        let recent_writes = RecentWrites::default();
        recent_writes.put(entry(0, 5));
        recent_writes.put(entry(0, 4));
        assert_eq!(recent_writes.get(&entry(0, 0).key), Some(entry(0, 5)));
        (1..3 * GENERATION).for_each(|name| recent_writes.put(entry(name, 6)));
        assert_eq!(recent_writes.get(&entry(0, 0).key), None);
        let last = entry(3 * GENERATION - 1, 6);
        assert_eq!(recent_writes.get(&last.key), Some(last.clone()));
        recent_writes.forget(&last.key);
        assert_eq!(recent_writes.get(&last.key), None);
    }

    #[test]
    fn a_key_that_is_not_written_again_is_kept_for_one_more_generation() {
        let recent_writes = RecentWrites::default();
        let kept = |name: usize| recent_writes.get(&entry(name, 0).key).is_some();
        (0..2 * GENERATION).for_each(|name| recent_writes.put(entry(name, 6)));
        assert!(kept(0) && kept(GENERATION) && kept(2 * GENERATION - 1));
        recent_writes.put(entry(2 * GENERATION, 6));
        assert!(!kept(0) && kept(GENERATION) && kept(2 * GENERATION));
        recent_writes.clear();
        assert!(!kept(GENERATION) && !kept(2 * GENERATION));
    }

    #[test]
    fn a_large_object_is_not_cached_and_replaces_a_small_one() {
        let recent_writes = RecentWrites::default();
        let of_size = |size: usize, revision| Entry { value: vec![b'x'; size].into(), ..entry(0, revision) };
        let largest = of_size(8192, 5);
        recent_writes.put(largest.clone());
        assert_eq!(recent_writes.get(&largest.key), Some(largest.clone()));
        recent_writes.put(of_size(8193, 6));
        assert_eq!(recent_writes.get(&largest.key), None);
    }
}
