//! Three API servers on one store: in this process on the embedded store, or each in its own process on etcd.

use super::in_process_server::{InProcessServer, ServerSpec};
use super::server_process::ServerProcess;
use super::suspendable::Suspendable;
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
pub(super) struct DemoCluster {
    folder: tempfile::TempDir,
    pub(super) store: Arc<dyn Store>,
    servers: Servers,
    pub(super) members: Vec<Member>,
    clients: watch::Sender<Vec<Client>>,
}

/// Where the servers run.
enum Servers {
    ThisProcess,
    /// Each in its own process, with these flags for the store.
    Processes(Vec<OsString>),
}

/// One server.
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) release: Release,
    pub(super) cluster: Cluster,
    pub(super) server: Box<dyn Suspendable>,
}

impl DemoCluster {
    /// On the embedded store, in a temporary folder.
    pub(super) async fn embedded() -> anyhow::Result<Self> {
        let folder = folder()?;
        let config = EmbeddedConfig::new(folder.path().join("store"));
        let store = tokio::task::spawn_blocking(|| EmbeddedStore::open(config)).await??;
        Ok(DemoCluster::new(folder, Arc::new(store), Servers::ThisProcess))
    }

    /// On etcd, under a prefix that nobody else uses.
    pub(super) async fn on_etcd(endpoints: &[String], access: &EtcdAccess) -> anyhow::Result<Self> {
        let folder = folder()?;
        // The name of the folder is unique, so that the prefix is unique too.
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy();
        let prefix = format!("/{name}");
        let store = EtcdStore::connect(access.config(endpoints, &prefix)?).await.context("cannot use etcd")?;
        let mut flags: Vec<OsString> = vec!["--etcd-endpoints".into(), endpoints.join(",").into()];
        flags.extend(["--etcd-prefix".into(), OsString::from(prefix)]);
        flags.extend(access.flags());
        Ok(DemoCluster::new(folder, Arc::new(store), Servers::Processes(flags)))
    }

    fn new(folder: tempfile::TempDir, store: Arc<dyn Store>, servers: Servers) -> Self {
        DemoCluster { folder, store, servers, members: Vec::new(), clients: watch::Sender::new(Vec::new()) }
    }

    /// Where the servers run and on which store, for a sentence.
    pub(super) fn description(&self) -> String {
        match &self.servers {
            Servers::ThisProcess => "in one process, on an embedded store in a temporary folder".to_owned(),
            Servers::Processes(_) => {
                let name = self.folder.path().file_name().unwrap_or_default().to_string_lossy();
                format!("each in its own process, on etcd under the prefix /{name}")
            }
        }
    }

    /// The clients of the servers that run, as they change.
    pub(super) fn clients(&self) -> watch::Receiver<Vec<Client>> {
        self.clients.subscribe()
    }

    /// Starts one more server.
    pub(super) async fn join(&mut self, name: &'static str, release: Release) -> anyhow::Result<()> {
        let member = self.start(name, release, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        self.members.push(member);
        self.update_clients();
        Ok(())
    }

    /// Stops a server cleanly, and starts it as another release at the same address.
    pub(super) async fn replace(&mut self, index: usize, release: Release) -> anyhow::Result<()> {
        let member = &mut self.members[index];
        member.server.stop().await?;
        let (name, address) = (member.name, member.server.address());
        self.members[index] = self.start(name, release, address).await?;
        self.update_clients();
        Ok(())
    }

    /// Stops all servers, and removes everything that the demo has stored.
    pub(super) async fn close(mut self) -> anyhow::Result<()> {
        let mut stopped = Ok(());
        for member in &mut self.members {
            stopped = stopped.and(member.server.stop().await);
        }
        drop(self.members);
        if matches!(self.servers, Servers::Processes(_)) {
            remove_everything(self.store.as_ref()).await.context("cannot remove what the demo has stored in etcd")?;
        }
        // No server holds the store any more, so that this closes it and waits for the threads that still write files.
        tokio::task::spawn_blocking(move || drop(self.store)).await?;
        self.folder.close().context("cannot remove the temporary folder")?;
        stopped
    }

    async fn start(&self, name: &'static str, release: Release, address: SocketAddr) -> anyhow::Result<Member> {
        let spec = ServerSpec { name: name.to_owned(), release, address, pki: self.folder.path().join("pki") };
        // All server processes use the certificates that are created here.
        let pki = spec.pki()?;
        let server: Box<dyn Suspendable> = match &self.servers {
            Servers::ThisProcess => Box::new(InProcessServer::start(spec, self.store.clone()).await?),
            Servers::Processes(flags) => Box::new(ServerProcess::start(&spec, flags).await?),
        };
        let kubeconfig = Kubeconfig::from_yaml(&pki.kubeconfig(&server.address().to_string()))?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Member { name, release, cluster: Cluster::from_config(config)?, server })
    }

    fn update_clients(&self) {
        self.clients.send_replace(self.members.iter().map(|member| member.cluster.client().clone()).collect());
    }
}

fn folder() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("restow-demo-").tempdir().context("cannot create a temporary folder")
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
