//! One Restow API server as a process of the real binary, on port 0, and `kubectl` for it.

use crate::process::{Process, output};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};

/// One server process. It is killed when this is dropped.
pub struct Server {
    process: Process,
    /// The address, as `host:port`.
    pub address: String,
    /// A kubeconfig of an administrator.
    pub kubeconfig: PathBuf,
}

impl Server {
    /// `restow up` in this folder, without the controller, so that only the test changes objects.
    pub fn up(folder: &Path) -> Self {
        Self::up_with(folder, &["--controller=false"])
    }

    /// `restow up` in this folder, with further flags.
    pub fn up_with(folder: &Path, flags: &[&str]) -> Self {
        Self::up_at(folder, "127.0.0.1:0", flags)
    }

    /// `restow up` in this folder, at this address.
    pub fn up_at(folder: &Path, address: &str, flags: &[&str]) -> Self {
        Self::up_by(Command::new(restow_binary()), folder, address, flags)
    }

    /// `restow up`, started by a command to which the arguments are added.
    pub fn up_by(mut command: Command, folder: &Path, address: &str, flags: &[&str]) -> Self {
        let data = folder.join("data");
        command.args(["up", "--listen", address, "--data-dir"]).arg(&data).args(flags);
        Self::start(&mut command, data.join("kubeconfig"))
    }

    /// Starts a server with a command, and waits until it is ready. The kubeconfig may be written later.
    pub fn start(command: &mut Command, kubeconfig: PathBuf) -> Self {
        Self::ready(Process::spawn(command.stdout(std::process::Stdio::piped())), kubeconfig)
    }

    /// Waits until a server process, whose standard output is piped, has printed that it is ready.
    pub fn ready(mut process: Process, kubeconfig: PathBuf) -> Self {
        let line = process.read_line();
        let address = line.split("https://").nth(1).and_then(|rest| rest.split([' ', ';']).next());
        let address = address.unwrap_or_else(|| panic!("the server printed {line:?}")).to_string();
        Server { process, address, kubeconfig }
    }

    /// Runs kubectl, which must succeed, and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).to_string();
        assert!(output.status.success(), "kubectl {} failed: {errors}", arguments.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs kubectl, which must fail, and returns its standard error.
    pub fn kubectl_fails(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(arguments);
        assert!(!output.status.success(), "kubectl {} succeeded", arguments.join(" "));
        String::from_utf8_lossy(&output.stderr).to_string()
    }

    /// Runs kubectl with any exit code.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Output {
        output(&mut self.kubectl_command(arguments))
    }

    /// kubectl with these arguments for this server.
    pub fn kubectl_command(&self, arguments: &[&str]) -> Command {
        kubectl_command(&self.kubeconfig, arguments)
    }

    /// A kube-rs client for this server.
    pub async fn client(&self) -> kube::Client {
        let kubeconfig = kube::config::Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        kube::Client::try_from(config).unwrap()
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Stops the server, and waits until it has ended.
    pub fn stop(self) -> ExitStatus {
        self.process.stop()
    }

    /// Kills the server.
    pub fn kill(mut self) {
        self.process.kill();
    }
}

/// The certificates that `restow pki` creates for servers on etcd.
pub struct Pki {
    folder: PathBuf,
}

impl Pki {
    /// Creates a CA and certificates in this folder.
    pub fn create(folder: PathBuf) -> Self {
        run(Command::new(restow_binary()).arg("pki").arg(&folder));
        Pki { folder }
    }

    /// `restow serve` on port 0 with these certificates, on this etcd.
    pub fn serve(&self, etcd_endpoint: &str, release: &str) -> Command {
        let mut command = Command::new(restow_binary());
        command.args(["serve", "--listen", "127.0.0.1:0", "--release", release, "--etcd-endpoints", etcd_endpoint]);
        for (flag, file) in [
            ("--tls-cert-file", "server.crt"),
            ("--tls-private-key-file", "server.key"),
            ("--client-ca-file", "ca.crt"),
            ("--requestheader-client-ca-file", "front-proxy-ca.crt"),
            ("--proxy-client-cert-file", "front-proxy-client.crt"),
            ("--proxy-client-key-file", "front-proxy-client.key"),
        ] {
            command.arg(flag).arg(self.folder.join(file));
        }
        command
    }

    /// The kubeconfig of the administrator for a server at this address.
    pub fn kubeconfig(&self, address: &str) -> PathBuf {
        run(Command::new(restow_binary()).arg("pki").arg(&self.folder).args(["--server", address]));
        self.folder.join("kubeconfig")
    }
}

/// The `restow` binary of the build that the running test belongs to.
///
/// Cargo puts test programs into `deps/`, below the folder of the binaries.
pub fn restow_binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let binary = test.parent().and_then(Path::parent).unwrap().join("restow");
    assert!(binary.exists(), "{} is missing: build it first, with cargo build --workspace", binary.display());
    binary
}

/// Runs `restow` with these arguments. Returns its result and all its output.
pub fn restow_output(arguments: &[&str]) -> (Output, String) {
    let output = output(Command::new(restow_binary()).args(arguments));
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, text)
}

/// Runs a command, which must succeed, and returns its output.
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// kubectl with these arguments and this kubeconfig.
pub fn kubectl_command(kubeconfig: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    // A separate cache: servers of different tests use the same ports one after the other.
    let cache = kubeconfig.with_extension("cache");
    command.env("KUBECONFIG", kubeconfig).env("KUBECACHEDIR", cache).args(arguments);
    command
}
