//! How large things may grow.

use crate::{Key, StoreError};

/// The sizes that a store accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes in one value.
    pub value_bytes: usize,
    /// The most bytes that the store may take on disk before it refuses to grow. Deletes and compaction still work.
    /// `None` leaves it to the back end's own quota, or to the disk.
    pub store_bytes: Option<u64>,
}

impl Default for Limits {
    /// Values of 1.5 MiB, as Kubernetes has them, in a store without a quota of its own.
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
