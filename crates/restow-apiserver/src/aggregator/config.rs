//! How a server takes part in aggregation: as which proxy it appears to the servers behind it, and which proxies it trusts.

use crate::aggregator::tls::ProxyClientCertificate;
use restow_auth::authenticate::RequestHeaders;

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
