//! `LocalEtcd`: one etcd server, or the members of a cluster, that can be stopped, killed, frozen and started again.

use crate::http;
use crate::ports::Ports;
use crate::process::Process;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use thiserror::Error;
use tokio::time::{Instant, sleep};

const START_ATTEMPTS: usize = 5;
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(25);
const LOG_TAIL_LINES: usize = 15;

/// An etcd server that runs, or was stopped and can be started again. It is killed when dropped.
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

/// The settings of a private server.
#[derive(Clone, Debug, Default)]
pub struct LocalEtcdOptions {
    /// The etcd binary. The default is `$RESTOW_ETCD`, or else `etcd` on the `PATH`.
    pub program: Option<PathBuf>,
    /// The data directory. The default is a temporary directory, which is removed when the server is dropped.
    pub data_dir: Option<PathBuf>,
    /// Serves its clients over TLS.
    pub tls: Option<LocalEtcdTls>,
    /// `--quota-backend-bytes`.
    pub quota_bytes: Option<u64>,
    /// `--max-request-bytes`. The default is etcd's, 1.5 MiB.
    pub max_request_bytes: Option<u64>,
    /// `--election-timeout`. The default is etcd's, one second. A single member needs less, and a short timeout makes it
    /// ready sooner after a restart.
    pub election_timeout: Option<Duration>,
}

/// The files for a server with TLS, in PEM.
#[derive(Clone, Debug)]
pub struct LocalEtcdTls {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The CA of client certificates. If it is set, clients must present one.
    pub client_ca: Option<PathBuf>,
}

/// Why a private server could not be started or controlled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LocalEtcdError {
    /// The etcd binary was not found.
    #[error(
        "etcd was not found at {0:?}: put it on the PATH, or set RESTOW_ETCD (./test fetches one into target/test-tools)"
    )]
    NotInstalled(PathBuf),
    /// The operating system refused something.
    #[error("cannot {0}")]
    Io(&'static str, #[source] io::Error),
    /// The process exited.
    #[error("etcd exited with {status}; the end of its log:\n{log}")]
    Exited {
        /// The exit status.
        status: String,
        /// The last lines of its log.
        log: String,
    },
    /// The process runs, and did not become healthy.
    #[error("etcd is not healthy after {after:?}; the end of its log:\n{log}")]
    NotHealthy {
        /// How long this was waited for.
        after: Duration,
        /// The last lines of its log.
        log: String,
    },
}

impl LocalEtcd {
    /// Starts a server with a temporary data directory and waits until it is healthy.
    pub async fn start() -> Result<Self, LocalEtcdError> {
        Self::start_with(LocalEtcdOptions::default()).await
    }

    /// Starts a server and waits until it is healthy.
    pub async fn start_with(options: LocalEtcdOptions) -> Result<Self, LocalEtcdError> {
        let mut members = Self::cluster_with(1, options).await?;
        members.pop().ok_or_else(|| LocalEtcdError::Io("start a server", io::ErrorKind::Other.into()))
    }

    /// Starts a cluster of `size` members and waits until all of them are healthy.
    pub async fn cluster(size: usize) -> Result<Vec<Self>, LocalEtcdError> {
        Self::cluster_with(size, LocalEtcdOptions::default()).await
    }

