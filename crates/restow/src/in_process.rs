//! The controller inside a Restow API server. It is a client of that server, with admin permissions.

use crate::serving;
use restow_migrate::cluster::Cluster;
use restow_migrate::controller::{self, ControllerConfig, Election, Metrics};
use restow_migrate::install::install_at_own_server;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

/// The delay before a server that is not ready yet is tried again.
const WAIT: Duration = Duration::from_millis(200);

/// Installs the CRDs and the guard as soon as the server answers, and runs the controller until the process is stopped.
pub(crate) async fn run(kubeconfig: PathBuf, metrics: Metrics) {
    let (end, mut stop) = watch::channel(false);
    tokio::spawn(async move {
        serving::stop_signal().await;
        end.send_replace(true);
    });
    let cluster = match Cluster::connect(Some(&kubeconfig)).await {
        Ok(cluster) => cluster,
        Err(error) => {
            tracing::error!("the controller does not start: {error}");
            return;
        }
    };
    while let Err(error) = install_at_own_server(cluster.client()).await {
        tracing::debug!("the controller waits: {error}");
        tokio::select! {
            () = tokio::time::sleep(WAIT) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
    // No other server uses this store, so leader election is not needed.
    let namespace = "kube-system".to_owned();
    let config = ControllerConfig { election: Election::Alone, namespace, ..ControllerConfig::default() };
    controller::run(cluster, config, metrics, stop).await;
}
