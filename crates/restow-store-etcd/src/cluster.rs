//! The members together: sends a call to one that can serve it, within a deadline.
//!
//! Knows which failures may be repeated; knows nothing of what the calls mean.

use crate::config::EtcdConfig;
use crate::failure::{CallError, Failure, Rejection, Trouble};
use crate::member::{Connection, Member};
use crate::proto::kv_client::KvClient;
use crate::proto::lease_client::LeaseClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::watch_client::WatchClient;
use crate::session::{Session, Token};
use crate::version::{Feature, ServerVersion};
use bytes::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};

/// The largest answer that is accepted. Lists come in pages of a few MiB; this is for pages of huge values.
const MAX_ANSWER_BYTES: usize = 512 * 1024 * 1024;
/// The least time that another attempt is worth.
const WORTHWHILE: Duration = Duration::from_millis(20);
/// The least time that a read gives one member while others are left to ask.
const SHORTEST_TURN: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// All members, one of which is the current one.
pub(crate) struct Cluster {
    members: Vec<Member>,
    current: AtomicUsize,
    session: Arc<Session>,
    request_timeout: Duration,
    announced: Mutex<Vec<ServerVersion>>,
}

/// Whether a call changes something: only what changes nothing is repeated when it may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// What one attempt needs: a connection to a member and the token to show there.
#[derive(Clone)]
pub(crate) struct Link {
    connection: Connection,
    token: Token,
    member: usize,
    /// How long the server may work on a call; none for streams.
    time: Option<Duration>,
}

impl Link {
    pub(crate) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.connection.channel.clone())
            .max_decoding_message_size(MAX_ANSWER_BYTES)
            .max_encoding_message_size(usize::MAX)
    }

    pub(crate) fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.connection.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    pub(crate) fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.connection.channel.clone())
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.connection.channel.clone())
    }

    /// The member's version, where we may know it.
    pub(crate) fn version(&self) -> Option<ServerVersion> {
        self.connection.version
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.connection.version.is_none_or(|version| version.has(feature))
    }

    /// Adds to a message what etcd reads beside it.
    pub(crate) fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        // A member that has lost its leader refuses at once, instead of letting the call wait or the watch starve.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = self.token.value() {
            request.metadata_mut().insert("token", token.clone());
        }
        if let Some(time) = self.time {
            request.set_timeout(time);
        }
        request
    }
}

impl Cluster {
    /// The members at these endpoints; `any_key` is one that we may read.
    pub(crate) fn new(config: &EtcdConfig, endpoints: Vec<Endpoint>, any_key: &Bytes) -> Self {
        let session = Arc::new(Session::new(config.credentials.clone()));
        let identity = Arc::new(OnceLock::new());
        let members = endpoints
            .into_iter()
            .map(|endpoint| {
                let (session, identity) = (session.clone(), identity.clone());
                Member::new(endpoint, config.connect_timeout, session, identity, any_key.clone())
            })
            .collect();
        Cluster {
            members,
            current: AtomicUsize::new(0),
            session,
            request_timeout: config.request_timeout,
            announced: Mutex::default(),
        }
    }

