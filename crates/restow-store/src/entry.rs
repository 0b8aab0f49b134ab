//! A key with its value, as it was at some revision.

use crate::{Key, Revision};
use bytes::Bytes;

/// One key of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value; empty if only keys were requested.
    pub value: Bytes,
    /// The revision at which the key was last created.
    pub create_revision: Revision,
    /// The revision at which the key was last written.
    pub mod_revision: Revision,
    /// How often the key has been written since it was created; 1 for a new key.
    pub version: u64,
}
