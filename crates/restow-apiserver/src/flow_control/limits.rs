//! Limits on requests in flight (max-requests-inflight), so that an overloaded server still responds.
//!
//! Requests that read and requests that may write are limited apart. Watches do not count: they are idle most of the time.
//! Leases and the clients of the control plane have reserved permits; health checks and administrators are exempt.

use crate::error::ApiError;
use crate::flow_control::fair_queue::{Flow, KeyedSemaphore};
use crate::metrics::{Metrics, RequestKind};
use crate::request::request_info::RequestTarget;
use crate::resource::Verb;
use prometheus_client::metrics::gauge::Gauge;
use restow_auth::User;
use restow_auth::user::MASTERS;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a request waits for a permit before it is rejected (429). Bursts are shorter than this.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);
/// The `Retry-After` of a rejected request.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Limits on requests and connections, and their timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadLimits {
    /// The most requests that only read, at once; 0 for no limit.
    pub requests_in_flight: usize,
    /// The most requests that may write, at once; 0 for no limit.
    pub mutating_requests_in_flight: usize,
    /// How long a request may take, watches apart.
    pub request_timeout: Duration,
    /// The most connections at once, without a reserve for health checks and administrators. Past it, an idle connection
    /// is closed for a new one, preferably one whose client has shown no credentials.
    pub connections: usize,
    /// How long a client may take for its TLS handshake.
    pub handshake_timeout: Duration,
    /// How long a client may take from the beginning of its connection to the end of the head of its first request.
    pub head_timeout: Duration,
    /// How long a connection may idle between requests.
    pub idle_timeout: Duration,
    /// How long a client may take for the body of a request.
    pub body_timeout: Duration,
    /// How long a client may leave sent data unread.
    pub stall_timeout: Duration,
    /// How long running requests may continue after shutdown began.
    pub drain: Duration,
}

impl Default for LoadLimits {
    fn default() -> Self {
        LoadLimits {
            requests_in_flight: 400,
            mutating_requests_in_flight: 200,
            request_timeout: Duration::from_secs(60),
            connections: 20_000,
            handshake_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
            body_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            drain: Duration::from_secs(10),
        }
    }
}

/// The priority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PriorityLevel {
    /// Never rejected.
    Exempt,
    /// Keeps the control plane alive: has reserved permits beside the shared ones.
    System,
    /// Everything else.
    Workload,
}

/// The permits for requests in flight.
pub(crate) struct InFlight {
    read_only: Pool,
    mutating: Pool,
}

struct Pool {
    shared: Arc<Semaphore>,
    /// How many of the shared permits a single flow may have.
    flows: KeyedSemaphore,
    /// How many permits a single flow may have for leases.
    lease_flows: KeyedSemaphore,
    reserved: Arc<Semaphore>,
    gauge: Gauge,
}

/// The permit of a request. Dropping it gives it back.
pub(crate) struct InFlightPermit {
    permits: [Option<OwnedSemaphorePermit>; 2],
    gauge: Gauge,
}

