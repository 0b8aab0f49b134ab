//! Limits: the size of a value, and the quota of a store.

use crate::{Key, StoreError};

/// The sizes that a store accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes in one value.
    pub value_bytes: usize,
    /// The quota: the size on disk at which the store refuses to grow. Deletes and compaction still work. With `None` only
    /// the back end's own quota, or the disk, is a limit.
    pub store_bytes: Option<u64>,
}

impl Default for Limits {
    /// Values of 1.5 MiB, as in Kubernetes, and no quota.
    fn default() -> Self {
        Limits { value_bytes: 3 * 512 * 1024, store_bytes: None }
    }
}

impl Limits {
    /// Refuses a value that is too large.
    pub fn check_value(&self, key: &Key, size: usize) -> Result<(), StoreError> {
        if size > self.value_bytes {
            return Err(StoreError::TooLarge { key: key.clone(), size, limit: self.value_bytes });
        }
        Ok(())
    }
}
