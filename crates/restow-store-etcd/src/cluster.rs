//! The cluster: sends a call to a member that can serve it, and retries it on others, within a deadline.
//!
//! It knows which failures may be retried, and not what the calls mean.

use crate::auth::{AuthToken, TokenSource};
use crate::config::EtcdConfig;
use crate::failure::{CallError, Failure, Problem, Rejection};
use crate::member::{Connection, Member};
use crate::proto::kv_client::KvClient;
use crate::proto::lease_client::LeaseClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::watch_client::WatchClient;
use crate::version::{Feature, ServerVersion};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};

/// The largest response that is accepted. Lists come in pages of a few MiB; this is for pages of huge values.
const MAX_RESPONSE_BYTES: usize = 512 * 1024 * 1024;
/// With less time left than this, no further attempt is made.
const MIN_REMAINING: Duration = Duration::from_millis(20);
/// The shortest timeout of a read at one member, while there are others to try.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// The delays between rounds of attempts. A round tries every member once.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(50))
    .with_max_delay(Duration::from_millis(500))
    .without_max_times();

/// All members. Calls go to the current one.
pub(crate) struct EtcdCluster {
    members: Vec<Member>,
    current: AtomicUsize,
    tokens: Arc<TokenSource>,
    request_timeout: Duration,
    logged_versions: Mutex<Vec<ServerVersion>>,
}

/// Whether a call changes something. A write is not retried when it may have been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    Read,
    Write,
}

/// A client for one attempt: the connection to a member, and the token to send.
#[derive(Clone)]
pub(crate) struct Client {
    connection: Connection,
    token: AuthToken,
    member: usize,
    /// The deadline that is sent to the server; `None` for streams.
    timeout: Option<Duration>,
}

impl Client {
    pub(crate) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.connection.channel.clone())
            .max_decoding_message_size(MAX_RESPONSE_BYTES)
            .max_encoding_message_size(usize::MAX)
    }

    pub(crate) fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.connection.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(crate) fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.connection.channel.clone())
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.connection.channel.clone())
    }

    /// The member's version, if it may be read.
    pub(crate) fn version(&self) -> Option<ServerVersion> {
        self.connection.version
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.connection.version.is_none_or(|version| version.has(feature))
    }

    /// Adds the gRPC metadata for etcd to a message.
    pub(crate) fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        // A member without a leader then fails at once; else the call would wait, and a watch would get no events.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = self.token.value() {
            request.metadata_mut().insert("token", token.clone());
        }
        if let Some(timeout) = self.timeout {
            request.set_timeout(timeout);
        }
        request
    }
}

impl EtcdCluster {
    /// A cluster with members at these endpoints; `any_key` is a key that we may read.
    pub(crate) fn new(config: &EtcdConfig, endpoints: Vec<Endpoint>, any_key: &Bytes) -> Self {
        let tokens = Arc::new(TokenSource::new(config.credentials.clone()));
        let identity = Arc::new(OnceLock::new());
        let members = endpoints
            .into_iter()
            .map(|endpoint| {
                let (tokens, identity) = (tokens.clone(), identity.clone());
                Member::new(endpoint, config.connect_timeout, tokens, identity, any_key.clone())
            })
            .collect();
        EtcdCluster {
            members,
            current: AtomicUsize::new(0),
            tokens,
            request_timeout: config.request_timeout,
            logged_versions: Mutex::default(),
        }
    }

