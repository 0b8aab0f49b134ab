//! The `restow` command.

use clap::Parser;

/// Keep what a Kubernetes control plane has stored in step with what its API servers encode.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {}

fn main() {
    Args::parse();
}