impl InFlightPermit {
    /// The work is done, and the response waits for its client. From now on the request counts for its own flow only, so
    /// that a user cannot have more unread responses than requests.
    pub(crate) fn release_shared(&mut self) {
        let [own, shared] = &mut self.permits;
        let released = if shared.is_some() { shared } else { own };
        *released = None;
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

impl InFlight {
    pub(crate) fn new(limits: &LoadLimits, metrics: &Metrics) -> Self {
        let pool = |limit: usize, kind| Pool {
            shared: Arc::new(Semaphore::new(if limit == 0 { Semaphore::MAX_PERMITS } else { limit })),
            flows: KeyedSemaphore::new(if limit == 0 { Semaphore::MAX_PERMITS } else { limit.div_ceil(4) }),
            lease_flows: KeyedSemaphore::new(if limit == 0 {
                Semaphore::MAX_PERMITS
            } else {
                limit.div_ceil(4).max(4)
            }),
            reserved: Arc::new(Semaphore::new((limit / 4).max(8))),
            gauge: metrics.requests.in_flight(kind).clone(),
        };
        InFlight {
            read_only: pool(limits.requests_in_flight, RequestKind::ReadOnly),
            mutating: pool(limits.mutating_requests_in_flight, RequestKind::Mutating),
        }
    }

    /// Waits briefly for a permit. `None` for requests that need none.
    pub(crate) async fn acquire(
        &self,
        user: &User,
        target: &RequestTarget,
    ) -> Result<Option<InFlightPermit>, ApiError> {
        if matches!(target, RequestTarget::Resource(target) if target.verb == Verb::Watch) {
            return Ok(None);
        }
        let pool = match kind(target) {
            RequestKind::ReadOnly => &self.read_only,
            RequestKind::Mutating => &self.mutating,
        };
        let permits = match priority_level(user, target) {
            PriorityLevel::Exempt => [None, None],
            PriorityLevel::System if is_system(user) => [Some(pool.system_permit().await?), None],
            // Every client may renew leases, and none gets all permits for them.
            PriorityLevel::System => {
                let own = acquire_within(pool.lease_flows.get(&user.flow_distinguisher())).await?;
                [Some(own), Some(pool.system_permit().await?)]
            }
            PriorityLevel::Workload => {
                // Only a flow that has many permits waits for its own ones.
                let own = acquire_within(pool.flows.get(&user.flow_distinguisher())).await?;
                [Some(own), Some(pool.shared_permit().await?)]
            }
        };
        pool.gauge.inc();
        Ok(Some(InFlightPermit { permits, gauge: pool.gauge.clone() }))
    }
}

impl Pool {
    async fn shared_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        acquire_within(self.shared.clone()).await
    }

    async fn system_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if let Ok(permit) = self.shared.clone().try_acquire_owned() {
            return Ok(permit);
        }
        if let Ok(permit) = self.reserved.clone().try_acquire_owned() {
            return Ok(permit);
        }
        self.shared_permit().await
    }
}

