//! Authentication: from client certificates and headers to a [`User`].
//!
//! As in Kubernetes, the client certificate is checked first, then the bearer token. A request with neither is anonymous,
//! where that is allowed. A request with credentials that are invalid or unreadable is refused; it is never treated as
//! anonymous.

mod client_certificate;
mod impersonation;
mod request_header;
mod token_file;

pub use client_certificate::{CertificateError, ClientCertificate, user_of_certificate};
pub use impersonation::{Impersonation, ImpersonationError};
pub use request_header::RequestHeaders;
pub use token_file::TokenFile;

use crate::service_account::{ServiceAccounts, Tokens};
use crate::user::{Authenticated, User};
use jiff::Timestamp;
use restow_apimachinery::go_syntax::aggregate;
use thiserror::Error;

/// The paths that Kubernetes' default policy allows to all users (ClusterRole `system:public-info-viewer`).
const PUBLIC_PATHS: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// The paths on which requests without credentials are accepted. Authorization still applies to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnonymousAccess {
    /// No path.
    Never,
    /// Only these paths.
    Paths(Vec<String>),
    /// All paths.
    Everywhere,
}

/// The credentials of a request, and its path.
#[derive(Clone, Debug, Default)]
pub struct Credentials<'a> {
    /// The client certificate, or the error of reading it. A server reads it once per connection, with
    /// [`ClientCertificate::read`].
    pub certificate: Option<&'a Result<ClientCertificate, CertificateError>>,
    /// The user that a trusted front proxy names, or the error of its certificate.
    pub front_proxy: Option<Result<User, CertificateError>>,
    /// The bearer token. A server takes it from the `Authorization` header with [`bearer_token`].
    pub token: Option<Secret<'a>>,
    /// The path of the request.
    pub path: &'a str,
}

/// A string that is never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a str);

/// Why a request is not authenticated. The response says only "Unauthorized".
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AuthenticationError {
    /// The request has no credentials, and its path needs them.
    #[error("no credentials")]
    NoCredentials,
    /// The client certificate is expired, not yet valid or unreadable.
    #[error("{0}")]
    Certificate(CertificateError),
    /// The bearer token is invalid.
    #[error("{0}")]
    Token(String),
}

/// The authentication methods of a server.
#[derive(Debug)]
pub struct Authenticators {
    /// Static tokens.
    pub token_file: Option<TokenFile>,
    /// Service-account tokens.
    pub tokens: Option<Tokens>,
    /// The audiences of this API server. A static token is valid for all of them.
    pub api_audiences: Vec<String>,
    /// The paths that need no credentials.
    pub anonymous: AnonymousAccess,
}

impl Default for Authenticators {
    /// Only client certificates; anonymous requests for health and version are accepted.
    fn default() -> Self {
        let anonymous = AnonymousAccess::health_and_version();
        Authenticators { token_file: None, tokens: None, api_audiences: Vec::new(), anonymous }
    }
}

impl AnonymousAccess {
    /// Only the paths of health and version.
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
    /// The user of a request, in the group `system:authenticated` or `system:unauthenticated`.
    pub fn authenticate(
        &self,
        credentials: &Credentials<'_>,
        accounts: &dyn ServiceAccounts,
        now: Timestamp,
    ) -> Result<User, AuthenticationError> {
        // As in Kubernetes, front proxies come first.
        let front_proxy_error = match &credentials.front_proxy {
            Some(Ok(user)) => return Ok(user.clone().authenticated()),
            Some(Err(error)) => Some(error.clone()),
            None => None,
        };
        let certificate = match credentials.certificate {
            Some(Ok(certificate)) => certificate.user_at(now),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(None),
        };
        if let Ok(Some(user)) = certificate {
            return Ok(user.clone().authenticated());
        }
        match (credentials.token, certificate) {
            (Some(token), _) => Ok(self.authenticate_token(token, None, accounts, now)?.user.authenticated()),
            (None, Err(error)) => Err(AuthenticationError::Certificate(error)),
            (None, Ok(_)) if front_proxy_error.is_some() => {
                Err(front_proxy_error.map_or(AuthenticationError::NoCredentials, AuthenticationError::Certificate))
            }
            (None, Ok(_)) if self.anonymous.allows(credentials.path) => Ok(User::anonymous()),
            (None, Ok(_)) => Err(AuthenticationError::NoCredentials),
        }
    }

    /// The user of a token. Without `audiences`, the token must be valid for this API server.
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

/// The bearer token in the value of an `Authorization` header, if there is one.
pub fn bearer_token(header: &str) -> Option<Secret<'_>> {
    let mut parts = header.trim().splitn(3, ' ');
    let scheme = parts.next()?;
    let token = parts.next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case("bearer").then_some(Secret(token))
}

#[cfg(test)]
mod tests;
