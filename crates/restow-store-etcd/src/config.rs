//! The settings of the etcd store, which are checked before anything is sent.

use bytes::Bytes;
use restow_store::Limits;
use std::fmt;
use std::time::Duration;
use thiserror::Error;
use tonic::codegen::http::Uri;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// etcd refuses clients that ping more often than every 5 s (its `--grpc-keepalive-min-time`), so a dead connection is
/// noticed after at most this and [`KEEP_ALIVE_TIMEOUT`].
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(5500);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_millis(2500);
/// The HTTP/2 window of a stream. Large enough for long lists, small enough for many watches.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// The HTTP/2 window of a connection: practically unlimited, so that a watch with a slow consumer cannot block the calls that
/// share its connection.
const CONNECTION_WINDOW: u32 = i32::MAX as u32;
const MAX_PREFIX_BYTES: usize = 1024;

/// The endpoints of a cluster, and how to connect to it.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// The client addresses of the members: `http://host:port`, `https://host:port`, or `host:port`, which is `https`
    /// when `tls` is given. They are tried in this order and must belong to one cluster.
    pub endpoints: Vec<String>,
    /// Certificates, for `https`.
    pub tls: Option<TlsConfig>,
    /// User and password, if authentication is enabled.
    pub credentials: Option<Credentials>,
    /// The prefix of every key in etcd, for instance `/registry`. It is added to each key that is sent and removed from each
    /// key that is received. Several users of one cluster need prefixes of which none begins with another.
    pub prefix: String,
    /// The largest value. The quota of the store is set on the server.
    pub limits: Limits,
    /// The timeout of a call with all its retries; a long list has this timeout for each page.
    pub request_timeout: Duration,
    /// The timeout for connecting to one member.
    pub connect_timeout: Duration,
}

/// TLS settings. All in PEM.
#[derive(Clone)]
pub struct TlsConfig {
    /// The CA certificates for the servers' certificates.
    pub ca: Vec<u8>,
    /// The client certificate.
    pub identity: Option<ClientIdentity>,
    /// The name in the servers' certificates, if it is not the endpoint's.
    pub domain: Option<String>,
}

/// A client certificate and its key, in PEM.
#[derive(Clone)]
pub struct ClientIdentity {
    /// The certificate, followed by intermediate ones.
    pub certificate: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

/// A user of etcd's authentication.
#[derive(Clone)]
pub struct Credentials {
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: String,
}

/// Why an [`EtcdConfig`] is invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// There are no endpoints.
    #[error("no etcd endpoint is configured")]
    NoEndpoints,
    /// An endpoint is not a valid address.
    #[error("the etcd endpoint {endpoint:?} is invalid: {reason}")]
    Endpoint {
        /// The endpoint as it was given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The certificates or keys are invalid.
    #[error("the TLS settings for etcd are invalid: {0}")]
    Tls(String),
    /// The prefix is not valid in a key.
    #[error("the key prefix for etcd is invalid: {0}")]
    Prefix(String),
    /// The user's name is empty.
    #[error("the user name for etcd is empty")]
    EmptyUser,
    /// A timeout is zero.
    #[error("the {0} for etcd must not be zero")]
    ZeroTimeout(&'static str),
    /// A quota is configured; it belongs on the servers.
    #[error("etcd's quota is set on its servers, with --quota-backend-bytes; remove the limit of the store here")]
    StoreLimit,
}

impl EtcdConfig {
    /// A cluster without TLS, password and prefix, with the default limits.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        EtcdConfig {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: None,
            credentials: None,
            prefix: String::new(),
            limits: Limits::default(),
            request_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
        }
    }

    /// Checks this configuration without connecting.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.resolve().map(|_| ())
    }

    /// Checks everything, and returns the endpoints.
    pub(crate) fn resolve(&self) -> Result<Vec<Endpoint>, ConfigError> {
        if self.endpoints.is_empty() {
            return Err(ConfigError::NoEndpoints);
        }
        self.check_prefix()?;
        if self.credentials.as_ref().is_some_and(|credentials| credentials.user.is_empty()) {
            return Err(ConfigError::EmptyUser);
        }
        for (name, timeout) in [("request timeout", self.request_timeout), ("connect timeout", self.connect_timeout)] {
            if timeout.is_zero() {
                return Err(ConfigError::ZeroTimeout(name));
            }
        }
        if self.limits.store_bytes.is_some() {
            return Err(ConfigError::StoreLimit);
        }
        let tls = self.tls.as_ref().map(TlsConfig::resolve).transpose()?;
        self.endpoints.iter().map(|text| self.endpoint(text, tls.as_ref())).collect()
    }

    fn check_prefix(&self) -> Result<(), ConfigError> {
        if self.prefix.len() > MAX_PREFIX_BYTES {
            return Err(ConfigError::Prefix(format!("it has more than {MAX_PREFIX_BYTES} bytes")));
        }
        if self.prefix.bytes().any(|byte| byte == 0) {
            return Err(ConfigError::Prefix("it contains a zero byte".into()));
        }
        Ok(())
    }

    fn endpoint(&self, text: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint, ConfigError> {
        // The text before an `@` may be a password.
        let shown = text.rsplit('@').next().unwrap_or_default();
        let invalid = |reason: String| ConfigError::Endpoint { endpoint: shown.into(), reason };
        let uri = parse_endpoint(text, tls.is_some()).map_err(invalid)?;
        let endpoint = Endpoint::from_shared(Bytes::from(uri.to_string()))
            .map_err(|error| invalid(error.to_string()))?
            .connect_timeout(self.connect_timeout)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(false)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .tcp_nodelay(true)
            .user_agent("restow")
            .map_err(|error| invalid(error.to_string()))?;
        match tls {
            None => Ok(endpoint),
            Some(tls) => {
                endpoint.tls_config(tls.clone()).map_err(|error| ConfigError::Tls(crate::failure::with_sources(&error)))
            }
        }
    }
}