/// Waits up to [`QUEUE_TIMEOUT`] for a permit.
async fn acquire_within(semaphore: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ApiError> {
    if let Ok(permit) = semaphore.clone().try_acquire_owned() {
        return Ok(permit);
    }
    match tokio::time::timeout(QUEUE_TIMEOUT, semaphore.acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(too_many_requests()),
    }
}

fn kind(target: &RequestTarget) -> RequestKind {
    match target {
        RequestTarget::Path(_) => RequestKind::ReadOnly,
        RequestTarget::Resource(target) => match target.verb {
            Verb::Get | Verb::List | Verb::Watch => RequestKind::ReadOnly,
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => RequestKind::Mutating,
        },
    }
}

/// Whether a request may use a connection of the reserve.
pub(crate) fn is_urgent(user: &User, target: &RequestTarget) -> bool {
    priority_level(user, target) != PriorityLevel::Workload
}

/// Rejects a request because of the limits.
pub(crate) fn too_many_requests() -> ApiError {
    ApiError::TooManyRequests { retry_after: RETRY_AFTER }
}

fn priority_level(user: &User, target: &RequestTarget) -> PriorityLevel {
    // Administrators must be able to repair an overloaded server.
    if user.groups.iter().any(|group| group == MASTERS) {
        return PriorityLevel::Exempt;
    }
    match target {
        RequestTarget::Path(path) if ["/healthz", "/livez", "/readyz"].iter().any(|known| path.starts_with(known)) => {
            PriorityLevel::Exempt
        }
        RequestTarget::Resource(target) if target.group == "coordination.k8s.io" && target.resource == "leases" => {
            PriorityLevel::System
        }
        _ if is_system(user) => PriorityLevel::System,
        _ => PriorityLevel::Workload,
    }
}

/// The flow of a request in the fair queue.
pub(crate) fn flow(user: &User, target: &RequestTarget) -> Flow {
    match priority_level(user, target) {
        PriorityLevel::Exempt => Flow::Exempt,
        PriorityLevel::System | PriorityLevel::Workload => Flow::Named(user.flow_distinguisher().into_owned()),
    }
}

/// The control plane's own clients: its components, its controllers, and the nodes.
fn is_system(user: &User) -> bool {
    matches!(user.name.as_str(), "system:kube-controller-manager" | "system:kube-scheduler" | "system:apiserver")
        || user.groups.iter().any(|group| group == "system:nodes" || group == "system:serviceaccounts:kube-system")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::request_info::target;

    fn user(name: &str, groups: &[&str]) -> User {
        User { name: name.into(), groups: groups.iter().map(|group| group.to_string()).collect(), ..User::default() }
    }

    fn of(method: &str, path: &str) -> RequestTarget {
        target(&http::Method::from_bytes(method.as_bytes()).unwrap(), path, false)
    }

    fn limits(requests: usize, mutating: usize) -> InFlight {
        let limits =
            LoadLimits { requests_in_flight: requests, mutating_requests_in_flight: mutating, ..LoadLimits::default() };
        InFlight::new(&limits, &Metrics::default())
    }

    #[test]
    fn the_priority_level_depends_on_the_user_and_the_target() {
        let check =
            |user: &User, path: &str, expected| assert_eq!(priority_level(user, &of("GET", path)), expected, "{path}");
        let anyone = user("anna", &["system:authenticated"]);
        check(&anyone, "/api/v1/pods", PriorityLevel::Workload);
        check(&anyone, "/readyz", PriorityLevel::Exempt);
        check(&anyone, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a", PriorityLevel::System);
        check(&user("admin", &["system:masters"]), "/api/v1/pods", PriorityLevel::Exempt);
        check(&user("system:node:a", &["system:nodes"]), "/api/v1/pods", PriorityLevel::System);
    }

    #[tokio::test]
    async fn a_full_server_turns_common_requests_away_and_lets_leases_and_reads_through() {
        let in_flight = limits(1, 1);
        let anyone = user("anna", &[]);
        let write = of("POST", "/api/v1/namespaces/a/pods");
        let first = in_flight.acquire(&anyone, &write).await.unwrap();
        let second = in_flight.acquire(&anyone, &write).await.err();
        assert_eq!(second, Some(ApiError::TooManyRequests { retry_after: RETRY_AFTER }));
        let lease = of("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a");
        assert!(in_flight.acquire(&anyone, &lease).await.is_ok());
        assert!(in_flight.acquire(&anyone, &of("GET", "/api/v1/pods")).await.is_ok());
        assert!(in_flight.acquire(&user("root", &[MASTERS]), &write).await.is_ok());
        drop(first);
        assert!(in_flight.acquire(&anyone, &write).await.is_ok());
    }

    #[tokio::test]
    async fn one_user_does_not_take_the_share_of_others() {
        let in_flight = limits(8, 8);
        let (anna, bert, read) = (user("anna", &[]), user("bert", &[]), of("GET", "/api/v1/pods"));
        let taken = [in_flight.acquire(&anna, &read).await.unwrap(), in_flight.acquire(&anna, &read).await.unwrap()];
        assert!(in_flight.acquire(&anna, &read).await.is_err());
        assert!(in_flight.acquire(&bert, &read).await.is_ok());
        drop(taken);
        assert!(in_flight.acquire(&anna, &read).await.is_ok());
    }

    #[tokio::test]
    async fn the_service_accounts_of_one_namespace_share_one_limit() {
        let in_flight = limits(8, 8);
        let account = |namespace: &str, name: &str| User::service_account(namespace, name, "");
        let (read, lease) = (of("GET", "/api/v1/pods"), of("GET", "/apis/coordination.k8s.io/v1/leases"));
        let mut taken = Vec::new();
        for target in [&read, &lease] {
            let most = if target == &read { 2 } else { 4 };
            for number in 0..most {
                taken.push(in_flight.acquire(&account("mine", &number.to_string()), target).await.unwrap());
            }
            assert!(in_flight.acquire(&account("mine", "another"), target).await.is_err());
            assert!(in_flight.acquire(&account("other", "a"), target).await.is_ok());
        }
        assert_eq!(flow(&account("mine", "a"), &read), flow(&account("mine", "b"), &read));
        assert_ne!(flow(&account("mine", "a"), &read), flow(&account("other", "a"), &read));
        // Controllers are served whatever the accounts of others do, and each has turns of its own.
        for number in 0..4 {
            taken.push(in_flight.acquire(&account("kube-system", &number.to_string()), &read).await.unwrap());
        }
        assert_ne!(flow(&account("kube-system", "a"), &read), flow(&account("kube-system", "b"), &read));
    }

    #[tokio::test]
    async fn a_request_waits_briefly_before_it_is_rejected() {
        let in_flight = Arc::new(limits(1, 1));
        let (anyone, write) = (user("anna", &[]), of("DELETE", "/api/v1/namespaces/a/pods/b"));
        let first = in_flight.acquire(&anyone, &write).await.unwrap();
        let waiting = restow_host::spawn({
            let in_flight = in_flight.clone();
            async move { in_flight.acquire(&anyone, &write).await.map(|_| ()) }
        });
        // The runtime has one thread: after this the other one waits for its turn.
        tokio::task::yield_now().await;
        drop(first);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }
}