    async fn cluster_with(size: usize, options: LocalEtcdOptions) -> Result<Vec<Self>, LocalEtcdError> {
        let mut attempt = 1;
        loop {
            let mut members = Self::prepare(size, &options)?;
            match Self::start_all(&mut members).await {
                Ok(()) => return Ok(members),
                // Another process took a port after it was found to be free.
                Err(LocalEtcdError::Exited { log, .. })
                    if log.contains("address already in use") && attempt < START_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn prepare(size: usize, options: &LocalEtcdOptions) -> Result<Vec<Self>, LocalEtcdError> {
        let find = |_| Ports::find().map_err(|error| LocalEtcdError::Io("find a free port", error));
        let ports = (0..size).map(find).collect::<Result<Vec<_>, _>>()?;
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

    /// The client URL.
    pub fn endpoint(&self) -> String {
        self.ports.client_url(self.options.tls.is_some())
    }

    /// The client port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.ports.client
    }

    /// The directory with the server's data and its log.
    pub fn directory(&self) -> &Path {
        self.data.path()
    }

    /// The id of the process, if it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Stops the server with SIGTERM and waits until it has exited.
    pub async fn stop(&mut self) -> Result<(), LocalEtcdError> {
        let Some(process) = &mut self.process else { return Ok(()) };
        process.terminate().map_err(|error| LocalEtcdError::Io("stop etcd", error))?;
        while process.try_wait().is_none() {
            sleep(POLL).await;
        }
        self.process = None;
        Ok(())
    }

    /// Kills the server (SIGKILL), as a crash would.
    pub fn kill(&mut self) {
        // Dropping the process kills it and waits until it has exited.
        self.process = None;
    }

    /// Starts the server again, on the same ports and data, and waits until it is healthy. If it runs, it is killed first.
    pub async fn restart(&mut self) -> Result<(), LocalEtcdError> {
        self.relaunch()?;
        self.wait_until_healthy().await
    }

    /// Like [`restart`](Self::restart), but does not wait: a member may need other members to become healthy.
    pub fn relaunch(&mut self) -> Result<(), LocalEtcdError> {
        self.kill();
        self.spawn()
    }

    /// Freezes the server (SIGSTOP): connections stay open, and no request is answered.
    pub fn pause(&self) -> Result<(), LocalEtcdError> {
        self.process.as_ref().map_or(Ok(()), Process::pause).map_err(|error| LocalEtcdError::Io("pause etcd", error))
    }

    /// Resumes a frozen server (SIGCONT).
    pub fn resume(&self) -> Result<(), LocalEtcdError> {
        self.process.as_ref().map_or(Ok(()), Process::resume).map_err(|error| LocalEtcdError::Io("resume etcd", error))
    }

    /// Whether this member reports that it is the leader of its cluster.
    pub async fn is_leader(&self) -> bool {
        let metrics = http::get(self.ports.metrics, "/metrics").await.unwrap_or_default();
        metrics.lines().any(|line| line == "etcd_server_is_leader 1")
    }

    /// Waits until the server reports that it is healthy, and accepts connections of clients.
    pub async fn wait_until_healthy(&mut self) -> Result<(), LocalEtcdError> {
        let begun = Instant::now();
        while begun.elapsed() < START_TIMEOUT {
            if let Some(status) = self.process.as_mut().and_then(Process::try_wait) {
                self.process = None;
                return Err(LocalEtcdError::Exited { status, log: self.log_tail() });
            }
            let healthy = self.is_healthy().await;
            if healthy && self.options.tls.is_none() {
                return Ok(());
            }
            sleep(POLL).await;
            // A connection is also reset when the process exits, so check that it still runs.
            if healthy && self.process.as_mut().is_some_and(|process| process.try_wait().is_none()) {
                return Ok(());
            }
        }
        Err(LocalEtcdError::NotHealthy { after: START_TIMEOUT, log: self.log_tail() })
    }

    async fn is_healthy(&self) -> bool {
        let health = http::get(self.ports.metrics, "/health").await.unwrap_or_default();
        if !health.contains(r#""health":"true""#) {
            return false;
        }
        // A healthy server may not listen for clients yet, or never, if its certificate cannot be read.
        match http::get(self.ports.client, "/version").await {
            Ok(answer) => self.options.tls.is_some() || !answer.is_empty(),
            // A server that expects TLS resets the connection.
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

/// The data directory of a member.
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
        made.map_err(|error| LocalEtcdError::Io("create etcd's data directory", error))
    }

    fn path(&self) -> &Path {
        match self {
            DataDir::Temporary(directory) => directory.path(),
            DataDir::Given(path) => path,
        }
    }
}
