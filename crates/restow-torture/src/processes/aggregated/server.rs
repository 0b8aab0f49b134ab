//! The process of the aggregated server: plants on an embedded store, and reports at the main API servers.

use super::record::Record;
use super::recording_store::RecordingStore;
use super::{GROUP, PLANTS};
use crate::processes::ProcessError;
use restow_aggregated::MainServer;
use restow_apiserver::resource::Resource;
use restow_apiserver::resource::registry::Registry;
use restow_apiserver::serving::pki::{CertificateAndKey, tls_config};
use restow_apiserver::{ApiServer, ServerConfig};
use restow_store::Revision;
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// What an aggregated server needs.
#[derive(Clone, Debug)]
pub struct AggregatedServer {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its name, here and at the main API servers.
    pub identity: String,
    /// The version in which it stores plants.
    pub stored: String,
    /// The folder of its store.
    pub store: PathBuf,
    /// The folder with the certificates.
    pub pki: PathBuf,
    /// The kubeconfig for the main API servers.
    pub main: PathBuf,
    /// The file in which it records what happens in its store.
    pub record: PathBuf,
    /// The first revision of its store that was not recorded yet.
    pub first: u64,
}

impl AggregatedServer {
    /// Serves until `stop` completes.
    pub async fn serve(&self, stop: impl Future<Output = ()>) -> Result<(), ProcessError> {
        let failed = |error: &dyn std::fmt::Display| ProcessError::Server(error.to_string());
        let record = Record::open(&self.record).map_err(ProcessError::io("open the record"))?;
        let store = EmbeddedStore::open(EmbeddedConfig::new(&self.store)).map_err(|error| failed(&error))?;
        let store = RecordingStore::new(store, Arc::new(record));
        let recording = tokio::spawn(store.clone().record_changes(Revision::new(self.first)));
        let listener = TcpListener::bind(self.listen).await.map_err(ProcessError::io("listen"))?;
        let plants = Resource::builder(GROUP, PLANTS.plural, PLANTS.kind)
            .served(PLANTS.versions.iter().copied())
            .stored(&self.stored)
            .build()
            .map_err(|error| failed(&error))?;
        let mut config = ServerConfig::new(store, Registry::new([plants]), self.listen);
        config.agreement.identity = self.identity.parse().map_err(|error| failed(&error))?;
        config.agreement.lease_duration = Duration::from_secs(5);
        config.agreement.renew_interval = Duration::from_secs(1);
        let main = MainServer::connect(&self.main, &self.identity, &config.agreement).await;
        config.agreement.upstream = Some(main.map_err(|error| failed(&error))?);
        let read = |name: &str| std::fs::read_to_string(self.pki.join(name)).map_err(ProcessError::io("read"));
        let identity = CertificateAndKey { certificate: read("server.crt")?, key: read("server.key")? };
        let tls = tls_config(&identity, &read("ca.crt")?).map_err(|error| failed(&error))?;
        let server = ApiServer::new(config).await.map_err(|error| failed(&error))?;
        tokio::select! {
            () = restow_apiserver::serve(server.clone(), listener, tls, stop) => {}
            ended = recording => return Err(ProcessError::Server(format!("changes cannot be recorded: {ended:?}"))),
        }
        server.leave().await;
        Ok(())
    }
}
