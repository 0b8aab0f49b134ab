//! One member of the cluster and the connection to it, which is opened on demand and shared by all calls.
//!
//! Connecting is separate from calling, so that a call knows whether its request can have been sent.

use crate::auth::{AuthToken, TokenSource};
use crate::failure::{Failure, Rejection, with_sources};
use crate::proto::kv_client::KvClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::{RangeRequest, StatusRequest};
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
    tokens: Arc<TokenSource>,
    /// The cluster id, as the first connected member reported it.
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

/// A connection on which a request has succeeded.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    /// The member's version when the connection was opened. Some releases report their version only to root; those are
    /// newer than all bugs of [`Feature`](crate::version::Feature).
    pub(crate) version: Option<ServerVersion>,
    generation: u64,
}

impl Member {
    pub(crate) fn new(
        endpoint: Endpoint,
        connect_timeout: Duration,
        tokens: Arc<TokenSource>,
        cluster: Arc<OnceLock<u64>>,
        any_key: Bytes,
    ) -> Self {
        Member { endpoint, connect_timeout, tokens, cluster, any_key, state: Mutex::default() }
    }

    /// The connection, which is opened if there is none. All callers that wait for it get the same result.
    pub(crate) async fn connection(&self) -> Result<Connection, Failure> {
        let (dial, generation) = self.dial();
        let result = dial.await;
        if result.is_err() {
            self.forget(generation);
        }
        result
    }

    /// Drops a broken connection. A newer connection is kept.
    pub(crate) fn disconnect(&self, connection: &Connection) {
        self.forget(connection.generation);
    }

    /// The address, for messages.
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
            tokens: self.tokens.clone(),
            cluster: self.cluster.clone(),
            any_key: self.any_key.clone(),
            generation: state.generation,
        };
        let timeout = self.connect_timeout;
        // In a task of its own, so that it continues when the call that started it is dropped.
        let task = tokio::spawn(async move {
            let address = dialer.endpoint.uri().to_string();
            match tokio::time::timeout(timeout, dialer.run()).await {
                Ok(result) => result,
                Err(_) => Err(Failure::unreachable(format!("{address} did not respond within {timeout:?}"))),
            }
        });
        let dial = async move {
            task.await.unwrap_or_else(|_| {
                Err(Failure::unreachable("connecting was interrupted by the shutdown of the runtime"))
            })
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
    tokens: Arc<TokenSource>,
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
        let version = self.identify(&channel).await.map_err(|failure| match failure {
            Failure::OutcomeUnknown(problem) | Failure::NotApplied(problem) => {
                // In TLS 1.3 a server rejects the client's certificate after the handshake has succeeded for the client,
                // which then only sees a closed connection.
                let hint = match address.scheme_str() {
                    Some("https") if problem.disconnected => " (it may require a client certificate, or another one)",
                    _ => "",
                };
                Failure::unreachable(format!("{address}: {}{hint}", problem.reason))
            }
            other => other,
        })?;
        tracing::debug!(%address, ?version, "connected to etcd");
        Ok(Connection { channel, version, generation: self.generation })
    }

    /// Requests the cluster id and the version, and checks both.
    async fn identify(&self, channel: &Channel) -> Result<Option<ServerVersion>, Failure> {
        let mut token = self.tokens.token(channel).await?;
        let mut answer = self.request_identity(channel, &token).await;
        if matches!(answer, Err(Failure::Unauthenticated(_))) && self.tokens.can_renew() {
            token = self.tokens.renew(&token, channel).await?;
            answer = self.request_identity(channel, &token).await;
        }
        let (cluster, version) = answer.map_err(|failure| match failure {
            Failure::Unauthenticated(reason) => Failure::Rejected(Rejection::Denied(reason)),
            other => other,
        })?;
        let expected = *self.cluster.get_or_init(|| cluster);
        if cluster != expected {
            return Err(Failure::unreachable(format!(
                "{} belongs to the cluster {cluster:x}, and the other endpoints to {expected:x}",
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

    /// The cluster id and, if it may be read, the member's version.
    async fn request_identity(&self, channel: &Channel, token: &AuthToken) -> Result<(u64, Option<String>), Failure> {
        let status = with_token(StatusRequest {}, token);
        match MaintenanceClient::new(channel.clone()).status(status).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                return Ok((answer.header.unwrap_or_default().cluster_id, Some(answer.version)));
            }
            Err(status) => match Failure::from_status(&status) {
                Failure::Rejected(Rejection::Denied(_)) => {}
                failure => return Err(failure),
            },
        }
        let read =
            RangeRequest { key: self.any_key.clone(), serializable: true, count_only: true, ..Default::default() };
        match KvClient::new(channel.clone()).range(with_token(read, token)).await {
            Ok(answer) => Ok((answer.into_inner().header.unwrap_or_default().cluster_id, None)),
            Err(status) => Err(Failure::from_status(&status)),
        }
    }
}

fn with_token<T>(message: T, token: &AuthToken) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(token) = token.value() {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}
