//! Leases, for keys with a time to live. In etcd a lease expires, and its keys with it. Granting a lease costs a write, so
//! keys that are written soon after each other with the same time to live share one.
//!
//! No key may expire early. So a lease is granted for longer than the time to live, and is shared only while enough of that
//! reserve is left.

use crate::cluster::{CallKind, EtcdCluster};
use crate::failure::{CallError, Failure};
use crate::proto::{LeaseGrantRequest, LeaseKeepAliveRequest};
use restow_host::Moment;
use restow_store::StoreError;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

const MIN_RESERVE: Duration = Duration::from_secs(1);
const MAX_RESERVE: Duration = Duration::from_secs(60);
/// etcd deletes all keys of a lease at once when it expires; this bounds the work.
const KEYS_PER_LEASE: usize = 1000;

/// The leases that can still be shared, by time to live.
#[derive(Default)]
pub(crate) struct Leases {
    shared: Mutex<HashMap<Duration, Shared>>,
}

struct Shared {
    lease: EtcdLease,
    keys: usize,
}

/// A lease that was granted.
#[derive(Clone, Debug)]
pub(crate) struct EtcdLease {
    id: i64,
    time_to_live: Duration,
    /// It was granted after this moment. Its time also passes while this machine is suspended.
    granted: Moment,
    duration: Duration,
}

impl EtcdLease {
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// Whether less than the time to live is left.
    pub(crate) fn is_too_short(&self) -> bool {
        self.remaining() < self.time_to_live
    }

    fn remaining(&self) -> Duration {
        self.duration.saturating_sub(self.granted.elapsed())
    }

    /// Whether a key that is about to be written can share it. A part of the reserve is for the duration of the write.
    fn is_fresh(&self) -> bool {
        self.remaining() >= self.time_to_live + reserve(self.time_to_live) / 4
    }
}

impl Leases {
    /// A lease that lasts for this time to live from now on.
    pub(crate) async fn claim(&self, cluster: &EtcdCluster, time_to_live: Duration) -> Result<EtcdLease, StoreError> {
        let Ok(mut shared) = timeout(cluster.request_timeout(), self.shared.lock()).await else {
            return Err(StoreError::Unavailable("etcd did not grant a lease in time".into()));
        };
        shared.retain(|_, shared| shared.keys < KEYS_PER_LEASE && shared.lease.is_fresh());
        if let Some(shared) = shared.get_mut(&time_to_live) {
            shared.keys += 1;
            return Ok(shared.lease.clone());
        }
        let lease = grant(cluster, time_to_live).await?;
        shared.insert(time_to_live, Shared { lease: lease.clone(), keys: 1 });
        Ok(lease)
    }

    /// Stops sharing leases that have expired in etcd.
    pub(crate) async fn forget(&self, leases: &[Option<EtcdLease>]) {
        let mut shared = self.shared.lock().await;
        shared.retain(|_, shared| !leases.iter().flatten().any(|lease| lease.id == shared.lease.id));
    }

    /// Renews a lease (keep-alive).
    pub(crate) async fn renew(&self, cluster: &EtcdCluster, lease: &EtcdLease) {
        let id = lease.id;
        let call = cluster.call(CallKind::Read, |client| async move {
            let request = futures::stream::iter([LeaseKeepAliveRequest { id }]);
            let mut answers = client.lease().lease_keep_alive(client.request(request)).await?.into_inner();
            let answer = answers.message().await?;
            Ok(tonic::Response::new(answer.map_or(0, |answer| answer.ttl)))
        });
        match call.await {
            Ok(seconds) if seconds > 0 => tracing::debug!(id, "renewed the lease of a slow write"),
            Ok(_) => tracing::warn!(id, "a write was so slow that its lease expired before it finished"),
            Err(error) => {
                let error = StoreError::from(error);
                tracing::warn!(id, %error, "could not renew the lease of a slow write; its key may expire early");
            }
        }
    }
}

/// How much longer than the time to live a lease lasts.
fn reserve(time_to_live: Duration) -> Duration {
    (time_to_live / 20).clamp(MIN_RESERVE, MAX_RESERVE)
}

async fn grant(cluster: &EtcdCluster, time_to_live: Duration) -> Result<EtcdLease, StoreError> {
    let whole = time_to_live.saturating_add(reserve(time_to_live));
    let seconds = whole.as_secs() + u64::from(whole.subsec_nanos() > 0);
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    // The time is measured from before the request: the server cannot have granted the lease earlier.
    let before = Moment::now();
    // A lease whose grant we do not learn of has no keys and expires, so a retry is harmless: hence `Read`.
    let call = cluster.call(CallKind::Read, |client| async move {
        client.lease().lease_grant(client.request(LeaseGrantRequest { ttl: seconds, id: 0 })).await
    });
    let granted = call.await?;
    if !granted.error.is_empty() {
        return Err(match Failure::from_message(tonic::Code::Unknown, &granted.error) {
            Failure::Rejected(rejection) => CallError::Rejected(rejection).into(),
            other => StoreError::Unavailable(other.reason()),
        });
    }
    let duration = Duration::from_secs(granted.ttl.max(seconds).try_into().unwrap_or_default());
    Ok(EtcdLease { id: granted.id, time_to_live, granted: before, duration })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_grows_with_the_time_to_live_within_bounds() {
        let check = |seconds, expected| {
            assert_eq!(reserve(Duration::from_secs(seconds)), Duration::from_secs(expected), "{seconds}");
        };
        check(0, 1);
        check(10, 1);
        check(60, 3);
        check(3600, 60);
        check(86400, 60);
    }

    #[test]
    fn a_lease_is_shared_only_while_its_reserve_lasts() {
        let time_to_live = Duration::from_secs(1000);
        let with_rest = |seconds: u64| {
            let lease =
                EtcdLease { id: 1, time_to_live, granted: Moment::now(), duration: Duration::from_secs(seconds) };
            (lease.is_fresh(), lease.is_too_short())
        };
        assert_eq!(with_rest(1050), (true, false));
        assert_eq!(with_rest(1010), (false, false), "too little is left for another key");
        assert_eq!(with_rest(990), (false, true));
    }
}
