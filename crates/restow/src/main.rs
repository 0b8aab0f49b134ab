//! The `restow` command. It reads arguments and hands over; each command has a module of its own.

mod bench;
mod cluster_args;
mod completion;
mod controller;
mod demo;
mod etcd_args;
mod explain;
mod in_process;
mod migrate;
mod output;
mod pace_args;
mod pki;
mod plugin;
mod private;
mod serve;
mod serving;
mod status;
mod taking_part;
mod up;
mod verify;
mod webhook;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// Servers make and drop many small things at once; this allocator does so in less time, and gives back what it no longer
/// needs. Large pages are not asked for (`no_thp`): most of each would be held for nothing.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Keep what a Kubernetes control plane has stored in step with what its API servers encode.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true, max_term_width = 120)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    #[command(hide = true)]
    DemoServer(demo::DemoServerArgs),
    Up(up::UpArgs),
    Serve(Box<serve::ServeArgs>),
    Pki(pki::PkiArgs),
    Status(status::StatusArgs),
    Verify(Box<verify::VerifyArgs>),
    Explain(explain::ExplainArgs),
    Migrate(Box<migrate::MigrateArgs>),
    Controller(Box<controller::ControllerArgs>),
    Install(controller::InstallArgs),
    Completion(completion::CompletionArgs),
    Webhook(webhook::WebhookArgs),
    /// Measure how fast the parts of restow are on this machine.
    #[command(subcommand)]
    Bench(bench::Bench),
}

#[tokio::main]
async fn main() -> ExitCode {
    let name = plugin::name_of_this_program();
    if name == plugin::COMPLETER {
        plugin::complete(&Args::command());
        return ExitCode::SUCCESS;
    }
    let args = match Args::from_arg_matches(&plugin::known_as(Args::command(), &name).get_matches()) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("RESTOW_LOG").unwrap_or_else(|_| args.command.logs().into()),
        )
        .with_ansi(output::has_colour(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
    private::keep_new_files_private();
    let done = match args.command {
        Command::Demo(args) => demo::run(args).await,
        Command::DemoServer(args) => demo::run_server(args).await.map(success),
        Command::Up(args) => up::run(args).await.map(success),
        Command::Serve(args) => serve::run(*args).await.map(success),
        Command::Pki(args) => pki::run(&args).map(success),
        Command::Status(args) => status::run(args).await,
        Command::Verify(args) => verify::run(*args).await,
        Command::Explain(args) => explain::run(args).map(success),
        Command::Migrate(args) => migrate::run(*args).await,
        Command::Controller(args) => controller::run(*args).await.map(success),
        Command::Install(args) => controller::run_install(args).await.map(success),
        Command::Completion(args) => completion::run(&args, Args::command()).map(success),
        Command::Webhook(args) => webhook::run(args).await.map(success),
        Command::Bench(bench) => bench.run().await.map(success),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", words(&error));
            ExitCode::FAILURE
        }
    }
}

impl Command {
    /// What is logged unless something else is asked for. The demo tells its story itself, and on a server of
    /// one's own the controller is beside the point until something is wrong with it. A server that cannot be reached
    /// is told by whoever wanted to reach it, with what follows from that.
    fn logs(&self) -> &'static str {
        match self {
            Command::Demo(_) | Command::DemoServer(_) => "error,kube_client=off",
            // What old versions of etcd get wrong about watches does not matter to who reads once.
            Command::Verify(_) => "warn,restow_store_etcd=error,kube_client=off",
            Command::Up(_) => "warn,restow=info,restow_migrate=warn,kube_client=off",
            _ => "warn,restow=info,kube_client=off",
        }
    }
}

/// What went wrong and why. Some errors of libraries repeat what their sources say; once is enough.
fn words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if words.is_empty() {
            words = cause;
        } else if !words.contains(&cause) {
            words = format!("{words}: {cause}");
        }
    }
    words
}

fn success((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cause_is_told_twice() {
        let error = anyhow::anyhow!("no such file").context("cannot read a: no such file").context("cannot start");
        assert_eq!(words(&error), "cannot start: cannot read a: no such file");
    }

    #[test]
    fn all_flags_are_sound() {
        Args::command().debug_assert();
    }
}
