//! `restow demo`: the whole story in a minute and a half, with real servers on a real store.
//!
//! Three API servers run in this process, each with its own listener, identity, caches and TLS, on one embedded store in a
//! temporary folder. Nothing of it is staged: what is shown is read back from the servers and from the store.

mod narrator;
mod script;
mod stage;
mod stalling;
mod writer;

use clap::Args;
use std::process::ExitCode;

/// Watch an upgrade, a migration, a server that wakes up too late, and a roll-back. Needs nothing but this program.
///
/// Three API servers are started in this process, on an embedded store in a temporary folder that is removed at the end.
/// Ends with 0 when everything that it claims was seen to be true.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Do not pause for the reader.
    #[arg(long)]
    fast: bool,
    /// How many objects to migrate.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    objects: u32,
}

pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let narrator = narrator::Narrator::new(args.fast);
    script::play(&narrator, args.objects).await?;
    Ok(ExitCode::SUCCESS)
}
