//! The servers that are measured: ours as processes of this very program, and another one by its kubeconfig.

use crate::bench::process::listening_process;
use crate::pki::{Pki, write_private};
use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use restow_local_etcd::{LocalEtcd, LocalEtcdOptions};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that is measured. Ours end when this is dropped.
pub(in crate::bench) struct Subject {
    pub(in crate::bench) name: String,
    pub(in crate::bench) client: kube::Client,
    /// The process whose CPU time and memory count.
    pub(super) process: Option<u32>,
    /// From the start of the process to its first answer that it is ready.
    pub(super) started_in: Option<Duration>,
    /// How further servers are started on the same etcd, where that is possible.
    joining: Option<Joining>,
    _child: Option<Running>,
    _etcd: Option<LocalEtcd>,
    _folder: Option<tempfile::TempDir>,
}

/// Another server of ours on the same etcd, which ends when this is dropped.
pub(super) struct Another {
    pub(super) client: kube::Client,
    _child: Running,
}

/// What a server on etcd is started with.
struct Joining {
    endpoints: String,
    folder: PathBuf,
}

impl Joining {
    fn files(&self) -> PathBuf {
        self.folder.join("pki")
    }

    fn command(&self) -> Command {
        let mut command = restow();
        command.args(["serve", "--listen", "127.0.0.1:0", "--etcd-endpoints", &self.endpoints]);
        command.args(["--etcd-prefix", &format!("/restow-bench-{}", std::process::id())]);
        command.arg("--tls-cert-file").arg(self.files().join("server.crt"));
        command.arg("--tls-private-key-file").arg(self.files().join("server.key"));
        command.arg("--client-ca-file").arg(self.files().join("ca.crt"));
        command
    }

    async fn start(&self) -> anyhow::Result<Another> {
        let pki = Pki::open(&self.files(), &[IpAddr::V4(Ipv4Addr::LOCALHOST)])?;
        let (child, address) = start(&mut self.command())?;
        let kubeconfig = self.folder.join("kubeconfig");
        write_private(&kubeconfig, &pki.kubeconfig(&address))?;
        Ok(Another { client: client(&kubeconfig).await?, _child: child })
    }
}

/// A process that ends when this is dropped.
pub(in crate::bench) struct Running(pub(in crate::bench) Child);

impl Drop for Running {
    fn drop(&mut self) {
        // A process that has ended already needs no killing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Subject {
    /// `restow up`, started for the second time: the first start makes certificates and the default policy.
    pub(in crate::bench) async fn embedded(directory: &Path) -> anyhow::Result<Self> {
        let folder = folder_in(directory)?;
        let data = folder.path().join("data");
        let command = || {
            let mut command = restow();
            command.args(["up", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data);
            command
        };
        drop(start(&mut command())?);
        let begun = Instant::now();
        let (child, _) = start(&mut command())?;
        let client = client(&data.join("kubeconfig")).await?;
        Self::ours("restow, embedded", child, client, begun, folder, None).await
    }

    /// `restow serve` on etcd, started for the second time.
    pub(in crate::bench) async fn etcd(directory: &Path, endpoints: &[String]) -> anyhow::Result<Self> {
        let folder = folder_in(directory)?;
        let options = LocalEtcdOptions {
            data_dir: Some(folder.path().join("etcd")),
            quota_bytes: Some(8 << 30),
            ..LocalEtcdOptions::default()
        };
        let etcd = match endpoints.is_empty() {
            true => Some(LocalEtcd::start_with(options).await.context("cannot start an etcd for our server")?),
            false => None,
        };
        let endpoints = etcd.as_ref().map_or(endpoints.join(","), LocalEtcd::endpoint);
        let joining = Joining { endpoints, folder: folder.path().to_path_buf() };
        Pki::open(&joining.files(), &[IpAddr::V4(Ipv4Addr::LOCALHOST)])?;
        drop(start(&mut joining.command())?);
        let begun = Instant::now();
        let Another { client, _child } = joining.start().await?;
        let subject = Self::ours("restow, etcd", _child, client, begun, folder, etcd).await?;
        Ok(Subject { joining: Some(joining), ..subject })
    }

    /// Starts another server on the same etcd; `None` where there is none, or it is not ours.
    pub(super) async fn another(&self) -> anyhow::Result<Option<Another>> {
        let Some(joining) = &self.joining else { return Ok(None) };
        let another = joining.start().await?;
        until_ready(&another.client).await?;
        Ok(Some(another))
    }

    /// Another server.
    pub(super) async fn other(kubeconfig: &Path) -> anyhow::Result<Self> {
        let config = config(kubeconfig).await?;
        let local = matches!(config.cluster_url.host(), Some("127.0.0.1" | "localhost" | "[::1]"));
        let port = config.cluster_url.port_u16().unwrap_or(443);
        let process = local.then(|| listening_process(port)).flatten();
        let client = kube::Client::try_from(config)?;
        let version = client.apiserver_version().await.context("cannot reach the other API server")?;
        let name = format!("other, {}", version.git_version);
        Ok(Subject { name, client, process, started_in: None, joining: None, _child: None, _etcd: None, _folder: None })
    }

    async fn ours(
        name: &str,
        child: Running,
        client: kube::Client,
        begun: Instant,
        folder: tempfile::TempDir,
        etcd: Option<LocalEtcd>,
    ) -> anyhow::Result<Self> {
        until_ready(&client).await?;
        Ok(Subject {
            name: name.into(),
            client,
            process: Some(child.0.id()),
            started_in: Some(begun.elapsed()),
            joining: None,
            _child: Some(child),
            _etcd: etcd,
            _folder: Some(folder),
        })
    }
}

async fn until_ready(client: &kube::Client) -> anyhow::Result<()> {
    let begun = Instant::now();
    while client.request_text(http::Request::get("/readyz").body(Vec::new())?).await.is_err() {
        anyhow::ensure!(begun.elapsed() < Duration::from_secs(60), "our server does not become ready");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

pub(in crate::bench) fn folder_in(directory: &Path) -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("restow-bench-").tempdir_in(directory);
    folder.with_context(|| format!("cannot make a folder in {}", directory.display()))
}

/// This very program.
pub(in crate::bench) fn restow() -> Command {
    // The link stays right when the file has been replaced meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.stdout(Stdio::piped());
    command
}

/// Starts one of our servers and waits for its first line, which names its address.
pub(in crate::bench) fn start(command: &mut Command) -> anyhow::Result<(Running, String)> {
    let mut child = Running(command.spawn().context("cannot start our own server")?);
    let mut lines = BufReader::new(child.0.stdout.take().context("the server has no output")?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let address = line.split("https://").nth(1).and_then(|rest| rest.split([' ', ';']).next());
    let address = address.with_context(|| format!("our server did not start; it said {line:?}"))?.to_string();
    // Whatever else it says must not block it.
    std::thread::spawn(move || for _ in lines.lines() {});
    Ok((child, address))
}

pub(in crate::bench) async fn client(kubeconfig: &Path) -> anyhow::Result<kube::Client> {
    Ok(kube::Client::try_from(config(kubeconfig).await?)?)
}

async fn config(path: &Path) -> anyhow::Result<kube::Config> {
    let kubeconfig = Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
}
