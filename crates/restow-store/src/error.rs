//! What can go wrong in a store, by what the caller can do about it.

use crate::{Entry, Key, Revision};
use thiserror::Error;

/// A failed call.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The key is not as the caller expected: read again, decide again.
    #[error("the key {key} was changed by someone else")]
    Conflict {
        /// The key.
        key: Key,
        /// What is stored now; `None` when the key does not exist.
        current: Option<Box<Entry>>,
    },
    /// The history asked for was given up: list again, then watch from there.
    #[error("the revision asked for has been compacted; the oldest one available is {oldest}")]
    Compacted {
        /// The oldest revision that can still be read.
        oldest: Revision,
    },
    /// The store has gone back to an earlier state, as after a backup was restored: revisions that were told before may
    /// come again with something else. Forget what was read, and list again.
    #[error("the store has gone back to an earlier state; everything has to be read again")]
    HistoryLost,
    /// The revision asked for does not exist yet.
    #[error("revision {requested} lies in the future; the store is at {current}")]
    FutureRevision {
        /// The revision asked for.
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
    /// The store has no room left, by its quota or on its disk: compact, delete, or make room. Nothing was written.
    #[error("the store is full: {0}")]
    Full(String),
    /// The request breaks a rule of the store.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The store could not be reached or could not serve; the request was not applied and can be repeated.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The request was sent and no answer came: it may or may not have been applied, now or later.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// What is stored cannot be understood. Someone has to look.
    #[error("the store is corrupted: {0}")]
    Corrupted(String),
    /// The credentials were refused.
    #[error("the store refused access: {0}")]
    Denied(String),
}
