//! A server in this process.

use super::pausable_store::{PausableStore, Pause};
use super::suspendable::{LEASE_DURATION, RENEW_INTERVAL, Suspendable};
use crate::pki::Pki;
use crate::serving::{self, ServingArgs, Setup};
use anyhow::Context;
use async_trait::async_trait;
use restow_api::ServerId;
use restow_apiserver::release::Release;
use restow_apiserver::{AggregatorConfig, AgreementConfig, ApiServer, Gates};
use restow_store::Store;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// The request timeout. A write that is held while the server is suspended must not time out when it resumes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// What to start, in this process or in another.
#[derive(Clone, Debug)]
pub(super) struct ServerSpec {
    /// Its name in the demo.
    pub(super) name: String,
    pub(super) release: Release,
    /// Where it listens; port 0 takes any free port.
    pub(super) address: SocketAddr,
    /// The folder with the certificates that all servers share.
    pub(super) pki: PathBuf,
}

/// A server in this process.
pub(super) struct InProcessServer {
    address: SocketAddr,
    server: Arc<ApiServer>,
    store: Arc<PausableStore>,
    stop: Option<oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<()>,
}

impl ServerSpec {
    /// The server's identity in leases and reports.
    pub(super) fn identity(name: &str) -> String {
        format!("apiserver-{name}")
    }

    /// The certificates, which are created where there are none.
    pub(super) fn pki(&self) -> anyhow::Result<Pki> {
        Ok(Pki::open(&self.pki, &[IpAddr::V4(Ipv4Addr::LOCALHOST)])?)
    }
}

impl InProcessServer {
    /// Starts a server and waits until it can be written to.
    pub(super) async fn start(spec: ServerSpec, store: Arc<dyn Store>) -> anyhow::Result<Self> {
        let listener = serving::listen(spec.address).await?;
        let address = listener.local_addr()?;
        let store = Arc::new(PausableStore::new(store));
        let gates = Gates::default();
        let agreement = AgreementConfig {
            lease_duration: LEASE_DURATION,
            renew_interval: RENEW_INTERVAL,
            ..AgreementConfig::new(ServerId::new(ServerSpec::identity(&spec.name))?, spec.name.clone(), &gates)
        };
        let authenticators = serving::authenticators(Some(&spec.pki.join("service-accounts.key")), None)?;
        let options = &ServingArgs::default().with_request_timeout(REQUEST_TIMEOUT);
        let (release, aggregator) = (spec.release, AggregatorConfig::default());
        let setup = Setup { release, address, authenticators, gates, agreement, root_ca: None, aggregator, options };
        let server = serving::server(store.clone(), setup).await?;
        let tls = spec.pki()?.tls()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(restow_apiserver::serve(server.clone(), listener, tls, async {
            let _ = stopped.await;
        }));
        server.ready().await.with_context(|| format!("server {} cannot start", spec.name))?;
        Ok(InProcessServer { address, server, store, stop: Some(stop), serving })
    }

    /// The keys of the writes that are held.
    pub(super) fn held(&self) -> watch::Receiver<Vec<String>> {
        self.store.held()
    }
}

#[async_trait]
impl Suspendable for InProcessServer {
    fn address(&self) -> SocketAddr {
        self.address
    }

    async fn hold_writes(&mut self) -> anyhow::Result<()> {
        self.store.pause(Pause::Transactions);
        Ok(())
    }

    async fn suspend_with(&mut self, name: &str) -> anyhow::Result<()> {
        self.held().wait_for(|held| held.iter().any(|key| key.ends_with(name))).await?;
        self.store.pause(Pause::Everything);
        Ok(())
    }

    async fn resume(&mut self) -> anyhow::Result<()> {
        self.store.pause(Pause::None);
        Ok(())
    }

    fn fence_failures(&self) -> u64 {
        self.server.agreement().fence_failures()
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        self.store.pause(Pause::None);
        if let Some(stop) = self.stop.take() {
            // The receiver is gone when the server has ended already.
            let _ = stop.send(());
            let _ = (&mut self.serving).await;
            self.server.leave().await;
        }
        self.store.close().await;
        Ok(())
    }
}
