//! `restow torture`: tries to break the rules that must always hold.

mod processes;

use clap::Args;
use std::process::ExitCode;

/// Try to break the rules that must always hold, and report which one was broken and how.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  restow torture --processes                  ten minutes with real processes, on etcd and on the embedded store
  restow torture --processes --minutes 2      the same in two minutes
  restow torture --processes --seed 7         the faults of seed 7 again; their timing is never quite the same

Exit codes:
  0  no rule was broken
  1  the run was not possible, such as without etcd
  3  a rule was broken; the logs and the history of the store are kept
  5  stopped by Ctrl-C")]
pub(crate) struct TortureArgs {
    #[command(flatten)]
    processes: processes::ProcessArgs,
}

pub(crate) async fn run(args: TortureArgs) -> anyhow::Result<ExitCode> {
    processes::run(args.processes).await
}
