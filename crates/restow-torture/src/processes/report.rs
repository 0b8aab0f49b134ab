//! What a run with real processes reports: how much happened, what was left out, and which rules were broken.

use crate::checks::Violation;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// What a run found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessReport {
    /// The seed that decided the faults.
    pub seed: u64,
    /// How long it took.
    pub seconds: f64,
    /// How much happened on etcd, and on the embedded store.
    pub parts: Vec<Part>,
    /// What this machine cannot do, and was left out.
    pub left_out: Vec<String>,
    /// The folder with the logs and the history.
    pub folder: PathBuf,
}

/// What happened on one store.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// The store.
    pub store: &'static str,
    /// How much happened.
    pub counts: Counts,
    /// How long it took to settle after the last fault, in seconds.
    pub settled_after: Option<f64>,
    /// The rules that were broken.
    pub violations: Vec<Violation>,
}

/// How much happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Writes that were asked for.
    pub operations: u64,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Writes that were refused.
    pub refused: u64,
    /// Writes of which nobody knows what became of them.
    pub unknown: u64,
    /// Reads that were checked.
    pub reads: u64,
    /// Lists, watch events and bookmarks that were checked.
    pub watched: u64,
    /// Revisions of the store that were checked.
    pub revisions: u64,
    /// Processes that were killed.
    pub kills: u64,
    /// Processes that were suspended.
    pub pauses: u64,
    /// Partitions of the network.
    pub partitions: u64,
    /// Links that were slow.
    pub slow_links: u64,
    /// Links that lost packets.
    pub lossy_links: u64,
    /// Members of etcd that lost their disk, and were replaced.
    pub lost_members: u64,
    /// Disks that were full.
    pub full_disks: u64,
    /// Clocks that jumped.
    pub clock_jumps: u64,
    /// Servers that were replaced by one of the newer release.
    pub upgrades: u64,
    /// Servers that were replaced by one of the older release.
    pub rollbacks: u64,
    /// Servers that were replaced by one that does not report its storage versions.
    pub silences: u64,
    /// Changes of the storage version of the CRD.
    pub flips: u64,
    /// Compactions of etcd.
    pub compactions: u64,
    /// Migrations that succeeded.
    pub migrations: u64,
    /// Old versions that a stock API server wrote after its own time limit for the request, and after they were forgotten. That is
    /// known to be possible, and no violation.
    pub late_writes: u64,
    /// Processes that ended by themselves, and were started again.
    pub unexpected_exits: u64,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// What is being done.
    pub phase: &'static str,
    /// Since the beginning.
    pub elapsed: Duration,
    /// How much happened in this part.
    pub counts: Counts,
}

/// Why a run was not possible. Broken rules are no error.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The operating system refused something.
    #[error("cannot {0}")]
    Io(String, #[source] std::io::Error),
    /// A program failed.
    #[error("{command} failed: {output}")]
    Command {
        /// The command.
        command: String,
        /// What it printed.
        output: String,
    },
    /// Something did not become ready.
    #[error("{what} after {after:?}; the logs are in {folder}")]
    NotReady {
        /// What is not ready.
        what: String,
        /// How long this was waited for.
        after: Duration,
        /// The folder with the logs.
        folder: PathBuf,
    },
    /// The aggregated API server cannot run.
    #[error("the aggregated API server cannot run: {0}")]
    Server(String),
    /// There are no namespaces.
    #[error(
        "stock API servers need namespaces of their own for network, mounts and host names, which this machine does not give; run it as root"
    )]
    NeedsSandbox,
    /// The history of the store was lost.
    #[error("the history of the store cannot be read: {0}")]
    History(String),
}

impl ProcessReport {
    /// All rules that were broken.
    pub fn violations(&self) -> impl Iterator<Item = &Violation> {
        self.parts.iter().flat_map(|part| &part.violations)
    }
}

impl ProcessError {
    /// For `map_err`: what could not be done.
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        |error| ProcessError::Io(what, error)
    }
}
