//! Three API servers on one store: in this process on the embedded store, or in processes of their own on etcd.

use super::actor::{Actor, Role};
use super::machine::Machine;
use super::process::Process;
use crate::etcd_args::EtcdAccess;
use anyhow::Context;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use restow_apiserver::release::Release;
use restow_migrate::cluster::Cluster;
use restow_store::{Content, RangeRequest, Store, Txn};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use restow_store_etcd::EtcdStore;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::sync::watch;

/// The servers and their store.
pub(super) struct Stage {
    folder: tempfile::TempDir,
    pub(super) store: Arc<dyn Store>,
    place: Place,
    pub(super) members: Vec<Member>,
    clients: watch::Sender<Vec<Client>>,
}

/// Where the servers run.
enum Place {
    ThisProcess,
    /// Processes of their own, which get these flags to find the store.
    Processes(Vec<OsString>),
}

/// One server.
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) release: Release,
    pub(super) cluster: Cluster,
    pub(super) machine: Box<dyn Machine>,
}

impl Stage {
    /// On the embedded store, in a temporary folder.
    pub(super) async fn embedded() -> anyhow::Result<Self> {
        let folder = folder()?;
        let config = EmbeddedConfig::new(folder.path().join("store"));
        let store = tokio::task::spawn_blocking(|| EmbeddedStore::open(config)).await??;
        Ok(Stage::new(folder, Arc::new(store), Place::ThisProcess))
    }

    /// On etcd, below a prefix that nobody else uses.
    pub(super) async fn on_etcd(endpoints: &[String], access: &EtcdAccess) -> anyhow::Result<Self> {
        let folder = folder()?;
        // What makes the name of the folder unique makes that of the prefix unique too.
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy();
        let prefix = format!("/{name}");
        let store = EtcdStore::connect(access.config(endpoints, &prefix)?).await.context("cannot use etcd")?;
        let mut flags: Vec<OsString> = vec!["--etcd-endpoints".into(), endpoints.join(",").into()];
        flags.extend(["--etcd-prefix".into(), OsString::from(prefix)]);
        flags.extend(access.flags());
        Ok(Stage::new(folder, Arc::new(store), Place::Processes(flags)))
    }

    fn new(folder: tempfile::TempDir, store: Arc<dyn Store>, place: Place) -> Self {
        Stage { folder, store, place, members: Vec::new(), clients: watch::Sender::new(Vec::new()) }
    }

    /// Where the servers run and on what, in half a sentence.
    pub(super) fn words(&self) -> String {
        match &self.place {
            Place::ThisProcess => "in one process, on an embedded store in a temporary folder".to_owned(),
            Place::Processes(_) => {
                let name = self.folder.path().file_name().unwrap_or_default().to_string_lossy();
                format!("each in a process of its own, on etcd below the prefix /{name}")
            }
        }
    }

    /// The clients of the servers, as they are from time to time.
    pub(super) fn clients(&self) -> watch::Receiver<Vec<Client>> {
        self.clients.subscribe()
    }

    /// Starts one more server.
    pub(super) async fn join(&mut self, name: &'static str, release: Release) -> anyhow::Result<()> {
        let member = self.start(name, release, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        self.members.push(member);
        self.tell_clients();
        Ok(())
    }

    /// Stops a server cleanly, and starts it as another release at the same address.
    pub(super) async fn replace(&mut self, index: usize, release: Release) -> anyhow::Result<()> {
        let member = &mut self.members[index];
        member.machine.stop().await?;
        let (name, address) = (member.name, member.machine.address());
        self.members[index] = self.start(name, release, address).await?;
        self.tell_clients();
        Ok(())
    }

    /// Stops everything and leaves nothing behind.
    pub(super) async fn close(mut self) -> anyhow::Result<()> {
        let mut stopped = Ok(());
        for member in &mut self.members {
            stopped = stopped.and(member.machine.stop().await);
        }
        drop(self.members);
        if matches!(self.place, Place::Processes(_)) {
            remove_everything(self.store.as_ref()).await.context("cannot remove what the demo has stored in etcd")?;
        }
        // The servers have let go of the store, so that this closes it: it waits for the threads that still write files.
        tokio::task::spawn_blocking(move || drop(self.store)).await?;
        self.folder.close().context("cannot remove the temporary folder")?;
        stopped
    }

    async fn start(&self, name: &'static str, release: Release, address: SocketAddr) -> anyhow::Result<Member> {
        let role = Role { name: name.to_owned(), release, address, pki: self.folder.path().join("pki") };
        // All processes find the certificates that are made here.
        let pki = role.pki()?;
        let machine: Box<dyn Machine> = match &self.place {
            Place::ThisProcess => Box::new(Actor::start(role, self.store.clone()).await?),
            Place::Processes(flags) => Box::new(Process::start(&role, flags).await?),
        };
        let kubeconfig = Kubeconfig::from_yaml(&pki.kubeconfig(&machine.address().to_string()))?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Member { name, release, cluster: Cluster::from_config(config)?, machine })
    }

    fn tell_clients(&self) {
        self.clients.send_replace(self.members.iter().map(|member| member.cluster.client().clone()).collect());
    }
}

fn folder() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("restow-demo-").tempdir().context("cannot make a temporary folder")
}

async fn remove_everything(store: &dyn Store) -> anyhow::Result<()> {
    loop {
        let some = RangeRequest::prefix("/").limit(Txn::MAX_OPERATIONS).content(Content::KeysOnly);
        let found = store.range(some).await?.entries;
        if found.is_empty() {
            return Ok(());
        }
        store.txn(found.iter().fold(Txn::new(), |txn, entry| txn.delete(&entry.key))).await?;
    }
}
