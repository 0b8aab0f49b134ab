//! `restow serve` processes on one etcd, each with an identity that survives restarts.

use restow_store::{Key, RangeRequest, Store, StoreExt};
use restow_store_etcd::EtcdStore;
use restow_testkit::{LocalEtcd, Pki, Process, Server, etcd_store, output, start_etcd};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, RwLock};
use std::time::Duration;

/// Where the servers that run can be reached, by their number.
pub(crate) type Addresses = Arc<RwLock<Vec<Option<String>>>>;

/// Servers on one etcd. They end when this is dropped.
pub(crate) struct Fleet {
    pub(crate) store: EtcdStore,
    pub(crate) addresses: Addresses,
    /// Further environment variables of the servers, by their number.
    pub(crate) environment: Vec<Vec<(String, PathBuf)>>,
    /// For how many seconds identity leases last, and after how many they are renewed.
    pub(crate) lease: (&'static str, &'static str),
    servers: Vec<Option<Server>>,
    pki: Pki,
    folder: tempfile::TempDir,
    etcd: LocalEtcd,
}

impl Fleet {
    pub(crate) async fn of(size: usize) -> Self {
        let etcd = start_etcd().await;
        let store = etcd_store(&etcd.endpoint(), "/registry").await;
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::create(folder.path().join("pki"));
        let addresses = Arc::new(RwLock::new(vec![None; size]));
        let (servers, environment) = ((0..size).map(|_| None).collect(), vec![Vec::new(); size]);
        Fleet { store, addresses, environment, lease: ("4", "1"), servers, pki, folder, etcd }
    }

    /// A temporary folder for files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn etcd(&self) -> &LocalEtcd {
        &self.etcd
    }

    /// Copies etcd's data while etcd is stopped for a moment.
    pub(crate) async fn back_up_etcd(&mut self) -> tempfile::TempDir {
        let backup = tempfile::tempdir().unwrap();
        self.etcd.stop().await.unwrap();
        replace_content(backup.path(), self.etcd.directory());
        self.etcd.restart().await.unwrap();
        backup
    }

    /// Restores etcd from a copy.
    pub(crate) async fn restore_etcd(&mut self, backup: &tempfile::TempDir) {
        self.etcd.stop().await.unwrap();
        replace_content(self.etcd.directory(), backup.path());
        self.etcd.restart().await.unwrap();
    }

    fn command(&self, number: usize, release: &str, more: &[&str]) -> Command {
        self.command_at(&self.etcd.endpoint(), number, release, more)
    }

    fn command_at(&self, endpoint: &str, number: usize, release: &str, more: &[&str]) -> Command {
        let mut command = self.pki.serve(endpoint, release);
        command
            .args(["--identity", &identity(number)])
            .args(["--identity-lease-duration-seconds", self.lease.0, "--identity-lease-renew-seconds", self.lease.1])
            .args(more)
            .envs(self.environment[number].iter().cloned())
            .stdout(Stdio::piped());
        command
    }

    /// Runs a server that is expected to end by itself.
    pub(crate) fn run_until_it_ends(&self, number: usize, release: &str) -> Output {
        output(&mut self.command(number, release, &[]))
    }

    /// Starts one server and waits until it is ready.
    pub(crate) fn start(&mut self, number: usize, release: &str, more: &[&str]) {
        let process = Process::spawn(&mut self.command(number, release, more));
        self.wait_until_ready(number, process);
    }

    /// Starts one server while etcd is suspended for so long, and waits until it is ready.
    pub(crate) fn start_while_etcd_is_paused(&mut self, number: usize, release: &str, pause: Duration) {
        self.etcd.pause().unwrap();
        let process = Process::spawn(&mut self.command(number, release, &[]));
        std::thread::sleep(pause);
        self.etcd.resume().unwrap();
        self.wait_until_ready(number, process);
    }

    /// Starts several servers at the same time, and waits until all are ready.
    pub(crate) fn start_together(&mut self, count: usize, release: &str) {
        let spawn = |number: usize| Process::spawn(&mut self.command(number, release, &[]));
        let processes: Vec<Process> = (0..count).map(spawn).collect();
        processes.into_iter().enumerate().for_each(|(number, process)| self.wait_until_ready(number, process));
    }

    /// The same, where each server has its own way to etcd.
    pub(crate) fn start_together_at(&mut self, endpoints: &[String], release: &str) {
        let endpoints = endpoints.iter().enumerate();
        let commands = endpoints.map(|(number, endpoint)| self.command_at(endpoint, number, release, &[]));
        let processes: Vec<Process> = commands.map(|mut command| Process::spawn(&mut command)).collect();
        processes.into_iter().enumerate().for_each(|(number, process)| self.wait_until_ready(number, process));
    }

    fn wait_until_ready(&mut self, number: usize, process: Process) {
        // The kubeconfig is one for all servers; `client_config` reads it.
        let server = Server::ready(process, PathBuf::new());
        self.addresses.write().unwrap()[number] = Some(server.address.clone());
        self.servers[number] = Some(server);
    }

    /// Stops one server, and waits until it has ended.
    pub(crate) fn stop(&mut self, number: usize) {
        assert!(self.take(number).stop().success());
    }

    pub(crate) fn kill(&mut self, number: usize) {
        self.take(number).kill();
    }

    fn take(&mut self, number: usize) -> Server {
        self.addresses.write().unwrap()[number] = None;
        self.servers[number].take().unwrap()
    }

    /// Suspends one server (SIGSTOP). Clients do not know, and go on sending it requests.
    pub(crate) fn pause(&self, number: usize) {
        self.servers[number].as_ref().unwrap().process().pause();
    }

    pub(crate) fn resume(&self, number: usize) {
        self.servers[number].as_ref().unwrap().process().resume();
    }

    /// The configuration of an administrator's client. The caller sets the address.
    pub(crate) async fn client_config(&self) -> kube::Config {
        let file = kube::config::Kubeconfig::read_from(self.pki.kubeconfig("127.0.0.1:1")).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.unwrap();
        // Tests check single responses, so that the client must not retry by itself.
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

/// Replaces the content of a folder by a copy of `source`.
fn replace_content(folder: &Path, source: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
    }
    let copied = Command::new("cp").arg("-a").arg(source.join(".")).arg(folder).status().unwrap();
    assert!(copied.success());
}

/// The identity of a server.
pub(crate) fn identity(number: usize) -> String {
    format!("server-{number}")
}
