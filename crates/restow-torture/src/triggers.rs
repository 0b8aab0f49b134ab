//! Moments that events wait for: faults do most harm in the middle of something.

use std::fmt;
use std::time::Duration;
use tokio::sync::Notify;

/// How long an event waits for its moment before it happens anyway.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A controller asks a server to rewrite an object.
    Rewrite,
    /// A controller reads a CRD.
    CrdRead,
    /// A controller changes a CRD: its mark, or `status.storedVersions`.
    CrdWrite,
    /// A server writes a StorageVersion.
    Report,
    /// A server takes its identity lease.
    Join,
    /// The servers agree on the version of a resource that users write.
    Agreement,
}

/// Tells those who wait for a moment that it has come.
#[derive(Default)]
pub(crate) struct Triggers([Notify; Trigger::ALL.len()]);

impl Trigger {
    pub(crate) const ALL: [Trigger; 6] =
        [Trigger::Rewrite, Trigger::CrdRead, Trigger::CrdWrite, Trigger::Report, Trigger::Join, Trigger::Agreement];

    /// The moment that a request of a controller is, if it is one.
    pub(crate) fn of_request(method: &http::Method, path: &str) -> Option<Self> {
        let is_change = matches!(*method, http::Method::PATCH | http::Method::PUT);
        match path {
            path if path.contains("/customresourcedefinitions/widgets") => {
                Some(if is_change { Trigger::CrdWrite } else { Trigger::CrdRead })
            }
            path if is_change && (path.contains("/widgets/") || path.contains("/endpointslices/")) => {
                Some(Trigger::Rewrite)
            }
            _ => None,
        }
    }

    /// The moment that a write of this key is, if it is one.
    pub(crate) fn of_key(key: &[u8]) -> Option<Self> {
        match key {
            key if key.starts_with(b"/internal.apiserver.k8s.io/storageversions/") => Some(Trigger::Report),
            b"/restow/identity-lease-taken" => Some(Trigger::Join),
            _ => None,
        }
    }
}

impl Triggers {
    pub(crate) fn fire(&self, trigger: Trigger) {
        self.0[trigger as usize].notify_waiters();
    }

    /// Waits for the moment, or for a while.
    pub(crate) async fn wait_for(&self, trigger: Trigger) {
        // It does not matter which of the two came first.
        let _ = tokio::time::timeout(LONGEST_WAIT, self.0[trigger as usize].notified()).await;
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trigger::Rewrite => "an object is rewritten",
            Trigger::CrdRead => "a controller reads a CRD",
            Trigger::CrdWrite => "a controller changes a CRD",
            Trigger::Report => "a server reports",
            Trigger::Join => "a server joins",
            Trigger::Agreement => "servers agree",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    #[test]
    fn requests_and_keys_are_recognised() {
        let rewrite = "/apis/example.com/v1/namespaces/torture/widgets/a?fieldManager=restow";
        let trim = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com/status";
        assert_eq!(Trigger::of_request(&Method::PATCH, rewrite), Some(Trigger::Rewrite));
        assert_eq!(Trigger::of_request(&Method::GET, rewrite), None);
        assert_eq!(Trigger::of_request(&Method::PATCH, trim), Some(Trigger::CrdWrite));
        assert_eq!(Trigger::of_request(&Method::GET, trim), Some(Trigger::CrdRead));
        assert_eq!(Trigger::of_key(b"/internal.apiserver.k8s.io/storageversions/core.pods"), Some(Trigger::Report));
        assert_eq!(Trigger::of_key(b"/core/pods/a"), None);
    }
}
