//! Cache of metrics by labels, so that labels are not built for every request.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, PoisonError, RwLock};

/// Caches one value for each key. Keys are borrowed, so a lookup allocates nothing.
pub(super) struct SeriesCache<S> {
    known: RwLock<HashMap<u64, Arc<S>>>,
    hasher: RandomState,
}

impl<S> Default for SeriesCache<S> {
    fn default() -> Self {
        SeriesCache { known: RwLock::default(), hasher: RandomState::new() }
    }
}

impl<S> SeriesCache<S> {
    /// The value for `key`, created by `make` if there is none. `is_of` detects hash collisions; then the value of `make` is
    /// used once and not cached.
    pub(super) fn find(&self, key: impl Hash, is_of: impl Fn(&S) -> bool, make: impl FnOnce() -> S) -> Arc<S> {
        let hash = self.hasher.hash_one(key);
        let found = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&hash).cloned();
        match found {
            Some(series) if is_of(&series) => series,
            Some(_) => Arc::new(make()),
            None => {
                let made = Arc::new(make());
                self.known.write().unwrap_or_else(PoisonError::into_inner).entry(hash).or_insert_with(|| made.clone());
                made
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_collision_in_the_series_cache_returns_no_wrong_series() {
        let cache = SeriesCache::<String>::default();
        let first = cache.find("a", |series| series == "a", || "a".into());
        let again = cache.find("a", |series| series == "a", || unreachable!());
        assert!(Arc::ptr_eq(&first, &again));
        let collision = cache.find("a", |_| false, || "b".into());
        assert_eq!(*collision, "b");
        assert_eq!(*cache.find("a", |series| series == "a", || unreachable!()), "a");
    }
}
