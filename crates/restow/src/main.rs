//! The `restow` command: parses arguments, sets up logging, and runs a command. Each command has its own module.

mod aggregator_args;
mod agreement_args;
mod auth_files;
mod bench;
mod cluster_args;
mod completion;
mod controller;
mod demo;
mod etcd_args;
mod explain;
mod file_permissions;
mod in_process;
mod migrate;
mod output;
mod pace_args;
mod pki;
mod plugin;
mod serve;
mod serving;
mod status;
mod torture;
mod up;
mod verify;
mod webhook;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// Servers allocate and free many small objects at once. This allocator is faster at that, and returns unused memory. It does
/// not use transparent huge pages (`no_thp`): most of each page would be wasted.
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
    Up(Box<up::UpArgs>),
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
    Torture(torture::TortureArgs),
    #[command(hide = true)]
    TortureServer(torture::TortureServerArgs),
    /// Run benchmarks on this machine.
    #[command(subcommand)]
    Bench(bench::Bench),
}

#[tokio::main]
async fn main() -> ExitCode {
    let name = plugin::program_name();
    if name == plugin::COMPLETER {
        plugin::complete(&Args::command());
        return ExitCode::SUCCESS;
    }
    let args = match Args::from_arg_matches(&plugin::with_plugin_name(Args::command(), &name).get_matches()) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("RESTOW_LOG")
                .unwrap_or_else(|_| args.command.log_filter().into()),
        )
        .with_ansi(output::has_colour(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
    file_permissions::keep_new_files_private();
    let done = match args.command {
        Command::Demo(args) => demo::run(args).await,
        Command::DemoServer(args) => demo::run_server(args).await.map(success),
        Command::Up(args) => up::run(*args).await.map(success),
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
        Command::Torture(args) => torture::run(args).await,
        Command::TortureServer(args) => torture::run_server(args).await.map(success),
        Command::Bench(bench) => bench.run().await.map(success),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", message(&error));
            ExitCode::FAILURE
        }
    }
}

impl Command {
    /// The log filter without RESTOW_LOG. The demo prints what happens itself. In `restow up` the controller logs only
    /// warnings. The kube client logs nothing: its caller reports a server that cannot be reached, with the consequences.
    fn log_filter(&self) -> &'static str {
        match self {
            Command::Demo(_) | Command::DemoServer(_) => "error,kube_client=off",
            // Simulated servers warn all the time, and what they do is told at the end.
            Command::Torture(_) => "off",
            // The warning about watches of old etcd versions does not matter to a command that reads once.
            Command::Verify(_) => "warn,restow_store_etcd=error,kube_client=off",
            Command::Up(_) => "warn,restow=info,restow_migrate=warn,kube_client=off",
            _ => "warn,restow=info,kube_client=off",
        }
    }
}

/// The error with its causes. Some errors of libraries repeat the message of their source; it is printed once.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

fn success((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cause_is_printed_twice() {
        let error = anyhow::anyhow!("no such file").context("cannot read a: no such file").context("cannot start");
        assert_eq!(message(&error), "cannot start: cannot read a: no such file");
    }

    #[test]
    fn the_flags_of_all_commands_are_consistent() {
        Args::command().debug_assert();
    }
}
