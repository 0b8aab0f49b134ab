//! `restow demo`: the whole story in a minute and a half, with real servers on a real store.
//!
//! Three API servers run in this process, each with its own listener, identity, caches and TLS, on one embedded store in a
//! temporary folder; or in three processes on etcd. Nothing of it is staged: what is shown is read back from the servers and
//! from the store.

mod actor;
mod machine;
mod narrator;
mod process;
mod props;
mod script;
mod server;
mod stage;
mod stalling;
mod view;
mod writer;

pub(crate) use server::{DemoServerArgs, run as run_server};

use crate::etcd_args::EtcdAccess;
use crate::serving;
use clap::Args;
use std::process::ExitCode;

/// Watch an upgrade, a migration, a server that wakes up too late, and a roll-back. Needs nothing but this program.
///
/// Three API servers are started in this process, on an embedded store in a temporary folder; with --etcd-endpoints in three
/// processes, on that etcd, below a prefix of their own. Everything is removed at the end, also after Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  everything that was claimed was seen to be true
  1  something was not, or the servers could not be started
  5  stopped by Ctrl-C")]
pub(crate) struct DemoArgs {
    /// Do not pause for the reader.
    #[arg(long)]
    fast: bool,
    /// How many objects to migrate.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    objects: u32,
    /// Run the servers as processes of their own, on these members of an etcd cluster.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_endpoints: Vec<String>,
    #[command(flatten)]
    access: EtcdAccess,
}

pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let narrator = narrator::Narrator::new(args.fast);
    let mut stage = match args.etcd_endpoints.as_slice() {
        [] => stage::Stage::embedded().await?,
        endpoints => stage::Stage::on_etcd(endpoints, &args.access).await?,
    };
    let played = tokio::select! {
        played = script::play(&narrator, &mut stage, args.objects) => played.map(|()| ExitCode::SUCCESS),
        () = serving::stop_signal() => {
            narrator.interrupted();
            Ok(ExitCode::from(5))
        }
    };
    // What went wrong in the story says more than what went wrong in clearing up after it.
    let closed = tokio::select! {
        closed = stage.close() => closed,
        () = serving::stop_signal() => Err(anyhow::anyhow!("stopped before everything was cleaned up")),
    };
    played.and_then(|code| closed.map(|()| code))
}
