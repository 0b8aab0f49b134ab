//! How much the server takes on at once, so that it stays able to answer at all.
//!
//! Requests in flight are limited, those that may write more than those that read. Watches do not count: they wait most
//! of the time. What keeps the control plane alive has places of its own: leases, and the system's own clients; health
//! checks and administrators are never turned away.

use crate::error::ApiError;
use crate::flow_control::fair_queue::{PermitsByName, Share};
use crate::metrics::{Metrics, RequestKind};
use crate::request::request_info::Target;
use crate::resource::Verb;
use prometheus_client::metrics::gauge::Gauge;
use restow_auth::User;
use restow_auth::user::MASTERS;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a request waits for its turn before it is turned away. Bursts are shorter than this.
const PATIENCE: Duration = Duration::from_secs(1);
/// After which time a client that was turned away should come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How much a server takes on at once, and how long it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadLimits {
    /// The most requests that only read, at once; 0 for no limit.
    pub requests_in_flight: usize,
    /// The most requests that may write, at once; 0 for no limit.
    pub mutating_requests_in_flight: usize,
    /// How long a request may take, watches apart.
    pub request_timeout: Duration,
    /// The most connections at once, apart from a reserve for health checks and administrators. Past it, a connection that
    /// is not in use gives way, first one whose client has shown no credentials.
    pub connections: usize,
    /// How long a client may take for its TLS handshake.
    pub handshake_timeout: Duration,
    /// How long a client may take from the beginning of its connection to the end of the head of its first request.
    pub head_timeout: Duration,
    /// How long a connection may idle between requests.
    pub idle_timeout: Duration,
    /// How long a client may take for the body of a request.
    pub body_timeout: Duration,
    /// How long a client may go without taking what is sent to it.
    pub stall_timeout: Duration,
    /// How long running requests may go on after the server was asked to stop.
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

/// How important it is that a request is answered soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    /// It is never turned away.
    Exempt,
    /// It keeps the control plane alive: it has places of its own beside the common ones.
    System,
    /// Everything else.
    Common,
}

/// The places for requests.
pub(crate) struct InFlight {
    read_only: Pool,
    mutating: Pool,
}

struct Pool {
    common: Arc<Semaphore>,
    /// How many of the common ones a single flow may have.
    flows: PermitsByName,
    /// How many places a single flow may have for leases.
    holders: PermitsByName,
    reserved: Arc<Semaphore>,
    gauge: Gauge,
}

/// A request's place; it is free again when this is dropped.
pub(crate) struct Running {
    _permits: [Option<OwnedSemaphorePermit>; 2],
    gauge: Gauge,
}

