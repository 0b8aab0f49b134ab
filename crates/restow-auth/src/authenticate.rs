//! Who asks: from what a connection and its headers show to a [`User`].
//!
//! As in Kubernetes, a client certificate is looked at first, then a bearer token, and who shows neither is anonymous,
//! where that is allowed. What is shown and is not valid, or cannot be read, is refused, never treated as if nothing had been
//! shown.

mod client_certificate;
mod impersonation;
mod token_file;

pub use client_certificate::{CertificateError, ClientCertificate, user_of_certificate};
pub use impersonation::{Impersonation, ImpersonationError};
pub use token_file::TokenFile;

use crate::service_account::{ServiceAccounts, Tokens};
use crate::user::{Authenticated, User};
use jiff::Timestamp;
use restow_apimachinery::go_syntax::aggregate;
use thiserror::Error;

/// The paths that Kubernetes' default policy shows to everyone.
const PUBLIC_PATHS: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Where requests without credentials are let through, to be judged by the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnonymousAccess {
    /// Nowhere.
    Never,
    /// On these paths only.
    Paths(Vec<String>),
    /// Everywhere.
    Everywhere,
}

/// What a request shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown<'a> {
    /// The client's certificate, or why it could not be read. A server reads it once for a connection, with
    /// [`ClientCertificate::read`].
    pub certificate: Option<&'a Result<ClientCertificate, CertificateError>>,
    /// The bearer token. A server takes it from the `Authorization` header with [`bearer_token`].
    pub token: Option<Secret<'a>>,
    /// The path that is asked for.
    pub path: &'a str,
}

/// A text that is never shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a str);

/// Why nobody knows who asks. The client is only ever told "Unauthorized".
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AuthenticationError {
    /// No credentials, where they are needed.
    #[error("no credentials")]
    NoCredentials,
    /// The certificate is not valid (any more), or says nothing.
    #[error("{0}")]
    Certificate(CertificateError),
    /// The token is not valid.
    #[error("{0}")]
    Token(String),
}

/// All that the server accepts as proof.
#[derive(Debug)]
pub struct Authenticators {
    /// Static tokens.
    pub token_file: Option<TokenFile>,
    /// Service-account tokens.
    pub tokens: Option<Tokens>,
    /// The audiences that stand for this API server. Credentials that name none are for these.
    pub api_audiences: Vec<String>,
    /// Where credentials are not needed.
    pub anonymous: AnonymousAccess,
}

impl Default for Authenticators {
    /// Certificates alone, and none where only health and version are asked for.
    fn default() -> Self {
        let anonymous = AnonymousAccess::health_and_version();
        Authenticators { token_file: None, tokens: None, api_audiences: Vec::new(), anonymous }
    }
}

impl AnonymousAccess {
    /// Health and version, and nothing else.
    pub fn health_and_version() -> Self {
        AnonymousAccess::Paths(PUBLIC_PATHS.map(String::from).into())
    }

    fn allows(&self, path: &str) -> bool {
        match self {
            AnonymousAccess::Never => false,
            AnonymousAccess::Paths(paths) => paths.iter().any(|allowed| allowed == path),
            AnonymousAccess::Everywhere => true,
        }
    }
}

impl std::fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Authenticators {
    /// Who asks. The user is in `system:authenticated` or `system:unauthenticated`.
    pub fn authenticate(
        &self,
        shown: &Shown<'_>,
        accounts: &dyn ServiceAccounts,
        now: Timestamp,
    ) -> Result<User, AuthenticationError> {
        let certificate = match shown.certificate {
            Some(Ok(certificate)) => certificate.user_at(now),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(None),
        };
        if let Ok(Some(user)) = certificate {
            return Ok(user.clone().authenticated());
        }
        match (shown.token, certificate) {
            (Some(token), _) => Ok(self.authenticate_token(token, None, accounts, now)?.user.authenticated()),
            (None, Err(error)) => Err(AuthenticationError::Certificate(error)),
            (None, Ok(_)) if self.anonymous.allows(shown.path) => Ok(User::anonymous()),
            (None, Ok(_)) => Err(AuthenticationError::NoCredentials),
        }
    }

    /// Whose token it is. Without audiences, it must be for this API server.
    pub fn authenticate_token(
        &self,
        token: Secret<'_>,
        audiences: Option<&[String]>,
        accounts: &dyn ServiceAccounts,
        now: Timestamp,
    ) -> Result<Authenticated, AuthenticationError> {
        if let Some(user) = self.token_file.as_ref().and_then(|file| file.user_of(token)) {
            let wanted = audiences.unwrap_or(&self.api_audiences);
            let common: Vec<String> = self.api_audiences.iter().filter(|own| wanted.contains(own)).cloned().collect();
            if audiences.is_none() || !common.is_empty() {
                return Ok(Authenticated { user: user.clone(), audiences: common });
            }
        }
        let verified = match &self.tokens {
            Some(tokens) => tokens.verify(token.0, audiences, accounts, now),
            None => Ok(None),
        };
        match verified {
            Ok(Some(authenticated)) => Ok(authenticated),
            Ok(None) => Err(AuthenticationError::Token("invalid bearer token".into())),
            Err(error) => {
                let errors = ["invalid bearer token".into(), error.to_string()];
                Err(AuthenticationError::Token(aggregate(&errors)))
            }
        }
    }
}

/// The bearer token in the value of an `Authorization` header, if it holds one.
pub fn bearer_token(header: &str) -> Option<Secret<'_>> {
    let mut parts = header.trim().splitn(3, ' ');
    let scheme = parts.next()?;
    let token = parts.next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case("bearer").then_some(Secret(token))
}

#[cfg(test)]
mod tests;
