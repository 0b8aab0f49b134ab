//! Which cluster a command speaks to: the flags that every such command has.

use clap::Args;
use restow_migrate::cluster::Cluster;
use std::path::PathBuf;

/// Which cluster to speak to.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    /// How to reach the cluster; without it, as kubectl would.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use; without it, the current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterArgs {
    pub(crate) async fn connect(&self) -> anyhow::Result<Cluster> {
        Ok(Cluster::connect_in_context(self.kubeconfig.as_deref(), self.context.as_deref()).await?)
    }
}