impl Running {
    /// The work is done, and the answer waits for its client. From now on the request counts for its own user only, who
    /// cannot have more unread answers than requests.
    pub(crate) fn work_is_done(&mut self) {
        let [own, common] = &mut self._permits;
        let only = if common.is_some() { common } else { own };
        *only = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

impl InFlight {
    pub(crate) fn new(limits: &LoadLimits, metrics: &Metrics) -> Self {
        let pool = |limit: usize, kind| Pool {
            common: Arc::new(Semaphore::new(if limit == 0 { Semaphore::MAX_PERMITS } else { limit })),
            flows: PermitsByName::new(if limit == 0 { Semaphore::MAX_PERMITS } else { limit.div_ceil(4) }),
            holders: PermitsByName::new(if limit == 0 { Semaphore::MAX_PERMITS } else { limit.div_ceil(4).max(4) }),
            reserved: Arc::new(Semaphore::new((limit / 4).max(8))),
            gauge: metrics.requests.in_flight(kind).clone(),
        };
        InFlight {
            read_only: pool(limits.requests_in_flight, RequestKind::ReadOnly),
            mutating: pool(limits.mutating_requests_in_flight, RequestKind::Mutating),
        }
    }

    /// Waits a little for a place. `None` for requests that need none.
    pub(crate) async fn enter(&self, user: &User, target: &Target) -> Result<Option<Running>, ApiError> {
        if matches!(target, Target::Resource(target) if target.verb == Verb::Watch) {
            return Ok(None);
        }
        let pool = match kind(target) {
            RequestKind::ReadOnly => &self.read_only,
            RequestKind::Mutating => &self.mutating,
        };
        let permits = match rank(user, target) {
            Rank::Exempt => [None, None],
            Rank::System if is_system(user) => [Some(pool.system_place().await?), None],
            // Everybody has leases, and nobody has all places for them.
            Rank::System => {
                let own = place_of(pool.holders.of(&user.flow())).await?;
                [Some(own), Some(pool.system_place().await?)]
            }
            Rank::Common => {
                // A flow that has many places waits for the own ones, and nobody else does.
                let own = place_of(pool.flows.of(&user.flow())).await?;
                [Some(own), Some(pool.common_place().await?)]
            }
        };
        pool.gauge.inc();
        Ok(Some(Running { _permits: permits, gauge: pool.gauge.clone() }))
    }
}

impl Pool {
    async fn common_place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        place_of(self.common.clone()).await
    }

    async fn system_place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if let Ok(permit) = self.common.clone().try_acquire_owned() {
            return Ok(permit);
        }
        if let Ok(permit) = self.reserved.clone().try_acquire_owned() {
            return Ok(permit);
        }
        self.common_place().await
    }
}

