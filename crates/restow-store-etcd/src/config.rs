//! How to reach an etcd cluster, checked before anything is sent.

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
/// What one answer may have in flight. Large enough for long lists, small enough for many watches.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// What all answers on a connection may have in flight together: as good as unlimited, so that a watch whose consumer
/// is slow cannot hold up the calls that share its connection.
const CONNECTION_WINDOW: u32 = i32::MAX as u32;
const MAX_PREFIX_BYTES: usize = 1024;

/// Where a cluster is, and how to speak to it.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// The client addresses of the members: `http://host:port`, `https://host:port`, or `host:port`, which is `https`
    /// when `tls` is given. They are tried in this order and must belong to one cluster.
    pub endpoints: Vec<String>,
    /// Certificates, for `https`.
    pub tls: Option<TlsConfig>,
    /// User and password, where the cluster wants them.
    pub credentials: Option<Credentials>,
    /// What every key begins with in etcd, for instance `/registry`. It is added to each key that is sent and removed
    /// from each that comes back. Users of one cluster need prefixes of which none begins with another.
    pub prefix: String,
    /// The sizes that are accepted. A quota for the whole store is set on the server.
    pub limits: Limits,
    /// The time that a call may take with all its attempts; a long list may take this time for each of its pages.
    pub request_timeout: Duration,
    /// The time that connecting to one member may take.
    pub connect_timeout: Duration,
}

/// How to know the servers, and how to be known to them. All in PEM.
#[derive(Clone)]
pub struct TlsConfig {
    /// The certificates of the authorities that the servers' certificates must come from.
    pub ca: Vec<u8>,
    /// The certificate to show to the servers.
    pub identity: Option<ClientIdentity>,
    /// The name that the servers' certificates must carry, where it is not the endpoint's.
    pub domain: Option<String>,
}

/// A client's certificate and its key, in PEM.
#[derive(Clone)]
pub struct ClientIdentity {
    /// The certificate, with the intermediate ones after it.
    pub certificate: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

/// A user of the cluster.
#[derive(Clone)]
pub struct Credentials {
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: String,
}

/// What is wrong with an [`EtcdConfig`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is nobody to talk to.
    #[error("no etcd endpoint is given")]
    NoEndpoints,
    /// An endpoint is not an address.
    #[error("the etcd endpoint {endpoint:?} is invalid: {reason}")]
    Endpoint {
        /// The endpoint as it was given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The certificates cannot be used.
    #[error("the TLS settings for etcd are invalid: {0}")]
    Tls(String),
    /// The prefix cannot begin a key.
    #[error("the key prefix for etcd is invalid: {0}")]
    Prefix(String),
    /// The user's name is empty.
    #[error("the user name for etcd is empty")]
    EmptyUser,
    /// A deadline of zero can never be met.
    #[error("the {0} for etcd must not be zero")]
    ZeroTimeout(&'static str),
    /// The size of the whole store is limited where it is stored.
    #[error("etcd's quota is set on its servers, with --quota-backend-bytes; leave the limit of the whole store out")]
    StoreLimit,
}

impl EtcdConfig {
    /// A cluster without TLS, password and prefix, with the usual limits.
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

    /// Says what is wrong with this configuration, without talking to anyone.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.resolve().map(|_| ())
    }

    /// Checks everything and prepares one way to connect for each member.
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
        // What stands before an `@` may be a password.
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
    if found { Ok(()) } else { Err(ConfigError::Tls(format!("{what} holds no {label} in PEM"))) }
}

fn parse_endpoint(text: &str, with_tls: bool) -> Result<Uri, String> {
    let full = match (text.contains("://"), with_tls) {
        (true, _) => text.to_owned(),
        (false, true) => format!("https://{text}"),
        (false, false) => format!("http://{text}"),
    };
    let uri: Uri = full.parse().map_err(|error| format!("{error}"))?;
    match uri.scheme_str() {
        Some("https") if !with_tls => return Err("it is https, but no TLS settings are given".into()),
        Some("http") if with_tls => return Err("TLS settings are given, but it is http".into()),
        Some("http" | "https") => {}
        _ => return Err("it is neither http nor https".into()),
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("it holds a user or password; give them as credentials".into());
    }
    if uri.port_u16().is_none() {
        return Err("it names no port; etcd's usual one is 2379".into());
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
    fn the_rest_is_checked_too() {
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
