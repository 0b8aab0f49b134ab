//! Servers to test against: processes of the real binary, on the embedded store or on a private etcd.

use restow_local_etcd::LocalEtcd;
use restow_testkit::{drain, next_line, output, wait};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) const RESTOW: &str = env!("CARGO_BIN_EXE_restow");

/// Which store a server runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum On {
    Embedded,
    Etcd,
}

/// Servers that share one store. They end when this is dropped.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
    folder: tempfile::TempDir,
    etcd: Option<LocalEtcd>,
}

/// One server process.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    pub(crate) kubeconfig: PathBuf,
}

impl Cluster {
    /// One server on this store.
    pub(crate) async fn one(on: On) -> Self {
        match on {
            On::Embedded => {
                let folder = tempfile::tempdir().unwrap();
                let server = Server::up(folder.path());
                Cluster { servers: vec![server], folder, etcd: None }
            }
            On::Etcd => Self::on_etcd(&["1.37"]).await,
        }
    }

    /// Servers of these releases on one etcd.
    pub(crate) async fn on_etcd(releases: &[&str]) -> Self {
        let etcd = LocalEtcd::start().await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster { servers: Vec::new(), folder, etcd: Some(etcd) };
        for release in releases {
            cluster.join(release);
        }
        cluster
    }

    /// Starts one more server on the etcd.
    pub(crate) fn join(&mut self, release: &str) {
        let number = self.servers.len();
        let pki = self.folder.path().join("pki");
        let endpoint = self.etcd.as_ref().unwrap().endpoint();
        run(Command::new(RESTOW).arg("pki").arg(&pki));
        let child = Command::new(RESTOW)
            .args(["serve", "--listen", "127.0.0.1:0", "--release", release, "--etcd-endpoints", &endpoint])
            .arg("--tls-cert-file")
            .arg(pki.join("server.crt"))
            .arg("--tls-private-key-file")
            .arg(pki.join("server.key"))
            .arg("--client-ca-file")
            .arg(pki.join("ca.crt"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (child, address) = wait_until_ready(child);
        let kubeconfig = self.folder.path().join(format!("kubeconfig-{number}"));
        run(Command::new(RESTOW).arg("pki").arg(&pki).args(["--server", &address]));
        std::fs::copy(pki.join("kubeconfig"), &kubeconfig).unwrap();
        self.servers.push(Server { child, address, kubeconfig });
    }

    /// Stops the etcd, which says nothing until it is resumed.
    pub(crate) fn pause_etcd(&self) {
        self.etcd.as_ref().unwrap().pause().unwrap();
    }

    /// Lets the etcd go on.
    pub(crate) fn resume_etcd(&self) {
        self.etcd.as_ref().unwrap().resume().unwrap();
    }

    /// Where the etcd is, for tests that read it themselves.
    pub(crate) fn etcd_endpoint(&self) -> String {
        self.etcd.as_ref().unwrap().endpoint()
    }

    /// Runs kubectl against the first server.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.servers[0].kubectl(arguments)
    }

    /// A file with this text, for kubectl to read.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    }
}

impl Server {
    /// `restow up` in this folder, without the controller: nothing changes unless the test changes it.
    pub(crate) fn up(folder: &Path) -> Self {
        Self::up_with(folder, &["--controller=false"])
    }

    /// `restow up` in this folder, with further flags.
    pub(crate) fn up_with(folder: &Path, flags: &[&str]) -> Self {
        Self::up_at(folder, "127.0.0.1:0", flags)
    }

    /// `restow up` in this folder, at this address.
    pub(crate) fn up_at(folder: &Path, address: &str, flags: &[&str]) -> Self {
        Self::up_by(Command::new(RESTOW), folder, address, flags)
    }

    /// `restow up`, started by a command that is given the arguments.
    pub(crate) fn up_by(mut command: Command, folder: &Path, address: &str, flags: &[&str]) -> Self {
        let data = folder.join("data");
        let child = command
            .args(["up", "--listen", address, "--data-dir"])
            .arg(&data)
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (child, address) = wait_until_ready(child);
        Server { child, address, kubeconfig: data.join("kubeconfig") }
    }

    /// Runs kubectl, which must succeed, and returns what it printed.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).to_string();
        assert!(output.status.success(), "kubectl {} failed: {errors}", arguments.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs kubectl, which must fail, and returns what it complained of.
    pub(crate) fn kubectl_fails(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(arguments);
        assert!(!output.status.success(), "kubectl {} succeeded", arguments.join(" "));
        String::from_utf8_lossy(&output.stderr).to_string()
    }

    pub(crate) fn try_kubectl(&self, arguments: &[&str]) -> Output {
        output(&mut self.kubectl_command(arguments))
    }

    pub(crate) fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        // A cache of its own: servers of different tests come and go on the same ports.
        let cache = self.kubeconfig.with_extension("cache");
        command.env("KUBECONFIG", &self.kubeconfig).env("KUBECACHEDIR", cache).args(arguments);
        command
    }

    /// A client of kube-rs for this server.
    pub(crate) async fn client(&self) -> kube::Client {
        let kubeconfig = kube::config::Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        kube::Client::try_from(config).unwrap()
    }

    /// The process.
    pub(crate) fn process(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Asks the server to stop, and waits until it has.
    pub(crate) fn stop(mut self) -> std::process::ExitStatus {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        wait(&mut self.child)
    }

    /// Kills the server.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that has ended already needs no killing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the line that a server prints when it is ready.
fn wait_until_ready(mut child: Child) -> (Child, String) {
    let (line, rest) = next_line(BufReader::new(child.stdout.take().unwrap()));
    let address = line.split("https://").nth(1).and_then(|rest| rest.split([' ', ';']).next());
    let address = address.unwrap_or_else(|| panic!("the server said {line:?}")).to_string();
    drain(rest);
    (child, address)
}

fn run(command: &mut Command) {
    let output = output(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(180), "still not so after three minutes: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