/// A place, for which it is worth to wait a little.
async fn place_of(places: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ApiError> {
    if let Ok(permit) = places.clone().try_acquire_owned() {
        return Ok(permit);
    }
    match tokio::time::timeout(PATIENCE, places.acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(turned_away()),
    }
}

fn kind(target: &Target) -> RequestKind {
    match target {
        Target::Path(_) => RequestKind::ReadOnly,
        Target::Resource(target) => match target.verb {
            Verb::Get | Verb::List | Verb::Watch => RequestKind::ReadOnly,
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection => RequestKind::Mutating,
        },
    }
}

/// Whether a request may use a connection that is kept for urgent ones, because all others are in use.
pub(crate) fn is_urgent(user: &User, target: &Target) -> bool {
    rank(user, target) != Rank::Common
}

/// Refuses a request for which there was no connection, and could not be one.
pub(crate) fn turned_away() -> ApiError {
    ApiError::TooManyRequests { retry_after: RETRY_AFTER }
}

fn rank(user: &User, target: &Target) -> Rank {
    // Administrators are let through, so that an overloaded server can be mended.
    if user.groups.iter().any(|group| group == MASTERS) {
        return Rank::Exempt;
    }
    match target {
        Target::Path(path) if ["/healthz", "/livez", "/readyz"].iter().any(|known| path.starts_with(known)) => {
            Rank::Exempt
        }
        Target::Resource(target) if target.group == "coordination.k8s.io" && target.resource == "leases" => {
            Rank::System
        }
        _ if is_system(user) => Rank::System,
        _ => Rank::Common,
    }
}

/// Whose turns the heavy work of a request takes.
pub(crate) fn share(user: &User, target: &Target) -> Share {
    match rank(user, target) {
        Rank::Exempt => Share::Exempt,
        Rank::System | Rank::Common => Share::Of(user.flow().into_owned()),
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

    fn of(method: &str, path: &str) -> Target {
        target(&http::Method::from_bytes(method.as_bytes()).unwrap(), path, false)
    }

    fn limits(requests: usize, mutating: usize) -> InFlight {
        let limits =
            LoadLimits { requests_in_flight: requests, mutating_requests_in_flight: mutating, ..LoadLimits::default() };
        InFlight::new(&limits, &Metrics::default())
    }

    #[test]
    fn the_rank_is_told_by_who_asks_and_for_what() {
        let check = |user: &User, path: &str, expected| assert_eq!(rank(user, &of("GET", path)), expected, "{path}");
        let anyone = user("anna", &["system:authenticated"]);
        check(&anyone, "/api/v1/pods", Rank::Common);
        check(&anyone, "/readyz", Rank::Exempt);
        check(&anyone, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a", Rank::System);
        check(&user("admin", &["system:masters"]), "/api/v1/pods", Rank::Exempt);
        check(&user("system:node:a", &["system:nodes"]), "/api/v1/pods", Rank::System);
    }

    #[tokio::test]
    async fn a_full_server_turns_common_requests_away_and_lets_leases_and_reads_through() {
        let in_flight = limits(1, 1);
        let anyone = user("anna", &[]);
        let write = of("POST", "/api/v1/namespaces/a/pods");
        let first = in_flight.enter(&anyone, &write).await.unwrap();
        let second = in_flight.enter(&anyone, &write).await.err();
        assert_eq!(second, Some(ApiError::TooManyRequests { retry_after: RETRY_AFTER }));
        let lease = of("PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a");
        assert!(in_flight.enter(&anyone, &lease).await.is_ok());
        assert!(in_flight.enter(&anyone, &of("GET", "/api/v1/pods")).await.is_ok());
        assert!(in_flight.enter(&user("root", &[MASTERS]), &write).await.is_ok());
        drop(first);
        assert!(in_flight.enter(&anyone, &write).await.is_ok());
    }

    #[tokio::test]
    async fn one_user_does_not_take_the_places_of_others() {
        let in_flight = limits(8, 8);
        let (anna, bert, read) = (user("anna", &[]), user("bert", &[]), of("GET", "/api/v1/pods"));
        let taken = [in_flight.enter(&anna, &read).await.unwrap(), in_flight.enter(&anna, &read).await.unwrap()];
        assert!(in_flight.enter(&anna, &read).await.is_err());
        assert!(in_flight.enter(&bert, &read).await.is_ok());
        drop(taken);
        assert!(in_flight.enter(&anna, &read).await.is_ok());
    }

    #[tokio::test]
    async fn the_accounts_of_one_namespace_share_their_places() {
        let in_flight = limits(8, 8);
        let account = |namespace: &str, name: &str| User::service_account(namespace, name, "");
        let (read, lease) = (of("GET", "/api/v1/pods"), of("GET", "/apis/coordination.k8s.io/v1/leases"));
        let mut taken = Vec::new();
        for target in [&read, &lease] {
            let most = if target == &read { 2 } else { 4 };
            for number in 0..most {
                taken.push(in_flight.enter(&account("mine", &number.to_string()), target).await.unwrap());
            }
            assert!(in_flight.enter(&account("mine", "another"), target).await.is_err());
            assert!(in_flight.enter(&account("other", "a"), target).await.is_ok());
        }
        assert_eq!(share(&account("mine", "a"), &read), share(&account("mine", "b"), &read));
        assert_ne!(share(&account("mine", "a"), &read), share(&account("other", "a"), &read));
        // Controllers are served whatever the accounts of others do, and each has turns of its own.
        for number in 0..4 {
            taken.push(in_flight.enter(&account("kube-system", &number.to_string()), &read).await.unwrap());
        }
        assert_ne!(share(&account("kube-system", "a"), &read), share(&account("kube-system", "b"), &read));
    }

    #[tokio::test]
    async fn a_request_waits_for_its_turn_before_it_is_turned_away() {
        let in_flight = Arc::new(limits(1, 1));
        let (anyone, write) = (user("anna", &[]), of("DELETE", "/api/v1/namespaces/a/pods/b"));
        let first = in_flight.enter(&anyone, &write).await.unwrap();
        let waiting = tokio::spawn({
            let in_flight = in_flight.clone();
            async move { in_flight.enter(&anyone, &write).await.map(|_| ()) }
        });
        // The runtime has one thread: after this the other one waits for its turn.
        tokio::task::yield_now().await;
        drop(first);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }
}
