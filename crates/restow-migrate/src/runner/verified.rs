//! Objects that an earlier run has verified, so that a later one need not process them again.

use restow_rules::migrate::passes::is_settled;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The objects that an earlier run has verified: those that were not written since, except for those that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedObjects {
    /// The resource version at which the pass began that verified them.
    pub resource_version: String,
    /// The uids of the objects that failed.
    pub except: Arc<BTreeSet<String>>,
}

impl VerifiedObjects {
    /// Whether this object is one of those that failed.
    pub(crate) fn has_failed(&self, uid: &str) -> bool {
        self.except.contains(uid)
    }

    /// Whether this object is verified.
    pub(crate) fn covers(&self, uid: &str, resource_version: &str) -> bool {
        is_settled(resource_version, &self.resource_version) && !self.has_failed(uid)
    }
}
