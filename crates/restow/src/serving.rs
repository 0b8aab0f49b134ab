//! What `up` and `serve` have in common: a server on a store, TLS, and stopping it.

use crate::taking_part;
use anyhow::Context;
use clap::Args;
use restow_apiserver::audit::{AuditConfig, AuditLog};
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::release::Release;
use restow_apiserver::resource::registry::Registry;
use restow_apiserver::{AccessConfig, AgreementConfig, ApiServer, Authorization, Gates, LoadLimits, ServerConfig};
use restow_auth::authenticate::{AnonymousAccess, Authenticators, TokenFile};
use restow_auth::service_account::{SigningKey, TokenOptions, Tokens};
use restow_store::Store;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// How to serve, the same for `up` and `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServingArgs {
    /// The most requests that only read, at once; 0 for no limit. Watches do not count.
    #[arg(long, value_name = "N", default_value_t = LoadLimits::default().requests_in_flight)]
    max_requests_inflight: usize,
    /// The most requests that may write, at once; 0 for no limit.
    #[arg(long, value_name = "N", default_value_t = LoadLimits::default().mutating_requests_in_flight)]
    max_mutating_requests_inflight: usize,
    /// How many seconds a request may take, watches apart.
    #[arg(long, value_name = "SECONDS", default_value_t = LoadLimits::default().request_timeout.as_secs(),
          value_parser = clap::value_parser!(u64).range(1..))]
    request_timeout: u64,
    /// How many seconds a client may go without taking what is sent to it, before its connection is closed.
    #[arg(long, value_name = "SECONDS", default_value_t = LoadLimits::default().stall_timeout.as_secs(),
          value_parser = clap::value_parser!(u64).range(1..))]
    stall_timeout: u64,
    /// Where others reach this server [default: that of --listen; where that is 0.0.0.0, the one that this machine has
    /// towards the network]. It stands in the endpoints of the service kubernetes in the namespace default.
    #[arg(long, value_name = "ADDR")]
    advertise_address: Option<IpAddr>,
    /// Which API versions to serve beside the usual ones, as in `api/beta=true,storage.k8s.io/v1alpha1=true`.
    #[arg(long, value_name = "VERSION=BOOL,…", default_value = "")]
    runtime_config: RuntimeConfig,
    /// Tell of every request in this file, one line of JSON each; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// The megabytes after which the audit log is put aside and begun anew.
    #[arg(long, value_name = "MB", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    audit_log_maxsize: u64,
    /// How many audit logs that were put aside are kept.
    #[arg(long, value_name = "N", default_value_t = 10)]
    audit_log_maxbackup: usize,
}

impl Default for ServingArgs {
    fn default() -> Self {
        let limits = LoadLimits::default();
        ServingArgs {
            max_requests_inflight: limits.requests_in_flight,
            max_mutating_requests_inflight: limits.mutating_requests_in_flight,
            request_timeout: limits.request_timeout.as_secs(),
            stall_timeout: limits.stall_timeout.as_secs(),
            advertise_address: None,
            runtime_config: RuntimeConfig::default(),
            audit_log_path: None,
            audit_log_maxsize: 100,
            audit_log_maxbackup: 10,
        }
    }
}

impl ServingArgs {
    /// The same, with requests that may take this long.
    pub(crate) fn with_request_timeout(self, timeout: Duration) -> Self {
        ServingArgs { request_timeout: timeout.as_secs(), ..self }
    }

    fn audit(&self) -> anyhow::Result<Option<Arc<AuditLog>>> {
        let Some(path) = &self.audit_log_path else { return Ok(None) };
        let max_bytes = self.audit_log_maxsize.saturating_mul(1 << 20);
        let config = AuditConfig { path: path.clone(), max_bytes, max_backups: self.audit_log_maxbackup };
        let log = AuditLog::open(config).with_context(|| {
            format!("cannot write the audit log {}; choose another file with --audit-log-path", path.display())
        })?;
        Ok(Some(Arc::new(log)))
    }

    /// Where others reach a server that listens here.
    fn advertised(&self, listening: SocketAddr) -> SocketAddr {
        let host = match (self.advertise_address, listening.ip().is_unspecified()) {
            (Some(host), _) => host,
            (None, false) => listening.ip(),
            (None, true) => towards_the_network().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        };
        SocketAddr::new(host, listening.port())
    }

