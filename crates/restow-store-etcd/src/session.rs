//! Who we are to the cluster: trades the password for a token, and a rejected token for a new one.

use crate::config::Credentials;
use crate::failure::Failure;
use crate::proto::AuthenticateRequest;
use crate::proto::auth_client::AuthClient;
use std::sync::{Mutex, PoisonError};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

/// The credentials and the token that they gave.
pub(crate) struct Session {
    credentials: Option<Credentials>,
    /// The last token; none before the first was asked for.
    latest: Mutex<Option<Token>>,
    /// Held while a token is asked for, so that many calls that fail together ask once.
    asking: tokio::sync::Mutex<()>,
}

/// What a call shows to the server.
#[derive(Clone)]
pub(crate) struct Token {
    generation: u64,
    value: Option<MetadataValue<Ascii>>,
}

impl Token {
    /// The metadata to send; none where nobody asks for it.
    pub(crate) fn value(&self) -> Option<&MetadataValue<Ascii>> {
        self.value.as_ref()
    }
}

impl Session {
    pub(crate) fn new(credentials: Option<Credentials>) -> Self {
        Session { credentials, latest: Mutex::new(None), asking: tokio::sync::Mutex::new(()) }
    }

    /// The current token. The first time, it is asked for over `channel`.
    pub(crate) async fn token(&self, channel: &Channel) -> Result<Token, Failure> {
        self.newer_than(None, channel).await
    }

    /// A token that is newer than one that was refused. Without credentials there is none.
    pub(crate) async fn renew(&self, refused: &Token, channel: &Channel) -> Result<Token, Failure> {
        self.newer_than(Some(refused.generation), channel).await
    }

    /// Whether a refused token can be replaced.
    pub(crate) fn can_renew(&self) -> bool {
        self.credentials.is_some()
    }

    async fn newer_than(&self, refused: Option<u64>, channel: &Channel) -> Result<Token, Failure> {
        let Some(credentials) = &self.credentials else { return Ok(Token { generation: 0, value: None }) };
        if let Some(token) = self.latest_after(refused) {
            return Ok(token);
        }
        let _asking = self.asking.lock().await;
        if let Some(token) = self.latest_after(refused) {
            return Ok(token);
        }
        let value = authenticate(credentials, channel).await?;
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = latest.as_ref().map_or(0, |token| token.generation) + 1;
        let token = Token { generation, value };
        *latest = Some(token.clone());
        Ok(token)
    }

    fn latest_after(&self, refused: Option<u64>) -> Option<Token> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.clone().filter(|token| refused.is_none_or(|refused| token.generation > refused))
    }
}

async fn authenticate(credentials: &Credentials, channel: &Channel) -> Result<Option<MetadataValue<Ascii>>, Failure> {
    let Credentials { user, password } = credentials.clone();
    tracing::debug!(user, "asking etcd for a token");
    match AuthClient::new(channel.clone()).authenticate(AuthenticateRequest { name: user, password }).await {
        Ok(answer) => match answer.into_inner().token.parse() {
            Ok(token) => Ok(Some(token)),
            Err(_) => Err(Failure::no_answer("etcd gave a token that cannot be sent back")),
        },
        Err(status) if status.message().contains("authentication is not enabled") => {
            tracing::warn!("a user and password are given, but etcd does not ask for them");
            Ok(None)
        }
        // Asking for a token changes nothing, so whatever went wrong leaves no doubt about the call itself.
        Err(status) => Err(match Failure::of(&status) {
            Failure::InDoubt(trouble) => Failure::NotApplied(trouble),
            other => other,
        }),
    }
}
