//! The revision of one stored object, as in the Kubernetes API.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An object's `resourceVersion`. It is opaque: use it only as a precondition and for equality.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceVersion(String);

impl ResourceVersion {
    /// The resource version with this text.
    pub fn new(text: impl Into<String>) -> Self {
        ResourceVersion(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
