//! A server in this process.

use super::machine::{LEASE, Machine, RENEWAL};
use super::stalling::{Stall, StallingStore};
use crate::pki::Pki;
use crate::serving::{self, ServingArgs, Setup};
use anyhow::Context;
use async_trait::async_trait;
use restow_api::ServerId;
use restow_apiserver::release::Release;
use restow_apiserver::{AgreementConfig, ApiServer, Gates};
use restow_store::Store;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How long a request may take. A write that the server holds while it is suspended must not be given up when it wakes.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Who a server is, wherever it runs.
#[derive(Clone, Debug)]
pub(super) struct Role {
    /// Its name in the story.
    pub(super) name: String,
    pub(super) release: Release,
    /// Where it listens; port 0 is any.
    pub(super) address: SocketAddr,
    /// The folder with the certificates that all servers share.
    pub(super) pki: PathBuf,
}

/// A server in this process.
pub(super) struct Actor {
    address: SocketAddr,
    server: Arc<ApiServer>,
    store: Arc<StallingStore>,
    stop: Option<oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Role {
    /// What the server is called in leases and reports.
    pub(super) fn identity(name: &str) -> String {
        format!("apiserver-{name}")
    }

    /// The certificates, made where there are none.
    pub(super) fn pki(&self) -> anyhow::Result<Pki> {
        Ok(Pki::open(&self.pki, &[IpAddr::V4(Ipv4Addr::LOCALHOST)])?)
    }
}

impl Actor {
    /// Starts a server and waits until it can be written to.
    pub(super) async fn start(role: Role, store: Arc<dyn Store>) -> anyhow::Result<Self> {
        let listener = serving::listen(role.address).await?;
        let address = listener.local_addr()?;
        let store = Arc::new(StallingStore::new(store));
        let gates = Gates::default();
        let agreement = AgreementConfig {
            lease_duration: LEASE,
            renew_interval: RENEWAL,
            ..AgreementConfig::new(ServerId::new(Role::identity(&role.name))?, role.name.clone(), &gates)
        };
        let authenticators = serving::authenticators(Some(&role.pki.join("service-accounts.key")), None)?;
        let options = &ServingArgs::default().with_request_timeout(PATIENCE);
        let setup = Setup { release: role.release, address, authenticators, gates, agreement, root_ca: None, options };
        let server = serving::server(store.clone(), setup).await?;
        let tls = role.pki()?.tls()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(restow_apiserver::serve(server.clone(), listener, tls, async {
            let _ = stopped.await;
        }));
        server.ready().await.with_context(|| format!("server {} cannot start", role.name))?;
        Ok(Actor { address, server, store, stop: Some(stop), serving })
    }

    /// The keys of the writes that are held up.
    pub(super) fn held(&self) -> watch::Receiver<Vec<String>> {
        self.store.held()
    }
}

#[async_trait]
impl Machine for Actor {
    fn address(&self) -> SocketAddr {
        self.address
    }

    async fn hold_writes(&mut self) -> anyhow::Result<()> {
        self.store.stall(Stall::Transactions);
        Ok(())
    }

    async fn suspend_with(&mut self, name: &str) -> anyhow::Result<()> {
        self.held().wait_for(|held| held.iter().any(|key| key.ends_with(name))).await?;
        self.store.stall(Stall::Everything);
        Ok(())
    }

    async fn wake(&mut self) -> anyhow::Result<()> {
        self.store.stall(Stall::None);
        Ok(())
    }

    fn fence_failures(&self) -> u64 {
        self.server.agreement().fence_failures()
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        self.store.stall(Stall::None);
        if let Some(stop) = self.stop.take() {
            // A server that has ended already needs no telling.
            let _ = stop.send(());
            let _ = (&mut self.serving).await;
            self.server.leave().await;
        }
        self.store.close().await;
        Ok(())
    }
}
