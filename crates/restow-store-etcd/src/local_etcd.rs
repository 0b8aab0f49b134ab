//! Private etcd servers on this machine, for tests and benchmarks: real processes with real disks on loopback ports.
//!
//! Not for production, and not a way to manage an etcd that others use.

mod http;
mod process;

use process::Process;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use thiserror::Error;
use tokio::time::{Instant, sleep};

/// Below the range from which outgoing connections are served, so that the ports of a stopped server stay free.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
const START_ATTEMPTS: usize = 5;
const START_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(25);
const LOG_TAIL_LINES: usize = 15;

/// A running etcd server, or one that was stopped and can be started again. It is killed when dropped.
pub struct LocalEtcd {
    name: String,
    options: LocalEtcdOptions,
    ports: Ports,
    /// All members of the cluster, as etcd's `--initial-cluster` has them.
    peers: String,
    /// Dropped before the directory that it works in.
    process: Option<Process>,
    data: DataDir,
}

/// How a private server is set up.
#[derive(Clone, Debug, Default)]
pub struct LocalEtcdOptions {
    /// The program; else `$RESTOW_ETCD`, else `etcd` on the `PATH`.
    pub program: Option<PathBuf>,
    /// Where to keep the data; else in a temporary directory that is removed in the end.
    pub data_dir: Option<PathBuf>,
    /// Serves its clients over TLS.
    pub tls: Option<LocalEtcdTls>,
    /// The most bytes that the server stores.
    pub quota_bytes: Option<u64>,
    /// The largest request that the server accepts; else etcd's own limit of 1.5 MiB.
    pub max_request_bytes: Option<u64>,
    /// How long a member waits for a leader before it wants to become one; else etcd's own second. A single member can
    /// do with little, and is back sooner after a restart.
    pub election_timeout: Option<Duration>,
}

/// The files for a server with TLS, in PEM.
#[derive(Clone, Debug)]
pub struct LocalEtcdTls {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities that clients' certificates must come from; where given, clients need one.
    pub client_ca: Option<PathBuf>,
}

/// Why a private server does not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LocalEtcdError {
    /// There is no such program.
    #[error(
        "there is no etcd at {0:?}: put one on the PATH, or set RESTOW_ETCD (./test fetches one into target/test-tools)"
    )]
    NotInstalled(PathBuf),
    /// The operating system refused something.
    #[error("cannot {0}")]
    Io(&'static str, #[source] io::Error),
    /// The process ended.
    #[error("etcd ended with {status}; the end of its log:\n{log}")]
    Ended {
        /// How it ended.
        status: String,
        /// What it said last.
        log: String,
    },
    /// The process runs and does not serve.
    #[error("etcd does not serve after {after:?}; the end of its log:\n{log}")]
    NotHealthy {
        /// How long it was given.
        after: Duration,
        /// What it said last.
        log: String,
    },
}

impl LocalEtcd {
    /// Starts a server with a temporary directory and waits until it serves.
    pub async fn start() -> Result<Self, LocalEtcdError> {
        Self::start_with(LocalEtcdOptions::default()).await
    }

    /// Starts a server and waits until it serves.
    pub async fn start_with(options: LocalEtcdOptions) -> Result<Self, LocalEtcdError> {
        let mut members = Self::cluster_with(1, options).await?;
        members.pop().ok_or_else(|| LocalEtcdError::Io("start a server", io::ErrorKind::Other.into()))
    }

    /// Starts a cluster of so many members and waits until all of them serve.
    pub async fn cluster(size: usize) -> Result<Vec<Self>, LocalEtcdError> {
        Self::cluster_with(size, LocalEtcdOptions::default()).await
    }

