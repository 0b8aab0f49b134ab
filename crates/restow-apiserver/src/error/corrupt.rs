//! Stored objects that cannot be decoded, with Kubernetes' messages.

use restow_store::{Entry, Revision};
use std::fmt;

/// The most corrupt objects that a list error names.
pub(crate) const MAX_REPORTED: usize = 100;

/// An object that cannot be decoded. An authorized user can delete it with the option
/// `ignoreStoreReadErrorWithClusterBreakingPotential`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptObject {
    /// Its key.
    pub key: String,
    /// The revision in which it was written.
    pub revision: Revision,
    /// Why it cannot be decoded.
    pub reason: String,
}

impl CorruptObject {
    pub(crate) fn new(entry: &Entry, reason: &dyn fmt::Display) -> Self {
        CorruptObject { key: entry.key.to_string(), revision: entry.mod_revision, reason: reason.to_string() }
    }

    /// The problem, without the key.
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

/// The refusal of an unsafe deletion of an intact object.
pub(crate) fn is_decodable(key: &dyn fmt::Display) -> String {
    format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is not \
         allowed because the object is decodable from storage"
    )
}
