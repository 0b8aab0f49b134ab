//! `restow status`: storage versions, agreement of the API servers, and migrations.

mod table;

use crate::cluster_args::ClusterArgs;
use crate::output::{Output, terminal_size};
use anyhow::{Context, bail};
use clap::Args;
use restow_migrate::cluster::Cluster;
use restow_migrate::cluster_status::{ClusterStatus, ResourceStatus, read_cluster_status};
use std::process::ExitCode;
use std::time::Duration;
use table::{Space, table};

/// The interval of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Show every resource with its storage version, the versions that may still be stored, its migration, and what it waits
/// for.
///
/// It only reads, and works on any cluster. What each API server writes is read from StorageVersions, or from the discovery
/// document of each API server; -o wide shows it for every resource.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  all API servers agree on every resource shown that is managed
  1  it could not run
  4  they do not agree, one of them does not answer, or something is unknown")]
pub(crate) struct StatusArgs {
    /// The resources to show, such as widgets.example.com; all by default.
    #[arg(value_name = "RESOURCE")]
    resources: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The output format.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Output,
    /// Update the output until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
}

pub(crate) async fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    if args.watch {
        tokio::select! {
            watched = args.watch(&cluster) => watched?,
            _ = tokio::signal::ctrl_c() => {}
        }
        return Ok(ExitCode::SUCCESS);
    }
    let status = args.read(&cluster).await?;
    args.output.print(&status, || table(&status, args.output, Space::Unlimited))?;
    let agreed = status.resources.iter().all(|resource| resource.disagreement.is_none());
    Ok(if agreed && status.hidden.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(4) })
}

impl StatusArgs {
    async fn read(&self, cluster: &Cluster) -> anyhow::Result<ClusterStatus> {
        self.select(read_cluster_status(cluster).await.context("cannot read the status of the cluster")?)
    }

    /// Updates the output. On a terminal it replaces the previous one; elsewhere it is appended when something has changed.
    async fn watch(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let mut shown = None;
        // An error at the start ends the command; a later one may be transient.
        self.read(cluster).await?;
        loop {
            let text = match self.read(cluster).await {
                Ok(status) => self.output.text(&status, || table(&status, self.output, self.space()))?,
                Err(error) => format!("{error:#}\nRetrying.\n"),
            };
            if shown.as_ref() != Some(&text) {
                show(&text);
                shown = Some(text);
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    fn space(&self) -> Space {
        terminal_size().map_or(Space::Unlimited, |(columns, lines)| Space::Screen { columns, lines })
    }

    fn select(&self, mut status: ClusterStatus) -> anyhow::Result<ClusterStatus> {
        for wanted in &self.resources {
            if !status.resources.iter().any(|resource| is_named(resource, wanted)) {
                bail!("the cluster does not serve {wanted}; name it as in `kubectl api-resources -o name`");
            }
        }
        if !self.resources.is_empty() {
            status.resources.retain(|resource| self.resources.iter().any(|wanted| is_named(resource, wanted)));
        }
        Ok(status)
    }
}

/// Shows the next output, without clearing the screen first, which would flicker.
fn show(text: &str) {
    match terminal_size() {
        Some(_) => print!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")),
        None => println!("{text}"),
    }
    // A closed pipe is not an error.
    let _ = std::io::Write::flush(&mut std::io::stdout());
}

/// Whether a resource has this full name, or this plural name.
fn is_named(resource: &ResourceStatus, wanted: &str) -> bool {
    resource.resource == wanted || resource.resource.split('.').next() == Some(wanted)
}
