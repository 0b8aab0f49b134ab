//! The hash of a resource's storage version in discovery.

use crate::GroupVersionKind;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// The hash of a storage version. It can only be compared for equality.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StorageVersionHash(String);

impl StorageVersionHash {
    /// The entry for unknown versions in a list of hashes.
    pub const UNKNOWN: &'static str = "Unknown";

    /// The hash with this text, as read from discovery or from a StorageState.
    pub fn new(text: impl Into<String>) -> Self {
        StorageVersionHash(text.into())
    }

    /// The hash of a kind in its storage version.
    pub fn of(stored: &GroupVersionKind) -> Self {
        StorageVersionHash(storage_version_hash(stored.group(), stored.version(), stored.kind()))
    }

    /// The entry for unknown versions.
    pub fn unknown() -> Self {
        StorageVersionHash(Self::UNKNOWN.to_owned())
    }

    /// Whether this is the entry for unknown versions.
    pub fn is_unknown(&self) -> bool {
        self.0 == Self::UNKNOWN
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StorageVersionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kubernetes' own function: the first eight bytes of the SHA-256 of "group/version/kind", in padded base64. The core
/// group is empty, so that its input begins with a slash ("/v1/Pod").
pub fn storage_version_hash(group: &str, version: &str, kind: &str) -> String {
    let digest = Sha256::digest(format!("{group}/{version}/{kind}"));
    STANDARD.encode(&digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_that_kubernetes_shows() {
        assert_eq!(storage_version_hash("", "v1", "ConfigMap"), "qFsyl6wFWjQ=");
        assert_eq!(StorageVersionHash::of(&"Endpoints.v1".parse().unwrap()).as_str(), "fWeeMqaN/OA=");
    }

    #[test]
    fn the_unknown_entry_is_not_a_hash() {
        assert!(StorageVersionHash::unknown().is_unknown());
        assert!(!StorageVersionHash::new("qFsyl6wFWjQ=").is_unknown());
    }
}
