//! Tasks of this repository that need more than a shell. It is not part of what Restow ships.
//!
//! `cargo run -p xtask -- tables --kubernetes PATH` regenerates the tables that state facts of a Kubernetes release.

mod difference;
mod files;
mod go;
mod policy;
mod proto;
mod storage_versions;
mod tables;
mod types;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Tasks of this repository")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Regenerate the tables of a Kubernetes release, or check them
    Tables(tables::Args),
}

fn main() -> ExitCode {
    let Args { task: Task::Tables(args) } = Args::parse();
    match tables::run(&args) {
        Ok(tables::Outcome::Done) => ExitCode::SUCCESS,
        Ok(tables::Outcome::Different) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
