//! `restow status`: what is stored in which version, whether the API servers agree, and what is being migrated.

mod table;

use crate::cluster_args::ClusterArgs;
use crate::output::{Output, terminal_size};
use anyhow::{Context, bail};
use clap::Args;
use restow_migrate::cluster::Cluster;
use restow_migrate::cluster_status::{ClusterStatus, ResourceStatus, look};
use std::process::ExitCode;
use std::time::Duration;
use table::{Room, table};

/// How often `--watch` looks again.
const EVERY: Duration = Duration::from_secs(1);

/// Show every resource with its storage version, what may still be stored, its migration, and what it waits for.
///
/// It only reads, and works on any cluster. What each API server writes is taken from their reports (the StorageVersion API)
/// or asked of each by its own address; -o wide shows it for every resource.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  all API servers agree on every resource shown that is managed
  1  it could not run
  4  they do not agree, or one of them does not answer, or something cannot be told")]
pub(crate) struct StatusArgs {
    /// The resources to show, such as widgets.example.com; all without.
    #[arg(value_name = "RESOURCE")]
    resources: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// How to print it.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Output,
    /// Keep it up to date until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
}

pub(crate) async fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.connect().await?;
    if args.watch {
        tokio::select! {
            watched = args.keep_showing(&cluster) => watched?,
            _ = tokio::signal::ctrl_c() => {}
        }
        return Ok(ExitCode::SUCCESS);
    }
    let overview = args.look(&cluster).await?;
    args.output.print(&overview, || table(&overview, args.output, Room::Enough))?;
    let agreed = overview.resources.iter().all(|resource| resource.disagreement.is_none());
    Ok(if agreed && overview.hidden.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(4) })
}

impl StatusArgs {
    async fn look(&self, cluster: &Cluster) -> anyhow::Result<ClusterStatus> {
        self.select(look(cluster).await.context("cannot look at the cluster")?)
    }

    /// Looks again and again. On a terminal each picture takes the place of the one before; elsewhere they follow each other,
    /// when something has changed.
    async fn keep_showing(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let mut shown = None;
        // What cannot work at all is said at once; what fails later may work again.
        self.look(cluster).await?;
        loop {
            let text = match self.look(cluster).await {
                Ok(overview) => self.output.text(&overview, || table(&overview, self.output, self.room()))?,
                Err(error) => format!("{error:#}\nLooking again.\n"),
            };
            if shown.as_ref() != Some(&text) {
                show(&text);
                shown = Some(text);
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    fn room(&self) -> Room {
        terminal_size().map_or(Room::Enough, |(columns, lines)| Room::Screen { columns, lines })
    }

    fn select(&self, mut overview: ClusterStatus) -> anyhow::Result<ClusterStatus> {
        for wanted in &self.resources {
            if !overview.resources.iter().any(|resource| is_named(resource, wanted)) {
                bail!("the cluster does not serve {wanted}; name it as in `kubectl api-resources -o name`");
            }
        }
        if !self.resources.is_empty() {
            overview.resources.retain(|resource| self.resources.iter().any(|wanted| is_named(resource, wanted)));
        }
        Ok(overview)
    }
}

/// Shows the next picture, without the flicker of an empty screen in between.
fn show(text: &str) {
    match terminal_size() {
        Some(_) => print!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")),
        None => println!("{text}"),
    }
    // A reader that has gone is no error.
    let _ = std::io::Write::flush(&mut std::io::stdout());
}

/// Whether a resource is meant by its full name, or by its plural name alone.
fn is_named(resource: &ResourceStatus, wanted: &str) -> bool {
    resource.resource == wanted || resource.resource.split('.').next() == Some(wanted)
}
