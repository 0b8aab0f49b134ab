//! Objects that lie in the store and cannot be read: what is said of them, in the words of Kubernetes.

use restow_store::{Entry, Revision};
use std::fmt;

/// The most unreadable objects that a list names.
pub(crate) const MOST_NAMED: usize = 100;

/// An object that cannot be read. It can be deleted all the same, by who may and says so:
/// `ignoreStoreReadErrorWithClusterBreakingPotential`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptObject {
    /// Where it lies.
    pub key: String,
    /// The revision in which it was written.
    pub revision: Revision,
    /// Why it cannot be read.
    pub reason: String,
}

impl CorruptObject {
    pub(crate) fn new(entry: &Entry, reason: &dyn fmt::Display) -> Self {
        CorruptObject { key: entry.key.to_string(), revision: entry.mod_revision, reason: reason.to_string() }
    }

    /// What is wrong with it, without where it lies.
    pub(crate) fn problem(&self) -> String {
        format!("object not decodable revision={}: {}", self.revision, self.reason)
    }
}

impl fmt::Display for CorruptObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "StorageError: corrupt object, Code: 7, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: {}",
            self.key,
            self.problem()
        )
    }
}

/// Why an object is not removed by force.
pub(crate) fn is_decodable(key: &dyn fmt::Display) -> String {
    format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is not \
         allowed because the object is decodable from storage"
    )
}
