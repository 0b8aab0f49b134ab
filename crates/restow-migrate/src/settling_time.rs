//! Since when all API servers agree, and the settling time.
//!
//! A server publishes a new storage version while older requests are still running, with a handler that encodes the old
//! version. kube-apiserver lets most of them run for 34 s, but a delete of a collection, as in a namespace deletion, as
//! long as its `--request-timeout`. A server that shuts down removes its endpoint and its lease before its requests have
//! ended. So a pass proves nothing until this time has passed since the last server published the new version, or one left.
//! It is measured with the clock of this process, from when it was observed.

use restow_api::{GroupResource, StorageVersionHash};
use restow_rules::migrate::api_servers::ApiServers;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The default settling time: the longest time that kube-apiserver lets a write run (`--request-timeout`, 60 s), 7 s in
/// which etcd may commit a write after the server gave up, and a margin.
pub const SETTLING_TIME: Duration = Duration::from_secs(70);

/// An agreement: on what, and of which servers. Any change restarts the settling time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenAgreement {
    /// The version.
    pub hash: StorageVersionHash,
    /// The uid and generation of the CRD; `None` for a resource without one.
    pub crd: Option<(String, i64)>,
    /// The servers.
    pub servers: ApiServers,
    /// What changes with the aggregated API servers that serve it.
    pub marks: BTreeMap<String, String>,
}

/// Since when servers agree, by resource.
#[derive(Clone, Debug, Default)]
pub struct AgreementTracker {
    since: Arc<Mutex<BTreeMap<GroupResource, (SeenAgreement, Instant)>>>,
}

impl AgreementTracker {
    /// Records an observed agreement. Returns since when it is unchanged.
    pub fn saw(&self, resource: &GroupResource, agreed: SeenAgreement) -> Instant {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        match since.get(resource) {
            Some((before, at)) if *before == agreed => *at,
            _ => {
                since.insert(resource.clone(), (agreed, now));
                now
            }
        }
    }

    /// Records that the servers do not agree.
    pub fn saw_none(&self, resource: &GroupResource) {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).remove(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(hash: &str, generation: i64) -> SeenAgreement {
        let crd = Some(("uid".to_owned(), generation));
        let servers = ApiServers::default();
        SeenAgreement { hash: StorageVersionHash::new(hash), crd, servers, marks: BTreeMap::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_changes_begins_the_settling_time_anew() {
        let (agreements, resource): (AgreementTracker, GroupResource) =
            (AgreementTracker::default(), "a.x.io".parse().unwrap());
        let wait = || tokio::time::advance(Duration::from_secs(5));
        let first = agreements.saw(&resource, agreed("v2", 2));
        wait().await;
        assert_eq!(agreements.saw(&resource, agreed("v2", 2)), first, "nothing has changed");
        // Changed and changed back between two observations: the generation shows it.
        let second = agreements.saw(&resource, agreed("v2", 4));
        assert_eq!(second - first, Duration::from_secs(5));
        wait().await;
        let third = agreements.saw(&resource, agreed("v3", 4));
        assert!(third > second);
        wait().await;
        agreements.saw_none(&resource);
        assert!(agreements.saw(&resource, agreed("v3", 4)) > third, "they ceased to agree in between");
        let restarted =
            ApiServers { identities: Ok(BTreeMap::from([("a".into(), "a_2".into())])), ..ApiServers::default() };
        wait().await;
        let fourth = agreements.saw(&resource, SeenAgreement { servers: restarted, ..agreed("v3", 4) });
        assert_eq!(fourth, Instant::now(), "a server was restarted");
        wait().await;
        let fifth = agreements.saw(&resource, agreed("v3", 4));
        assert_eq!(fifth, Instant::now(), "a server has left, and may still end what it began");
        wait().await;
        let marks = BTreeMap::from([("EndpointSlice n/s".to_owned(), "2".to_owned())]);
        let sixth = agreements.saw(&resource, SeenAgreement { marks, ..agreed("v3", 4) });
        assert_eq!(sixth, Instant::now(), "so may a server behind a Service");
    }
}