    async fn cluster_with(size: usize, options: LocalEtcdOptions) -> Result<Vec<Self>, LocalEtcdError> {
        let mut attempt = 1;
        loop {
            let mut members = Self::prepare(size, &options)?;
            match Self::start_all(&mut members).await {
                Ok(()) => return Ok(members),
                // Someone took a port between our looking and the server's listening.
                Err(LocalEtcdError::Ended { log, .. })
                    if log.contains("address already in use") && attempt < START_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn prepare(size: usize, options: &LocalEtcdOptions) -> Result<Vec<Self>, LocalEtcdError> {
        let ports = (0..size).map(|_| Ports::find()).collect::<Result<Vec<_>, _>>()?;
        let named = ports.iter().enumerate().map(|(index, ports)| format!("m{index}={}", ports.peer_url()));
        let peers = named.collect::<Vec<_>>().join(",");
        let member = |(index, ports)| {
            Ok(LocalEtcd {
                name: format!("m{index}"),
                options: options.clone(),
                ports,
                peers: peers.clone(),
                data: DataDir::new(options.data_dir.as_deref())?,
                process: None,
            })
        };
        ports.into_iter().enumerate().map(member).collect()
    }

    async fn start_all(members: &mut [Self]) -> Result<(), LocalEtcdError> {
        for member in members.iter_mut() {
            member.spawn()?;
        }
        for member in members {
            member.wait_until_healthy().await?;
        }
        Ok(())
    }

    /// The address for clients.
    pub fn endpoint(&self) -> String {
        self.ports.client_url(self.options.tls.is_some())
    }

    /// The port for clients on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.ports.client
    }

    /// Where the server keeps its data and its log.
    pub fn directory(&self) -> &Path {
        self.data.path()
    }

    /// The identifier of the running process.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Stops the server in an orderly way.
    pub async fn stop(&mut self) -> Result<(), LocalEtcdError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        process.terminate().map_err(|error| LocalEtcdError::Io("stop etcd", error))?;
        while process.try_wait().is_none() {
            sleep(POLL).await;
        }
        self.process = None;
        Ok(())
    }

    /// Ends the server at once, as a crash would (SIGKILL).
    pub fn kill(&mut self) {
        // Dropping the process kills it and waits for its end.
        self.process = None;
    }

    /// Starts the server again, on the same ports and data, and waits until it serves. A running one is killed first.
    pub async fn restart(&mut self) -> Result<(), LocalEtcdError> {
        self.relaunch()?;
        self.wait_until_healthy().await
    }

    /// Like [`restart`](Self::restart), without waiting until the server serves: a member of a cluster may need others.
    pub fn relaunch(&mut self) -> Result<(), LocalEtcdError> {
        self.kill();
        self.spawn()
    }

    /// Freezes the server (SIGSTOP): connections stay open, and nothing is answered.
    pub fn pause(&self) -> Result<(), LocalEtcdError> {
        self.process.as_ref().map_or(Ok(()), Process::pause).map_err(|error| LocalEtcdError::Io("pause etcd", error))
    }

    /// Lets a frozen server go on (SIGCONT).
    pub fn resume(&self) -> Result<(), LocalEtcdError> {
        self.process.as_ref().map_or(Ok(()), Process::resume).map_err(|error| LocalEtcdError::Io("resume etcd", error))
    }

    /// Whether this member says that it is its cluster's leader.
    pub async fn is_leader(&self) -> bool {
        let metrics = http::get(self.ports.metrics, "/metrics").await.unwrap_or_default();
        metrics.lines().any(|line| line == "etcd_server_is_leader 1")
    }

    /// Waits until the server answers reads.
    pub async fn wait_until_healthy(&mut self) -> Result<(), LocalEtcdError> {
        let begun = Instant::now();
        while begun.elapsed() < START_PATIENCE {
            if let Some(status) = self.process.as_mut().and_then(Process::try_wait) {
                self.process = None;
                return Err(LocalEtcdError::Ended { status, log: self.log_tail() });
            }
            let healthy = self.is_healthy().await;
            if healthy && self.options.tls.is_none() {
                return Ok(());
            }
            sleep(POLL).await;
            // A connection is also lost when the process ends; so look whether it has not.
            if healthy && self.process.as_mut().is_some_and(|process| process.try_wait().is_none()) {
                return Ok(());
            }
        }
        Err(LocalEtcdError::NotHealthy { after: START_PATIENCE, log: self.log_tail() })
    }

    async fn is_healthy(&self) -> bool {
        let health = http::get(self.ports.metrics, "/health").await.unwrap_or_default();
        if !health.contains(r#""health":"true""#) {
            return false;
        }
        // The server can be well and not serve its clients yet, or never, for want of a certificate.
        match http::get(self.ports.client, "/version").await {
            Ok(answer) => self.options.tls.is_some() || !answer.is_empty(),
            // One that expects TLS hangs up on us.
            Err(error) => self.options.tls.is_some() && error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    fn spawn(&mut self) -> Result<(), LocalEtcdError> {
        let log_path = self.log_path();
        let log = std::fs::File::options().create(true).append(true).open(log_path);
        let log = log.map_err(|error| LocalEtcdError::Io("open etcd's log", error))?;
        let program = self.options.program.clone().unwrap_or_else(default_program);
        let started = Process::start(&program, self.arguments(), log);
        self.process = Some(started.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => LocalEtcdError::NotInstalled(program),
            _ => LocalEtcdError::Io("start etcd", error),
        })?);
        Ok(())
    }

    fn arguments(&self) -> Vec<String> {
        let ports = &self.ports;
        let client = self.endpoint();
        let mut arguments = Vec::new();
        let mut add = |name: &str, value: String| arguments.push(format!("--{name}={value}"));
        add("name", self.name.clone());
        add("data-dir", self.data.path().join("member-data").display().to_string());
        add("listen-client-urls", client.clone());
        add("advertise-client-urls", client);
        add("listen-peer-urls", ports.peer_url());
        add("initial-advertise-peer-urls", ports.peer_url());
        add("initial-cluster", self.peers.clone());
        add("initial-cluster-token", format!("local-{}", self.peers.len()));
        add("listen-metrics-urls", format!("http://127.0.0.1:{}", ports.metrics));
        add("logger", "zap".into());
        if let Some(tls) = &self.options.tls {
            add("cert-file", tls.certificate.display().to_string());
            add("key-file", tls.key.display().to_string());
            if let Some(client_ca) = &tls.client_ca {
                add("trusted-ca-file", client_ca.display().to_string());
                add("client-cert-auth", "true".into());
            }
        }
        if let Some(bytes) = self.options.quota_bytes {
            add("quota-backend-bytes", bytes.to_string());
        }
        if let Some(bytes) = self.options.max_request_bytes {
            add("max-request-bytes", bytes.to_string());
        }
        if let Some(timeout) = self.options.election_timeout {
            add("election-timeout", timeout.as_millis().to_string());
            add("heartbeat-interval", (timeout.as_millis() / 10).max(1).to_string());
        }
        arguments
    }

    fn log_path(&self) -> PathBuf {
        self.data.path().join("etcd.log")
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

fn default_program() -> PathBuf {
    std::env::var_os("RESTOW_ETCD").map_or_else(|| PathBuf::from("etcd"), PathBuf::from)
}

/// The three ports of a member, all on 127.0.0.1.
struct Ports {
    client: u16,
    peer: u16,
    metrics: u16,
}

impl Ports {
    fn find() -> Result<Self, LocalEtcdError> {
        // All are held until all are found, so that they differ.
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(free_port().map_err(|error| LocalEtcdError::Io("find a free port", error))?);
        }
        let [client, peer, metrics] = [&held[0], &held[1], &held[2]].map(|(port, _)| *port);
        Ok(Ports { client, peer, metrics })
    }

    fn client_url(&self, with_tls: bool) -> String {
        format!("{}://127.0.0.1:{}", if with_tls { "https" } else { "http" }, self.client)
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer)
    }
}

fn free_port() -> io::Result<(u16, TcpListener)> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..100 {
        let random = RandomState::new().build_hasher().finish();
        let port = PORTS.start + (random % u64::from(PORTS.end - PORTS.start)) as u16;
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => return Ok((port, listener)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Where a member's data are.
enum DataDir {
    Temporary(TempDir),
    Given(PathBuf),
}

impl DataDir {
    fn new(given: Option<&Path>) -> Result<Self, LocalEtcdError> {
        let made = match given {
            None => tempfile::Builder::new().prefix("restow-etcd-").tempdir().map(DataDir::Temporary),
            Some(path) => std::fs::create_dir_all(path).map(|()| DataDir::Given(path.to_owned())),
        };
        made.map_err(|error| LocalEtcdError::Io("make etcd's data directory", error))
    }

    fn path(&self) -> &Path {
        match self {
            DataDir::Temporary(directory) => directory.path(),
            DataDir::Given(path) => path,
        }
    }
}