impl TlsConfig {
    fn resolve(&self) -> Result<ClientTlsConfig, ConfigError> {
        require_pem(&self.ca, "CERTIFICATE", "the CA")?;
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.ca));
        if let Some(identity) = &self.identity {
            require_pem(&identity.certificate, "CERTIFICATE", "the client certificate")?;
            require_pem(&identity.key, "PRIVATE KEY", "the client key")?;
            tls = tls.identity(Identity::from_pem(&identity.certificate, &identity.key));
        }
        if let Some(domain) = &self.domain {
            tls = tls.domain_name(domain);
        }
        Ok(tls)
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = self.identity.as_ref().map(|_| "given");
        f.debug_struct("TlsConfig").field("identity", &identity).field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity").finish_non_exhaustive()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

fn require_pem(pem: &[u8], label: &str, what: &str) -> Result<(), ConfigError> {
    let text = String::from_utf8_lossy(pem);
    let found =
        text.lines().any(|line| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&format!("{label}-----")));
    if found { Ok(()) } else { Err(ConfigError::Tls(format!("{what} contains no {label} in PEM"))) }
}

fn parse_endpoint(text: &str, with_tls: bool) -> Result<Uri, String> {
    let full = match (text.contains("://"), with_tls) {
        (true, _) => text.to_owned(),
        (false, true) => format!("https://{text}"),
        (false, false) => format!("http://{text}"),
    };
    let uri: Uri = full.parse().map_err(|error| format!("{error}"))?;
    match uri.scheme_str() {
        Some("https") if !with_tls => return Err("it is https, but no TLS settings are configured".into()),
        Some("http") if with_tls => return Err("TLS settings are configured, but it is http".into()),
        Some("http" | "https") => {}
        _ => return Err("it is neither http nor https".into()),
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("it contains a user or password; configure them as credentials".into());
    }
    if uri.port_u16().is_none() {
        return Err("it has no port; etcd's default is 2379".into());
    }
    if uri.path() != "/" || uri.query().is_some() {
        return Err("it has a path or a query".into());
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut EtcdConfig)) -> Result<(), ConfigError> {
        let mut config = EtcdConfig::new(["http://127.0.0.1:2379"]);
        change(&mut config);
        config.check()
    }

    fn reason(endpoint: &str) -> String {
        match check(|config| config.endpoints = vec![endpoint.into()]) {
            Err(ConfigError::Endpoint { reason, .. }) => reason,
            other => panic!("{endpoint} gave {other:?}"),
        }
    }

    #[test]
    fn endpoints_are_checked_before_anything_is_sent() {
        assert_eq!(check(|_| ()), Ok(()));
        assert_eq!(check(|config| config.endpoints = vec!["etcd-1:2379".into(), "[::1]:2379".into()]), Ok(()));
        assert_eq!(check(|config| config.endpoints.clear()), Err(ConfigError::NoEndpoints));
        assert!(reason("http://etcd").contains("port"));
        assert!(reason("ftp://etcd:2379").contains("neither"));
        assert!(reason("http://etcd:2379/v3").contains("path"));
        assert!(reason("https://etcd:2379").contains("TLS"));
        assert!(!reason("http://et cd:2379").is_empty());
        assert!(!reason("").is_empty());
    }

    #[test]
    fn other_settings_are_checked_too() {
        assert!(matches!(check(|config| config.prefix = "a\0".into()), Err(ConfigError::Prefix(_))));
        assert!(matches!(check(|config| config.request_timeout = Duration::ZERO), Err(ConfigError::ZeroTimeout(_))));
        assert_eq!(check(|config| config.limits.store_bytes = Some(1)), Err(ConfigError::StoreLimit));
        let nobody = Credentials { user: String::new(), password: "x".into() };
        assert_eq!(check(|config| config.credentials = Some(nobody)), Err(ConfigError::EmptyUser));
        let tls = TlsConfig { ca: b"not a certificate".to_vec(), identity: None, domain: None };
        assert!(matches!(check(|config| config.tls = Some(tls)), Err(ConfigError::Tls(_))));
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut config = EtcdConfig::new(["https://127.0.0.1:2379"]);
        config.credentials = Some(Credentials { user: "alice".into(), password: "swordfish".into() });
        let identity = ClientIdentity { certificate: b"swordfish".to_vec(), key: b"swordfish".to_vec() };
        config.tls = Some(TlsConfig { ca: b"swordfish".to_vec(), identity: Some(identity), domain: None });
        let shown = format!("{config:?}");
        assert!(shown.contains("alice") && !shown.contains("swordfish") && !shown.contains("115"), "{shown}");
        let in_the_endpoint = check(|config| config.endpoints = vec!["http://alice:swordfish@etcd:2379".into()]);
        let shown = in_the_endpoint.unwrap_err();
        assert!(!format!("{shown} {shown:?}").contains("swordfish"), "{shown}");
    }
}