    fn limits(&self) -> LoadLimits {
        LoadLimits {
            requests_in_flight: self.max_requests_inflight,
            mutating_requests_in_flight: self.max_mutating_requests_inflight,
            request_timeout: Duration::from_secs(self.request_timeout),
            stall_timeout: Duration::from_secs(self.stall_timeout),
            connections: most_connections(raise_file_limit()),
            ..LoadLimits::default()
        }
    }
}

/// Raises the limit of open files as far as the process may, and returns it; nothing for no limit.
fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

/// How many connections there may be with so many open files: half of them, so that the store, the calls of webhooks and the
/// reserve for urgent requests never go short.
fn most_connections(files: Option<u64>) -> usize {
    let most = LoadLimits::default().connections;
    files.map_or(most, |files| usize::try_from(files / 2).map_or(most, |half| half.clamp(16, most)))
}

/// The address that this machine has towards the network. Connecting a datagram socket sends nothing; it only asks the
/// system for the way.
fn towards_the_network() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address that is reserved for documentation, so that nobody is meant.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Takes the address, or says how to choose another.
pub(crate) async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}; is another server running there? Choose another with --listen")
    })
}

/// What a server is made of, beside its store.
pub(crate) struct Setup<'a> {
    pub(crate) release: Release,
    pub(crate) address: SocketAddr,
    pub(crate) authenticators: Authenticators,
    pub(crate) gates: Gates,
    pub(crate) agreement: AgreementConfig,
    pub(crate) root_ca: Option<String>,
    pub(crate) options: &'a ServingArgs,
}

/// A server of the built-in resources of a release.
pub(crate) async fn server(store: Arc<dyn Store>, setup: Setup<'_>) -> anyhow::Result<Arc<ApiServer>> {
    let Setup { release, address, authenticators, gates, agreement, root_ca, options } = setup;
    let runtime_config = taking_part::with_gates(options.runtime_config.clone(), &gates)?;
    let resources = builtin::resources(release, &runtime_config);
    let registry = Registry::new(resources);
    let access = AccessConfig { authenticators, authorization: Authorization::Rbac };
    let (limits, audit) = (options.limits(), options.audit()?);
    let address = options.advertised(address);
    let config = ServerConfig { store, registry, release, address, access, limits, audit, gates, agreement, root_ca };
    Ok(ApiServer::new(config).await?)
}

/// Serves until the process is asked to stop. Reads are answered at once; when the server can be written to, it says so.
pub(crate) async fn run(
    server: Arc<ApiServer>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    greeting: String,
) -> anyhow::Result<()> {
    let mut serving = std::pin::pin!(restow_apiserver::serve(server.clone(), listener, tls, stop_signal()));
    tokio::select! {
        () = &mut serving => {}
        ready = server.ready() => {
            ready.context("the server cannot start")?;
            println!("{greeting}");
            serving.await;
        }
    }
    server.leave().await;
    println!("stopped");
    Ok(())
}

/// What is accepted as proof of who asks, beside certificates.
pub(crate) fn authenticators(signing_key: Option<&Path>, token_file: Option<&Path>) -> anyhow::Result<Authenticators> {
    let options = TokenOptions::new("https://kubernetes.default.svc.cluster.local");
    let api_audiences = options.api_audiences.clone();
    let tokens = match signing_key {
        Some(path) => Some(Tokens::new(options, SigningKey::load_or_create(path)?, Vec::new())),
        None => None,
    };
    let token_file = token_file.map(TokenFile::load).transpose()?;
    Ok(Authenticators { token_file, tokens, api_audiences, anonymous: AnonymousAccess::health_and_version() })
}

/// Completes when the process is asked to stop.
pub(crate) async fn stop_signal() {
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminate => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_half_of_the_files_to_others() {
        assert_eq!(most_connections(Some(256)), 128);
        assert_eq!(most_connections(Some(1)), 16);
        assert_eq!(most_connections(Some(1 << 20)), LoadLimits::default().connections);
        assert_eq!(most_connections(None), LoadLimits::default().connections);
    }
}
