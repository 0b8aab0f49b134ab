//! How a server takes part in aggregation: as which proxy it appears to the servers behind it, and which proxies it trusts.

use crate::aggregator::tls::ProxyClientCertificate;
use crate::serving::pki::{PkiError, roots_of};
use restow_auth::authenticate::RequestHeaders;
use rustls::pki_types::TrustAnchor;
use thiserror::Error;

/// How a server takes part in aggregation.
#[derive(Clone, Debug, Default)]
pub struct AggregatorConfig {
    /// The certificate by which the servers behind this one know that it may name users in headers.
    pub proxy_client_certificate: Option<ProxyClientCertificate>,
    /// The CA certificates of users' client certificates, in PEM. They are published for the servers behind this one. With
    /// `request_header`, only certificates of these authenticate users.
    pub client_ca: Option<String>,
    /// The front proxies that this server trusts. It tells the servers behind it to trust them, too, so they should include
    /// this server.
    pub request_header: Option<RequestHeaderConfig>,
}

/// Front proxies that are trusted.
#[derive(Clone, Debug)]
pub struct RequestHeaderConfig {
    /// The CA certificates of their client certificates, in PEM. The TLS configuration of the listener must accept these
    /// beside those of users.
    pub ca: String,
    /// Their names, and the headers in which they name users.
    pub headers: RequestHeaders,
}

/// Why a server cannot take part in aggregation as configured.
#[derive(Debug, Error)]
pub enum AggregatorConfigError {
    /// Nobody could tell the certificates of users from those of front proxies.
    #[error("front proxies are trusted, but the CA of users is not known; set it")]
    NoUsers,
    /// A CA cannot be read.
    #[error(transparent)]
    Authority(#[from] PkiError),
    /// Every user would be a front proxy.
    #[error(
        "a CA certificate of front proxies (--requestheader-client-ca-file) is also one of users, and front proxies may have \
         any name: every user could name another one in headers. Issue the certificates of front proxies by a CA of their own, \
         or name them (--requestheader-allowed-names)"
    )]
    SharedAuthority,
}

impl AggregatorConfig {
    /// Checks that users are not taken for front proxies, and front proxies not for users.
    pub fn check(&self) -> Result<(), AggregatorConfigError> {
        let Some(trusted) = &self.request_header else { return Ok(()) };
        let users = roots_of(self.client_ca.as_deref().ok_or(AggregatorConfigError::NoUsers)?)?;
        let proxies = roots_of(&trusted.ca)?;
        // A CA is its name and its key, whatever else its certificates say.
        let same = |one: &TrustAnchor<'_>, other: &TrustAnchor<'_>| {
            one.subject == other.subject && one.subject_public_key_info == other.subject_public_key_info
        };
        let shared = proxies.roots.iter().any(|proxy| users.roots.iter().any(|user| same(proxy, user)));
        match shared && trusted.headers.allowed_names.is_empty() {
            true => Err(AggregatorConfigError::SharedAuthority),
            false => Ok(()),
        }
    }
}
