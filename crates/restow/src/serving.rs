//! What `up` and `serve` share: the flags of a server, starting it on a store with TLS, and stopping it.

use crate::agreement_args;
use crate::auth_files::{load_or_create_signing_key, load_token_file};
use anyhow::Context;
use clap::Args;
use restow_apiserver::audit::{AuditConfig, AuditLog};
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::release::Release;
use restow_apiserver::resource::registry::Registry;
use restow_apiserver::{
    AccessConfig, AggregatorConfig, AgreementConfig, ApiServer, AuthorizationMode, Gates, LoadLimits, ServerConfig,
};
use restow_auth::authenticate::{AnonymousAccess, Authenticators};
use restow_auth::service_account::{TokenOptions, Tokens};
use restow_store::Store;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// The flags of a server.
#[derive(Debug, Args)]
pub(crate) struct ServingArgs {
    /// The maximum number of non-mutating requests in flight; 0 for no limit. Watches do not count.
    #[arg(long, value_name = "N", default_value_t = LoadLimits::default().requests_in_flight)]
    max_requests_inflight: usize,
    /// The maximum number of mutating requests in flight; 0 for no limit.
    #[arg(long, value_name = "N", default_value_t = LoadLimits::default().mutating_requests_in_flight)]
    max_mutating_requests_inflight: usize,
    /// The timeout of a request in seconds, except for watches.
    #[arg(long, value_name = "SECONDS", default_value_t = LoadLimits::default().request_timeout.as_secs(),
          value_parser = clap::value_parser!(u64).range(1..))]
    request_timeout: u64,
    /// After how many seconds the connection of a client that does not read its response is closed.
    #[arg(long, value_name = "SECONDS", default_value_t = LoadLimits::default().stall_timeout.as_secs(),
          value_parser = clap::value_parser!(u64).range(1..))]
    stall_timeout: u64,
    /// The IP address at which others reach this server [default: that of --listen; where that is 0.0.0.0, the address of
    /// this machine on the network]. It is published in the endpoints of the Service kubernetes in the namespace default.
    #[arg(long, value_name = "ADDR")]
    advertise_address: Option<IpAddr>,
    /// API versions to turn on or off, as in `api/beta=true,storage.k8s.io/v1alpha1=true`.
    #[arg(long, value_name = "VERSION=BOOL,…", default_value = "")]
    runtime_config: RuntimeConfig,
    /// The audit log, which gets one line of JSON for every request; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// The size in megabytes at which the audit log is rotated.
    #[arg(long, value_name = "MB", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    audit_log_maxsize: u64,
    /// How many rotated audit logs are kept.
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
    /// The same with another request timeout.
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

    /// The advertised address of a server that listens here.
    fn advertised(&self, listening: SocketAddr) -> SocketAddr {
        let host = match (self.advertise_address, listening.ip().is_unspecified()) {
            (Some(host), _) => host,
            (None, false) => listening.ip(),
            (None, true) => network_address().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        };
        SocketAddr::new(host, listening.port())
    }

    fn limits(&self) -> LoadLimits {
        LoadLimits {
            requests_in_flight: self.max_requests_inflight,
            mutating_requests_in_flight: self.max_mutating_requests_inflight,
            request_timeout: Duration::from_secs(self.request_timeout),
            stall_timeout: Duration::from_secs(self.stall_timeout),
            connections: max_connections(raise_file_limit()),
            ..LoadLimits::default()
        }
    }
}

/// Raises the limit of open files as far as the process may. Returns the limit, or nothing where there is none.
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

/// The maximum number of connections with so many open files: half of them, so that there are always files for the store, for
/// webhook calls and for the reserve for urgent requests.
fn max_connections(files: Option<u64>) -> usize {
    let max = LoadLimits::default().connections;
    files.map_or(max, |files| usize::try_from(files / 2).map_or(max, |half| half.clamp(16, max)))
}

/// The address of this machine on the network. Connecting a UDP socket sends nothing; the system only chooses a route.
fn network_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address that is reserved for documentation.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Listens at an address, or fails with the flag to choose another.
pub(crate) async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}; is another server running there? Choose another with --listen")
    })
}

/// What a server needs beside its store.
pub(crate) struct Setup<'a> {
    pub(crate) release: Release,
    pub(crate) address: SocketAddr,
    pub(crate) authenticators: Authenticators,
    pub(crate) gates: Gates,
    pub(crate) agreement: AgreementConfig,
    pub(crate) root_ca: Option<String>,
    pub(crate) aggregator: AggregatorConfig,
    pub(crate) options: &'a ServingArgs,
}

/// A server of the built-in resources of a release.
pub(crate) async fn server(store: Arc<dyn Store>, setup: Setup<'_>) -> anyhow::Result<Arc<ApiServer>> {
    let Setup { release, address, authenticators, gates, agreement, root_ca, aggregator, options } = setup;
    let runtime_config = agreement_args::with_gates(options.runtime_config.clone(), &gates)?;
    let resources = builtin::resources(release, &runtime_config);
    let registry = Registry::new(resources);
    let access = AccessConfig { authenticators, authorization: AuthorizationMode::Rbac };
    let (limits, audit) = (options.limits(), options.audit()?);
    let address = options.advertised(address);
    let config = ServerConfig {
        store,
        registry,
        release,
        address,
        access,
        limits,
        audit,
        gates,
        agreement,
        root_ca,
        aggregator,
    };
    Ok(ApiServer::new(config).await?)
}

/// Serves until the process gets a stop signal. Reads are served at once; the greeting is printed when the server is ready for
/// writes.
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

/// How requests are authenticated beside client certificates.
pub(crate) fn authenticators(signing_key: Option<&Path>, token_file: Option<&Path>) -> anyhow::Result<Authenticators> {
    let options = TokenOptions::new("https://kubernetes.default.svc.cluster.local");
    let api_audiences = options.api_audiences.clone();
    let tokens = match signing_key {
        Some(path) => Some(Tokens::new(options, load_or_create_signing_key(path)?, Vec::new())),
        None => None,
    };
    let token_file = token_file.map(load_token_file).transpose()?;
    Ok(Authenticators { token_file, tokens, api_audiences, anonymous: AnonymousAccess::health_and_version() })
}

/// Completes on SIGINT or SIGTERM.
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
    fn connections_use_at_most_half_of_the_open_files() {
        assert_eq!(max_connections(Some(256)), 128);
        assert_eq!(max_connections(Some(1)), 16);
        assert_eq!(max_connections(Some(1 << 20)), LoadLimits::default().connections);
        assert_eq!(max_connections(None), LoadLimits::default().connections);
    }
}
