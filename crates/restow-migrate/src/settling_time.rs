//! Since when all API servers were seen to encode a version.
//!
//! A server shows a new storage version in its discovery document while requests are still under way that it began before,
//! with a handler that encodes the old one. kube-apiserver lets most of them run for 34 s, but one that deletes a collection,
//! as the deletion of a namespace does, for as long as its `--request-timeout`. A server that is shut down takes its address
//! and its lease away before it has ended what it began. So a pass through all objects proves nothing until that time has
//! gone by since the last server showed the new version, or one was last seen to leave: the settling time. It is counted by
//! our own clock, from when we saw it.

use restow_api::{GroupResource, StorageVersionHash};
use restow_rules::migrate::api_servers::ApiServers;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a server may go on writing what it encoded before it showed another version: the longest that kube-apiserver
/// lets a writing request run (`--request-timeout`, 60 s), some 7 s in which etcd may commit what the server gave up waiting
/// for, and a little.
pub const SETTLING_TIME: Duration = Duration::from_secs(70);

/// What was agreed on, and by whom. Any change of it begins the settling time anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenAgreement {
    /// The version.
    pub hash: StorageVersionHash,
    /// The uid and generation of the CRD that names it; nothing for a resource without one.
    pub crd: Option<(String, i64)>,
    /// The servers that show it.
    pub servers: ApiServers,
}

/// Since when servers were seen to agree, by resource.
#[derive(Clone, Debug, Default)]
pub struct AgreementTracker {
    since: Arc<Mutex<BTreeMap<GroupResource, (SeenAgreement, Instant)>>>,
}

impl AgreementTracker {
    /// Takes down what was seen just now. Returns since when it was seen without interruption.
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

    /// Takes down that there was no agreement just now.
    pub fn saw_none(&self, resource: &GroupResource) {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).remove(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(hash: &str, generation: i64) -> SeenAgreement {
        let crd = Some(("uid".to_owned(), generation));
        SeenAgreement { hash: StorageVersionHash::new(hash), crd, servers: ApiServers::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_changes_begins_the_settling_time_anew() {
        let (agreements, resource): (AgreementTracker, GroupResource) =
            (AgreementTracker::default(), "a.x.io".parse().unwrap());
        let wait = || tokio::time::advance(Duration::from_secs(5));
        let first = agreements.saw(&resource, agreed("v2", 2));
        wait().await;
        assert_eq!(agreements.saw(&resource, agreed("v2", 2)), first, "nothing has changed");
        // There and back again while nobody looked: the generation tells.
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
        assert_eq!(fourth, Instant::now(), "a server was started anew");
        wait().await;
        let fifth = agreements.saw(&resource, agreed("v3", 4));
        assert_eq!(fifth, Instant::now(), "a server has left, and may still end what it began");
    }
}
