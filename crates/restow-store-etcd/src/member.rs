//! One member of the cluster: connects when asked to, once for all who wait, and remembers the connection.
//!
//! Connecting is kept apart from calling so that a call knows whether its request can have been sent.

use crate::failure::{Failure, Rejection, with_sources};
use crate::proto::kv_client::KvClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::{RangeRequest, StatusRequest};
use crate::session::{Session, Token};
use crate::version::ServerVersion;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// A member and the connection to it.
pub(crate) struct Member {
    endpoint: Endpoint,
    connect_timeout: Duration,
    session: Arc<Session>,
    /// The cluster's identity, as the first member told it.
    cluster: Arc<OnceLock<u64>>,
    /// A key that we may read.
    any_key: Bytes,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    generation: u64,
    dial: Option<Shared<Dial>>,
}

type Dial = BoxFuture<'static, Result<Connection, Failure>>;

/// A connection that has answered at least once.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    /// What the member was when the connection was made. Some releases tell their version to root alone; all of those
    /// are newer than what [`Feature`](crate::version::Feature) is about.
    pub(crate) version: Option<ServerVersion>,
    generation: u64,
}

impl Member {
    pub(crate) fn new(
        endpoint: Endpoint,
        connect_timeout: Duration,
        session: Arc<Session>,
        cluster: Arc<OnceLock<u64>>,
        any_key: Bytes,
    ) -> Self {
        Member { endpoint, connect_timeout, session, cluster, any_key, state: Mutex::default() }
    }

    /// The connection, which is made first if there is none. All who wait for it succeed or fail together.
    pub(crate) async fn connection(&self) -> Result<Connection, Failure> {
        let (dial, generation) = self.dial();
        let result = dial.await;
        if result.is_err() {
            self.forget(generation);
        }
        result
    }

    /// Gives up a connection that is of no use any more. One that was made since then is kept.
    pub(crate) fn disconnect(&self, connection: &Connection) {
        self.forget(connection.generation);
    }

    /// The address, for people.
    pub(crate) fn address(&self) -> String {
        self.endpoint.uri().to_string()
    }

    fn dial(&self) -> (Shared<Dial>, u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(dial) = &state.dial {
            return (dial.clone(), state.generation);
        }
        state.generation += 1;
        let dialer = Dialer {
            endpoint: self.endpoint.clone(),
            session: self.session.clone(),
            cluster: self.cluster.clone(),
            any_key: self.any_key.clone(),
            generation: state.generation,
        };
        let timeout = self.connect_timeout;
        // A task of its own: it goes on when the call that needed it first is abandoned.
        let task = tokio::spawn(async move {
            let address = dialer.endpoint.uri().to_string();
            match tokio::time::timeout(timeout, dialer.run()).await {
                Ok(result) => result,
                Err(_) => Err(Failure::unreachable(format!("{address} did not answer within {timeout:?}"))),
            }
        });
        let dial = async move {
            task.await.unwrap_or_else(|_| Err(Failure::unreachable("connecting was interrupted by a shutdown")))
        };
        let dial = dial.boxed().shared();
        state.dial = Some(dial.clone());
        (dial, state.generation)
    }

    fn forget(&self, generation: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.generation == generation {
            state.dial = None;
        }
    }
}

struct Dialer {
    endpoint: Endpoint,
    session: Arc<Session>,
    cluster: Arc<OnceLock<u64>>,
    any_key: Bytes,
    generation: u64,
}

impl Dialer {
    async fn run(self) -> Result<Connection, Failure> {
        let address = self.endpoint.uri();
        let channel =
            self.endpoint.connect().await.map_err(|error| {
                Failure::unreachable(format!("cannot connect to {address}: {}", with_sources(&error)))
            })?;
        let version = self.introduce(&channel).await.map_err(|failure| match failure {
            Failure::InDoubt(trouble) | Failure::NotApplied(trouble) => {
                // A server that does not accept the client's certificate says so only after the client believes that
                // all is well; what arrives is a closed connection.
                let hint = match address.scheme_str() {
                    Some("https") if trouble.disconnected => " (it may want a client certificate, or another one)",
                    _ => "",
                };
                Failure::unreachable(format!("{address}: {}{hint}", trouble.reason))
            }
            other => other,
        })?;
        tracing::debug!(%address, ?version, "connected to etcd");
        Ok(Connection { channel, version, generation: self.generation })
    }

    /// Asks the member what it is, and whether it is one of ours.
    async fn introduce(&self, channel: &Channel) -> Result<Option<ServerVersion>, Failure> {
        let mut token = self.session.token(channel).await?;
        let mut answer = self.ask(channel, &token).await;
        if matches!(answer, Err(Failure::Unauthenticated(_))) && self.session.can_renew() {
            token = self.session.renew(&token, channel).await?;
            answer = self.ask(channel, &token).await;
        }
        let (cluster, version) = answer.map_err(|failure| match failure {
            Failure::Unauthenticated(reason) => Failure::Rejected(Rejection::Denied(reason)),
            other => other,
        })?;
        let expected = *self.cluster.get_or_init(|| cluster);
        if cluster != expected {
            return Err(Failure::unreachable(format!(
                "{} belongs to the cluster {cluster:x}, not to {expected:x} like the others",
                self.endpoint.uri()
            )));
        }
        let Some(version) = version else { return Ok(None) };
        let version: ServerVersion = version.parse().map_err(|reason: String| Failure::unreachable(reason))?;
        if version < ServerVersion::OLDEST {
            return Err(Failure::Rejected(Rejection::TooOld(version)));
        }
        Ok(Some(version))
    }

    /// The cluster's identity and, if we may know it, the member's version.
    async fn ask(&self, channel: &Channel, token: &Token) -> Result<(u64, Option<String>), Failure> {
        let status = with_token(StatusRequest {}, token);
        match MaintenanceClient::new(channel.clone()).status(status).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                return Ok((answer.header.unwrap_or_default().cluster_id, Some(answer.version)));
            }
            Err(status) => match Failure::of(&status) {
                Failure::Rejected(Rejection::Denied(_)) => {}
                failure => return Err(failure),
            },
        }
        let read =
            RangeRequest { key: self.any_key.clone(), serializable: true, count_only: true, ..Default::default() };
        match KvClient::new(channel.clone()).range(with_token(read, token)).await {
            Ok(answer) => Ok((answer.into_inner().header.unwrap_or_default().cluster_id, None)),
            Err(status) => Err(Failure::of(&status)),
        }
    }
}

fn with_token<T>(message: T, token: &Token) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(token) = token.value() {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}
