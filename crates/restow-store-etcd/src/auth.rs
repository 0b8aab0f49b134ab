//! Authentication: gets a token for the user and password, and a new one when it was rejected.

use crate::config::Credentials;
use crate::failure::Failure;
use crate::proto::AuthenticateRequest;
use crate::proto::auth_client::AuthClient;
use std::sync::{Mutex, PoisonError};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

/// The credentials and the current token.
pub(crate) struct TokenSource {
    credentials: Option<Credentials>,
    /// The current token; `None` before the first request for one.
    latest: Mutex<Option<AuthToken>>,
    /// Held during a request for a token, so that calls that fail together make one request.
    authenticating: tokio::sync::Mutex<()>,
}

/// The token that a call sends.
#[derive(Clone)]
pub(crate) struct AuthToken {
    generation: u64,
    value: Option<MetadataValue<Ascii>>,
}

impl AuthToken {
    /// The gRPC metadata to send; `None` if authentication is off.
    pub(crate) fn value(&self) -> Option<&MetadataValue<Ascii>> {
        self.value.as_ref()
    }
}

impl TokenSource {
    pub(crate) fn new(credentials: Option<Credentials>) -> Self {
        TokenSource { credentials, latest: Mutex::new(None), authenticating: tokio::sync::Mutex::new(()) }
    }

    /// The current token. The first one is requested over `channel`.
    pub(crate) async fn token(&self, channel: &Channel) -> Result<AuthToken, Failure> {
        self.newer_than(None, channel).await
    }

    /// A token that is newer than a rejected one.
    pub(crate) async fn renew(&self, refused: &AuthToken, channel: &Channel) -> Result<AuthToken, Failure> {
        self.newer_than(Some(refused.generation), channel).await
    }

    /// Whether there are credentials to request a new token with.
    pub(crate) fn can_renew(&self) -> bool {
        self.credentials.is_some()
    }

    async fn newer_than(&self, refused: Option<u64>, channel: &Channel) -> Result<AuthToken, Failure> {
        let Some(credentials) = &self.credentials else { return Ok(AuthToken { generation: 0, value: None }) };
        if let Some(token) = self.latest_after(refused) {
            return Ok(token);
        }
        let _authenticating = self.authenticating.lock().await;
        if let Some(token) = self.latest_after(refused) {
            return Ok(token);
        }
        let value = authenticate(credentials, channel).await?;
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = latest.as_ref().map_or(0, |token| token.generation) + 1;
        let token = AuthToken { generation, value };
        *latest = Some(token.clone());
        Ok(token)
    }

    fn latest_after(&self, refused: Option<u64>) -> Option<AuthToken> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.clone().filter(|token| refused.is_none_or(|refused| token.generation > refused))
    }
}

async fn authenticate(credentials: &Credentials, channel: &Channel) -> Result<Option<MetadataValue<Ascii>>, Failure> {
    let Credentials { user, password } = credentials.clone();
    tracing::debug!(user, "requesting a token from etcd");
    match AuthClient::new(channel.clone()).authenticate(AuthenticateRequest { name: user, password }).await {
        Ok(answer) => match answer.into_inner().token.parse() {
            Ok(token) => Ok(Some(token)),
            Err(_) => Err(Failure::no_response("etcd returned a token that is not valid as gRPC metadata")),
        },
        Err(status) if status.message().contains("authentication is not enabled") => {
            tracing::warn!("a user and password are configured, but authentication is not enabled in etcd");
            Ok(None)
        }
        // A failed request for a token means that the call itself was not sent.
        Err(status) => Err(match Failure::from_status(&status) {
            Failure::OutcomeUnknown(problem) => Failure::NotApplied(problem),
            other => other,
        }),
    }
}
