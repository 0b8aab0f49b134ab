//! Errors of a store, by what the caller can do about them.

use crate::{Entry, Key, Revision};
use thiserror::Error;

/// A failed call.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The key is not as the caller expected: read it again and retry.
    #[error("the key {key} was changed by someone else")]
    Conflict {
        /// The key.
        key: Key,
        /// What is stored now; `None` when the key does not exist.
        current: Option<Box<Entry>>,
    },
    /// The requested revision was compacted: list again, then watch from there.
    #[error("the requested revision has been compacted; the oldest one available is {oldest}")]
    Compacted {
        /// The oldest revision that can still be read.
        oldest: Revision,
    },
    /// The store was rolled back, as after a backup was restored: known revisions may be used again for other changes.
    /// Discard what was read, and list again.
    #[error("the store was rolled back to an earlier state; everything has to be read again")]
    HistoryLost,
    /// The requested revision does not exist yet.
    #[error("revision {requested} is in the future; the store is at {current}")]
    FutureRevision {
        /// The requested revision.
        requested: Revision,
        /// The latest revision.
        current: Revision,
    },
    /// The value is larger than the store accepts.
    #[error("the value of {key} has {size} bytes; the limit is {limit}")]
    TooLarge {
        /// The key.
        key: Key,
        /// The bytes of the refused value.
        size: usize,
        /// The most bytes accepted.
        limit: usize,
    },
    /// The store is full, by its quota or on its disk (NOSPACE): delete and compact, or free disk space. Nothing was written.
    #[error("the store is full: {0}")]
    Full(String),
    /// The request is invalid.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The store could not be reached or could not serve; the request was not applied and can be retried.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The request was sent and no response came: it may or may not have been applied, or may be applied later.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// Stored data is corrupt. A person has to look at it.
    #[error("the store is corrupted: {0}")]
    Corrupted(String),
    /// The credentials were refused.
    #[error("the store refused access: {0}")]
    Denied(String),
}
