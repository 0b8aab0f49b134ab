//! Tasks of this repository that need more than a shell. It is not part of what Restow ships.
//!
//! `cargo run -p xtask -- tables --kubernetes PATH` regenerates the tables that state facts of a Kubernetes release.
//! `cargo run -p xtask -- planted` lets the simulation look for planted bugs.
//! `cargo run -p xtask -- mutants` lets the tests and the simulation look for the mutants of cargo-mutants.

mod difference;
mod files;
mod go;
mod mutants;
mod planted;
mod policy;
mod proto;
mod source_copy;
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
    Planted(planted::Args),
    Mutants(mutants::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Tables(args) => tables::run(&args).map(|outcome| matches!(outcome, tables::Outcome::Done)),
        Task::Planted(args) => planted::run(&args).map(|outcome| matches!(outcome, planted::Outcome::AllFound)),
        Task::Mutants(args) => mutants::run(&args).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