    /// The time that a call may take.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// Sends a call, to several members if need be, until it is answered or its time is over.
    pub(crate) async fn call<T, Operation, Answer>(&self, kind: Kind, operation: Operation) -> Result<T, CallError>
    where
        Operation: Fn(Link) -> Answer,
        Answer: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut course = Course::new(kind, Instant::now() + self.request_timeout, self.members.len());
        loop {
            let mut link = match timeout(course.remaining(), self.link()).await {
                Ok(Ok(link)) => link,
                Ok(Err(failure)) => {
                    course.not_connected(failure).await?;
                    continue;
                }
                Err(_) => return Err(course.out_of_time("connecting took too long")),
            };
            let turn = course.turn();
            link.time = Some(turn);
            let failure = match timeout(turn, operation(link.clone())).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => Failure::of(&status),
                Err(_) => Failure::no_answer(format!("no answer within {turn:?}")),
            };
            self.report(&link, &failure);
            match failure {
                Failure::Unauthenticated(reason) => self.renew(&mut course, &link, reason).await?,
                other => course.failed(other).await?,
            }
        }
    }

    /// A link to the current member. If it cannot be had, the next member becomes the current one.
    pub(crate) async fn link(&self) -> Result<Link, Failure> {
        let member = self.current.load(Ordering::Relaxed);
        let connect = async {
            let connection = self.members[member].connection().await?;
            match self.session.token(&connection.channel).await {
                Ok(token) => Ok(Link { connection, token, member, time: None }),
                Err(failure) => {
                    self.disconnect(member, &connection, &failure);
                    Err(failure)
                }
            }
        };
        match connect.await {
            Ok(link) => {
                self.announce(&link);
                Ok(link)
            }
            Err(failure) => {
                self.leave(member, &failure);
                Err(failure)
            }
        }
    }

    /// Draws the conclusions of a failure for the calls to come.
    pub(crate) fn report(&self, link: &Link, failure: &Failure) {
        self.disconnect(link.member, &link.connection, failure);
        self.leave(link.member, failure);
    }

    /// Replaces a token that was refused; fails with [`Rejection::Denied`] where there is no other.
    pub(crate) async fn replace_token(&self, link: &Link, reason: String) -> Result<(), Failure> {
        if !self.session.can_renew() {
            return Err(Failure::Rejected(Rejection::Denied(reason)));
        }
        self.session.renew(&link.token, &link.connection.channel).await.map(|_| ())
    }

    async fn renew(&self, course: &mut Course, link: &Link, reason: String) -> Result<(), CallError> {
        if course.renewed {
            return Err(CallError::Rejected(Rejection::Denied(reason)));
        }
        match timeout(course.remaining(), self.replace_token(link, reason)).await {
            Ok(Ok(())) => {
                course.renewed = true;
                Ok(())
            }
            Ok(Err(failure)) => course.failed(failure).await,
            Err(_) => Err(course.out_of_time("authenticating took too long")),
        }
    }

    fn disconnect(&self, member: usize, connection: &Connection, failure: &Failure) {
        if let Failure::NotApplied(Trouble { disconnected: true, .. })
        | Failure::InDoubt(Trouble { disconnected: true, .. }) = failure
        {
            self.members[member].disconnect(connection);
        }
    }

    fn leave(&self, member: usize, failure: &Failure) {
        if !matches!(failure, Failure::NotApplied(_) | Failure::InDoubt(_)) {
            return;
        }
        let next = (member + 1) % self.members.len();
        if self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let (from, to) = (self.members[member].address(), self.members[next].address());
            tracing::debug!(reason = failure.reason(), from, to, "etcd member cannot serve, going on");
        }
    }

    /// Says, once for each version that is met, what it lacks.
    fn announce(&self, link: &Link) {
        let Some(version) = link.version() else { return };
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        if announced.contains(&version) {
            return;
        }
        announced.push(version);
        tracing::info!(address = self.members[link.member].address(), %version, "speaking to etcd");
        for lack in version.lacks() {
            tracing::warn!(%version, "this etcd server has a flaw: {lack}");
        }
    }
}

/// How far one call has come with its attempts.
struct Course {
    kind: Kind,
    deadline: Instant,
    members: usize,
    failures: usize,
    /// How many members in a row could not be connected to.
    unconnected: usize,
    /// Whether a new token was had, so that another refusal is final.
    renewed: bool,
    pause: Duration,
    last_reason: Option<String>,
}

impl Course {
    fn new(kind: Kind, deadline: Instant, members: usize) -> Self {
        Course {
            kind,
            deadline,
            members,
            failures: 0,
            unconnected: 0,
            renewed: false,
            pause: FIRST_PAUSE,
            last_reason: None,
        }
    }

    fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// How long to wait for one member. A read leaves time to ask the others; a write that got no answer is over.
    fn turn(&self) -> Duration {
        let others = self.members.saturating_sub(self.failures + 1) as u32;
        match self.kind {
            Kind::Write => self.remaining(),
            Kind::Read => (self.remaining() / (others + 1)).max(SHORTEST_TURN).min(self.remaining()),
        }
    }

    /// A member could not be connected to, so nothing was sent. When that is so of all members, nothing is gained by
    /// waiting out the deadline.
    async fn not_connected(&mut self, failure: Failure) -> Result<(), CallError> {
        self.unconnected += 1;
        if self.unconnected >= self.members && matches!(failure, Failure::NotApplied(_)) {
            return Err(CallError::Unavailable(failure.reason()));
        }
        let unconnected = self.unconnected;
        self.failed(failure).await?;
        self.unconnected = unconnected;
        Ok(())
    }

    /// An attempt failed: fails for good, or returns when it is time for the next one.
    async fn failed(&mut self, failure: Failure) -> Result<(), CallError> {
        self.unconnected = 0;
        match failure {
            Failure::Rejected(rejection) => return Err(CallError::Rejected(rejection)),
            Failure::Unauthenticated(reason) => return Err(CallError::Rejected(Rejection::Denied(reason))),
            Failure::InDoubt(trouble) if self.kind == Kind::Write => {
                return Err(CallError::OutcomeUnknown(trouble.reason));
            }
            Failure::InDoubt(trouble) | Failure::NotApplied(trouble) => self.last_reason = Some(trouble.reason),
        }
        self.failures += 1;
        if self.failures.is_multiple_of(self.members) {
            sleep(self.pause.min(self.remaining())).await;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        if self.remaining() < WORTHWHILE { Err(self.out_of_time("no time is left")) } else { Ok(()) }
    }

    /// The deadline came between two attempts: nothing is under way.
    fn out_of_time(&mut self, reason: &str) -> CallError {
        CallError::Unavailable(match self.last_reason.take() {
            Some(last) => format!("{reason}; the last attempt failed: {last}"),
            None => reason.to_owned(),
        })
    }
}
