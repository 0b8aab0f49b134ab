//! A cache of recent writes of this server, as a first guess at what is stored.
//!
//! Objects are often changed several times in a row by the same client: a lease is renewed, a status is updated. The next
//! change need not read the object first, because its transaction compares the revision anyway. A wrong guess costs one more
//! attempt and decides nothing.

use restow_store::{Entry, Key};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// How many entries are kept in each of two generations.
const GENERATION: usize = 256;
/// Larger values are not kept.
const LARGEST: usize = 8 << 10;

/// The entries.
#[derive(Default)]
pub(super) struct Remembered(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: HashMap<Key, Entry>,
    old: HashMap<Key, Entry>,
}

impl Remembered {
    /// What was last written at a key.
    pub(super) fn get(&self, key: &Key) -> Option<Entry> {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.young.get(key).or_else(|| generations.old.get(key)).cloned()
    }

    /// Remembers what was written, unless something newer is known.
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

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Generations::default();
    }

    /// Forgets the entry of a key, because it was deleted or changed.
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
    fn the_newest_is_remembered_and_the_oldest_forgotten() {
        let remembered = Remembered::default();
        remembered.put(entry(0, 5));
        remembered.put(entry(0, 4));
        assert_eq!(remembered.get(&entry(0, 0).key), Some(entry(0, 5)));
        (1..3 * GENERATION).for_each(|name| remembered.put(entry(name, 6)));
        assert_eq!(remembered.get(&entry(0, 0).key), None);
        let last = entry(3 * GENERATION - 1, 6);
        assert_eq!(remembered.get(&last.key), Some(last.clone()));
        remembered.forget(&last.key);
        assert_eq!(remembered.get(&last.key), None);
    }
}
