//! Servers of the real binary on one private etcd, each with an identity of its own that survives restarts.

use restow_local_etcd::LocalEtcd;
use restow_store::{Key, RangeRequest, Store, StoreExt};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use restow_testkit::{drain, next_line, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

const RESTOW: &str = env!("CARGO_BIN_EXE_restow");

/// Where the servers that run can be reached, by their number.
pub(crate) type Addresses = Arc<RwLock<Vec<Option<String>>>>;

/// Servers on one etcd. They end when this is dropped.
pub(crate) struct Fleet {
    pub(crate) store: EtcdStore,
    pub(crate) addresses: Addresses,
    /// What the servers have in their environment beside the usual, by their number.
    pub(crate) environment: Vec<Vec<(String, PathBuf)>>,
    /// For how many seconds identity leases last, and after how many they are renewed.
    pub(crate) lease: (&'static str, &'static str),
    servers: Vec<Option<Child>>,
    folder: tempfile::TempDir,
    etcd: LocalEtcd,
}

impl Fleet {
    pub(crate) async fn of(size: usize) -> Self {
        let etcd = LocalEtcd::start().await.unwrap();
        let config = EtcdConfig { prefix: "/registry".into(), ..EtcdConfig::new(vec![etcd.endpoint()]) };
        let store = EtcdStore::connect(config).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new(RESTOW).arg("pki").arg(folder.path().join("pki")).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let addresses = Arc::new(RwLock::new(vec![None; size]));
        let (servers, environment) = ((0..size).map(|_| None).collect(), vec![Vec::new(); size]);
        Fleet { store, addresses, environment, lease: ("4", "1"), servers, folder, etcd }
    }

    /// Where files can be made that are gone afterwards.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn etcd(&self) -> &LocalEtcd {
        &self.etcd
    }

    /// Copies everything that etcd has, while it stands still for a moment.
    pub(crate) async fn back_up_etcd(&mut self) -> tempfile::TempDir {
        let backup = tempfile::tempdir().unwrap();
        self.etcd.stop().await.unwrap();
        replace_content(backup.path(), self.etcd.directory());
        self.etcd.restart().await.unwrap();
        backup
    }

    /// Lets etcd go back to what it was when the copy was made.
    pub(crate) async fn restore_etcd(&mut self, backup: &tempfile::TempDir) {
        self.etcd.stop().await.unwrap();
        replace_content(self.etcd.directory(), backup.path());
        self.etcd.restart().await.unwrap();
    }

    fn command(&self, number: usize, release: &str, more: &[&str]) -> Command {
        let pki = self.folder.path().join("pki");
        let mut command = Command::new(RESTOW);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--release", release])
            .args(["--etcd-endpoints", &self.etcd.endpoint(), "--identity", &identity(number)])
            .args(["--identity-lease-duration-seconds", self.lease.0, "--identity-lease-renew-seconds", self.lease.1])
            .arg("--tls-cert-file")
            .arg(pki.join("server.crt"))
            .arg("--tls-private-key-file")
            .arg(pki.join("server.key"))
            .arg("--client-ca-file")
            .arg(pki.join("ca.crt"))
            .args(more)
            .envs(self.environment[number].iter().cloned())
            .stdout(Stdio::piped());
        command
    }

    /// Runs a server that is expected to end by itself.
    pub(crate) fn run_until_it_ends(&self, number: usize, release: &str) -> Output {
        let mut child = self.command(number, release, &[]).stderr(Stdio::piped()).spawn().unwrap();
        let patience = Instant::now() + Duration::from_secs(60);
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > patience {
                child.kill().unwrap();
                panic!("the server goes on: {:?}", child.wait_with_output());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        child.wait_with_output().unwrap()
    }

    /// Starts one server and waits until it is ready.
    pub(crate) fn start(&mut self, number: usize, release: &str, more: &[&str]) {
        let child = self.command(number, release, more).spawn().unwrap();
        self.wait_until_ready(number, child);
    }

    /// Starts one server while etcd does not answer for so long, and waits until it is ready.
    pub(crate) fn start_while_etcd_sleeps(&mut self, number: usize, release: &str, sleep: Duration) {
        self.etcd.pause().unwrap();
        let child = self.command(number, release, &[]).spawn().unwrap();
        std::thread::sleep(sleep);
        self.etcd.resume().unwrap();
        self.wait_until_ready(number, child);
    }

    /// Starts several servers at the same time, and waits until all are ready.
    pub(crate) fn start_together(&mut self, count: usize, release: &str) {
        let children: Vec<Child> =
            (0..count).map(|number| self.command(number, release, &[]).spawn().unwrap()).collect();
        children.into_iter().enumerate().for_each(|(number, child)| self.wait_until_ready(number, child));
    }

    fn wait_until_ready(&mut self, number: usize, mut child: Child) {
        let (line, rest) = next_line(BufReader::new(child.stdout.take().unwrap()));
        let address = line.split("https://").nth(1).and_then(|rest| rest.split([' ', ';']).next());
        let address = address.unwrap_or_else(|| panic!("the server said {line:?}")).to_string();
        drain(rest);
        self.servers[number] = Some(child);
        self.addresses.write().unwrap()[number] = Some(address);
    }

    /// Asks one server to stop, and waits until it has.
    pub(crate) fn stop(&mut self, number: usize) {
        self.addresses.write().unwrap()[number] = None;
        let mut child = self.servers[number].take().unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(wait(&mut child).success());
    }

    pub(crate) fn kill(&mut self, number: usize) {
        self.addresses.write().unwrap()[number] = None;
        let mut child = self.servers[number].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops time for one server. Clients do not know, and go on asking it.
    pub(crate) fn pause(&self, number: usize) {
        kill_process(Pid::from_child(self.servers[number].as_ref().unwrap()), Signal::STOP).unwrap();
    }

    pub(crate) fn resume(&self, number: usize) {
        kill_process(Pid::from_child(self.servers[number].as_ref().unwrap()), Signal::CONT).unwrap();
    }

    /// How to reach a server with all rights. The address is filled in by whoever uses it.
    pub(crate) async fn client_config(&self) -> kube::Config {
        let pki = self.folder.path().join("pki");
        let made = Command::new(RESTOW).arg("pki").arg(&pki).args(["--server", "127.0.0.1:1"]).output().unwrap();
        assert!(made.status.success());
        let file = kube::config::Kubeconfig::read_from(pki.join("kubeconfig")).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.unwrap();
        // What a server answers is to be seen, not asked again for minutes behind our back.
        config.default_retry = false;
        config
    }

    /// The status of a StorageVersion, as etcd has it.
    pub(crate) async fn status(&self, name: &str) -> Value {
        let key = Key::try_from(format!("/internal.apiserver.k8s.io/storageversions/{name}")).unwrap();
        let entry = self.store.get(&key).await.unwrap();
        entry.map_or(Value::Null, |entry| serde_json::from_slice::<Value>(&entry.value).unwrap()["status"].take())
    }

    /// All StorageVersions on which the servers do not agree.
    pub(crate) async fn disagreements(&self) -> Vec<String> {
        let listed =
            self.store.range(RangeRequest::prefix("/internal.apiserver.k8s.io/storageversions/")).await.unwrap();
        let objects = listed.entries.iter().map(|entry| serde_json::from_slice::<Value>(&entry.value).unwrap());
        let open = objects.filter(|object| object["status"]["commonEncodingVersion"].is_null());
        open.map(|object| object["metadata"]["name"].as_str().unwrap().to_string()).collect()
    }

    pub(crate) async fn has_lease(&self, number: usize) -> bool {
        let key = Key::try_from(format!("/coordination.k8s.io/leases/kube-system/{}", identity(number))).unwrap();
        self.store.get(&key).await.unwrap().is_some()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for mut child in self.servers.iter_mut().filter_map(Option::take) {
            // A server that has ended already needs no killing.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Puts a copy of the content of `source` in the place of what is in a folder.
fn replace_content(folder: &Path, source: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
    }
    let copied = Command::new("cp").arg("-a").arg(source.join(".")).arg(folder).status().unwrap();
    assert!(copied.success());
}

/// What a server is called among the others.
pub(crate) fn identity(number: usize) -> String {
    format!("server-{number}")
}

/// Waits until something holds, and tells how long it took.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < Duration::from_secs(120), "still not so after two minutes: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    start.elapsed()
}
