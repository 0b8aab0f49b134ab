//! `restow demo`: an upgrade, a migration and a roll-back in a minute, with real servers on a real store.
//!
//! Three API servers run in this process, each with its own listener, identity, caches and TLS, on one embedded store in a
//! temporary folder; or in three processes on etcd. Nothing is simulated: what is shown is read back from the servers and from
//! the store.

mod cluster;
mod in_process_server;
mod objects;
mod pausable_store;
mod printer;
mod scenario;
mod server_command;
mod server_process;
mod styled_text;
mod suspendable;
mod svg;
mod tables;
mod writer;

pub(crate) use server_command::{DemoServerArgs, run as run_server};

use crate::etcd_args::EtcdAccess;
use crate::serving;
use anyhow::Context;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Watch an upgrade, a migration, a suspended server that resumes too late, and a roll-back. Needs nothing but this program.
///
/// The demo takes a minute. It starts three API servers in this process, on an embedded store in a temporary folder; with
/// --etcd-endpoints it starts three processes on that etcd, under a prefix of their own. It removes everything at the end, also
/// after Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  every claim was checked and is true
  1  a claim is not true, or the servers could not be started
  5  stopped by Ctrl-C")]
pub(crate) struct DemoArgs {
    /// Do not pause for reading.
    #[arg(long)]
    fast: bool,
    /// How many objects to migrate.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    objects: u32,
    /// Run each server as its own process, on these members of an etcd cluster.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_endpoints: Vec<String>,
    #[command(flatten)]
    access: EtcdAccess,
    /// Write a picture of chapters 2 to 4 to this file, as the README shows it.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The chapters in the picture: an upgrade, a suspended server, and a custom resource.
const PICTURE: std::ops::RangeInclusive<usize> = 2..=4;

pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let printer = printer::Printer::new(args.fast);
    let mut cluster = match args.etcd_endpoints.as_slice() {
        [] => cluster::DemoCluster::embedded().await?,
        endpoints => cluster::DemoCluster::on_etcd(endpoints, &args.access).await?,
    };
    let ran = tokio::select! {
        ran = scenario::run(&printer, &mut cluster, args.objects) => ran.map(|()| ExitCode::SUCCESS),
        () = serving::stop_signal() => {
            printer.interrupted();
            Ok(ExitCode::from(5))
        }
    };
    // A failed claim says more than a failed clean-up.
    let closed = tokio::select! {
        closed = cluster.close() => closed,
        () = serving::stop_signal() => Err(anyhow::anyhow!("stopped before everything was cleaned up")),
    };
    let code = ran.and_then(|code| closed.map(|()| code))?;
    if let (Some(path), true) = (&args.svg, code == ExitCode::SUCCESS) {
        let picture = svg::draw(&printer.recorded(PICTURE));
        std::fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(code)
}
