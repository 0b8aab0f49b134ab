//! Three API servers in one process, on one store.

use super::stalling::{Stall, StallingStore};
use crate::pki::Pki;
use crate::serving::{self, ServingArgs, Setup};
use anyhow::Context;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use restow_api::ServerId;
use restow_apiserver::release::Release;
use restow_apiserver::{AgreementConfig, ApiServer, Gates};
use restow_migrate::cluster::Cluster;
use restow_store::Store;
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How long the others wait for a server that gives no sign of life: short, so that nobody has to wait long in a demo, but not
/// so short that a busy machine is taken for one that sleeps.
const LEASE: Duration = Duration::from_secs(6);
const RENEWAL: Duration = Duration::from_secs(1);

/// The servers and their store.
pub(super) struct Stage {
    folder: tempfile::TempDir,
    pub(super) store: Arc<dyn Store>,
    pki: Pki,
    pub(super) members: Vec<Member>,
    clients: watch::Sender<Vec<Client>>,
}

/// One server.
pub(super) struct Member {
    pub(super) name: &'static str,
    pub(super) release: Release,
    pub(super) cluster: Cluster,
    address: SocketAddr,
    server: Arc<ApiServer>,
    stall: watch::Sender<Stall>,
    held: watch::Receiver<Vec<String>>,
    stop: Option<oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Stage {
    pub(super) async fn open() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let config = EmbeddedConfig::new(folder.path().join("store"));
        let store: Arc<dyn Store> = Arc::new(tokio::task::spawn_blocking(|| EmbeddedStore::open(config)).await??);
        let pki = Pki::open(&folder.path().join("pki"), &[IpAddr::V4(Ipv4Addr::LOCALHOST)])?;
        let (clients, _) = watch::channel(Vec::new());
        Ok(Stage { folder, store, pki, members: Vec::new(), clients })
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
        member.stop().await;
        let (name, address) = (member.name, member.address);
        self.members[index] = self.start(name, release, address).await?;
        self.tell_clients();
        Ok(())
    }

    /// Stops everything.
    pub(super) async fn close(mut self) -> anyhow::Result<()> {
        for member in &mut self.members {
            member.stop().await;
        }
        drop(self.members);
        // What the servers left running ends by itself; the folder must not go while something still writes to it.
        for _ in 0..100 {
            if Arc::strong_count(&self.store) == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        drop(self.store);
        self.folder.close().context("cannot remove the temporary folder")
    }

    async fn start(&self, name: &'static str, release: Release, address: SocketAddr) -> anyhow::Result<Member> {
        let listener = serving::listen(address).await?;
        let address = listener.local_addr()?;
        let (stall, gate) = watch::channel(Stall::None);
        let (holding, held) = watch::channel(Vec::new());
        let store: Arc<dyn Store> = Arc::new(StallingStore::new(self.store.clone(), gate, holding));
        let gates = Gates::default();
        let agreement = AgreementConfig {
            lease_duration: LEASE,
            renew_interval: RENEWAL,
            ..AgreementConfig::new(ServerId::new(format!("apiserver-{name}"))?, name, &gates)
        };
        let authenticators = serving::authenticators(Some(&self.folder.path().join("pki/service-accounts.key")), None)?;
        let options = &ServingArgs::default();
        let setup = Setup { release, address, authenticators, gates, agreement, options };
        let server = serving::server(store, setup).await?;
        let tls = self.pki.tls()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.clone().serve(listener, tls, async {
            let _ = stopped.await;
        }));
        server.ready().await.with_context(|| format!("server {name} cannot start"))?;
        let kubeconfig = Kubeconfig::from_yaml(&self.pki.kubeconfig(&address.to_string()))?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let cluster = Cluster::from_config(config)?;
        Ok(Member { name, release, cluster, address, server, stall, held, stop: Some(stop), serving })
    }

    fn tell_clients(&self) {
        self.clients.send_replace(self.members.iter().map(|member| member.cluster.client().clone()).collect());
    }
}

impl Member {
    /// Holds up what the server writes, so that it can be suspended with a write on its way.
    pub(super) fn stall_writes(&self) {
        self.stall.send_replace(Stall::Transactions);
    }

    /// Waits for that write, and suspends the server with it in its hands.
    pub(super) async fn stall_with(&self, name: &str) {
        let _ = self.held.clone().wait_for(|held| held.iter().any(|key| key.ends_with(name))).await;
        self.stall.send_replace(Stall::Everything);
    }

    /// Lets it go on.
    pub(super) fn wake(&self) {
        self.stall.send_replace(Stall::None);
    }

    /// How many of its writes the fence has refused.
    pub(super) fn fence_failures(&self) -> u64 {
        self.server.agreement().fence_failures()
    }

    async fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = (&mut self.serving).await;
        self.server.leave().await;
    }
}