    /// The deadline of a call, with all its attempts.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// Sends a call, to several members if necessary, until one responds or the deadline has passed.
    pub(crate) async fn call<T, Operation, Response>(
        &self,
        kind: CallKind,
        operation: Operation,
    ) -> Result<T, CallError>
    where
        Operation: Fn(Client) -> Response,
        Response: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut attempts = Attempts::new(kind, Instant::now() + self.request_timeout, self.members.len());
        loop {
            let mut client = match timeout(attempts.remaining(), self.client()).await {
                Ok(Ok(client)) => client,
                Ok(Err(failure)) => {
                    attempts.not_connected(failure).await?;
                    continue;
                }
                Err(_) => return Err(attempts.out_of_time("connecting took too long")),
            };
            let attempt_timeout = attempts.attempt_timeout();
            client.timeout = Some(attempt_timeout);
            let failure = match timeout(attempt_timeout, operation(client.clone())).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => Failure::from_status(&status),
                Err(_) => Failure::no_response(format!("no response within {attempt_timeout:?}")),
            };
            self.report(&client, &failure);
            match failure {
                Failure::Unauthenticated(reason) => self.renew(&mut attempts, &client, reason).await?,
                other => attempts.failed(other).await?,
            }
        }
    }

    /// A client of the current member. If it cannot be connected, the next member becomes the current one.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        let member = self.current.load(Ordering::Relaxed);
        let connect = async {
            let connection = self.members[member].connection().await?;
            match self.tokens.token(&connection.channel).await {
                Ok(token) => Ok(Client { connection, token, member, timeout: None }),
                Err(failure) => {
                    self.disconnect(member, &connection, &failure);
                    Err(failure)
                }
            }
        };
        match connect.await {
            Ok(client) => {
                self.log_version(&client);
                Ok(client)
            }
            Err(failure) => {
                self.switch_member(member, &failure);
                Err(failure)
            }
        }
    }

    /// Handles a failure for the calls to come: closes a broken connection, and switches to the next member.
    pub(crate) fn report(&self, client: &Client, failure: &Failure) {
        self.disconnect(client.member, &client.connection, failure);
        self.switch_member(client.member, failure);
    }

    /// Replaces a token that was rejected; fails with [`Rejection::Denied`] if there are no credentials.
    pub(crate) async fn replace_token(&self, client: &Client, reason: String) -> Result<(), Failure> {
        if !self.tokens.can_renew() {
            return Err(Failure::Rejected(Rejection::Denied(reason)));
        }
        self.tokens.renew(&client.token, &client.connection.channel).await.map(|_| ())
    }

    async fn renew(&self, attempts: &mut Attempts, client: &Client, reason: String) -> Result<(), CallError> {
        if attempts.token_renewed {
            return Err(CallError::Rejected(Rejection::Denied(reason)));
        }
        match timeout(attempts.remaining(), self.replace_token(client, reason)).await {
            Ok(Ok(())) => {
                attempts.token_renewed = true;
                Ok(())
            }
            Ok(Err(failure)) => attempts.failed(failure).await,
            Err(_) => Err(attempts.out_of_time("authenticating took too long")),
        }
    }

    fn disconnect(&self, member: usize, connection: &Connection, failure: &Failure) {
        if let Failure::NotApplied(Problem { disconnected: true, .. })
        | Failure::OutcomeUnknown(Problem { disconnected: true, .. }) = failure
        {
            self.members[member].disconnect(connection);
        }
    }

    fn switch_member(&self, member: usize, failure: &Failure) {
        if !matches!(failure, Failure::NotApplied(_) | Failure::OutcomeUnknown(_)) {
            return;
        }
        let next = (member + 1) % self.members.len();
        if self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let (from, to) = (self.members[member].address(), self.members[next].address());
            tracing::debug!(reason = failure.reason(), from, to, "an etcd member failed, switching to the next one");
        }
    }

    /// Logs the version of a server and its known bugs, once for each version.
    fn log_version(&self, client: &Client) {
        let Some(version) = client.version() else { return };
        let mut logged_versions = self.logged_versions.lock().unwrap_or_else(PoisonError::into_inner);
        if logged_versions.contains(&version) {
            return;
        }
        logged_versions.push(version);
        tracing::info!(address = self.members[client.member].address(), %version, "connected to etcd");
        for bug in version.known_bugs() {
            tracing::warn!(%version, "this etcd version has a bug: {bug}");
        }
    }
}

/// The attempts of one call.
struct Attempts {
    kind: CallKind,
    deadline: Instant,
    members: usize,
    failures: usize,
    /// How many members in a row could not be connected.
    unreachable_members: usize,
    /// Whether a new token was requested, so that another rejection is final.
    token_renewed: bool,
    backoff: ExponentialBackoff,
    last_reason: Option<String>,
}

impl Attempts {
    fn new(kind: CallKind, deadline: Instant, members: usize) -> Self {
        Attempts {
            kind,
            deadline,
            members,
            failures: 0,
            unreachable_members: 0,
            token_renewed: false,
            backoff: BACKOFF.build(),
            last_reason: None,
        }
    }

    fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The timeout of the next attempt. A read leaves time for the other members; a write without a response is not
    /// retried, so it takes all the time.
    fn attempt_timeout(&self) -> Duration {
        let others = self.members.saturating_sub(self.failures + 1) as u32;
        match self.kind {
            CallKind::Write => self.remaining(),
            CallKind::Read => (self.remaining() / (others + 1)).max(MIN_ATTEMPT_TIMEOUT).min(self.remaining()),
        }
    }

    /// A member could not be connected, so nothing was sent. If no member can be connected, the call fails before its
    /// deadline.
    async fn not_connected(&mut self, failure: Failure) -> Result<(), CallError> {
        self.unreachable_members += 1;
        if self.unreachable_members >= self.members && matches!(failure, Failure::NotApplied(_)) {
            return Err(CallError::Unavailable(failure.reason()));
        }
        let unreachable_members = self.unreachable_members;
        self.failed(failure).await?;
        self.unreachable_members = unreachable_members;
        Ok(())
    }

    /// An attempt failed: returns the final error, or waits until the next attempt.
    async fn failed(&mut self, failure: Failure) -> Result<(), CallError> {
        self.unreachable_members = 0;
        match failure {
            Failure::Rejected(rejection) => return Err(CallError::Rejected(rejection)),
            Failure::Unauthenticated(reason) => return Err(CallError::Rejected(Rejection::Denied(reason))),
            Failure::OutcomeUnknown(problem) if self.kind == CallKind::Write => {
                return Err(CallError::OutcomeUnknown(problem.reason));
            }
            Failure::OutcomeUnknown(problem) | Failure::NotApplied(problem) => self.last_reason = Some(problem.reason),
        }
        self.failures += 1;
        if self.failures.is_multiple_of(self.members) {
            let delay = self.backoff.next().unwrap_or_default();
            sleep(delay.min(self.remaining())).await;
        }
        if self.remaining() < MIN_REMAINING { Err(self.out_of_time("no time is left")) } else { Ok(()) }
    }

    /// The error for a deadline that has passed between two attempts, so that nothing is in flight.
    fn out_of_time(&mut self, reason: &str) -> CallError {
        CallError::Unavailable(match self.last_reason.take() {
            Some(last) => format!("{reason}; the last attempt failed: {last}"),
            None => reason.to_owned(),
        })
    }
}
