//! The flags to choose a cluster, which every command that connects to one has.

use clap::Args;
use restow_migrate::cluster::Cluster;
use std::path::PathBuf;

/// Which cluster to connect to.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    /// The kubeconfig of the cluster [default: the one that kubectl uses].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: the current one].
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterArgs {
    pub(crate) async fn connect(&self) -> anyhow::Result<Cluster> {
        Ok(Cluster::connect_in_context(self.kubeconfig.as_deref(), self.context.as_deref()).await?)
    }
}
