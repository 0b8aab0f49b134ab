//! The same rules with real processes: three members of etcd, API servers and controllers on hosts of their own, with a network
//! between them, and writers who record every request and answer. And one server on the embedded store.
//!
//! Processes are killed and suspended; links are cut, also in one direction, slow and lossy; disks are full; clocks jump; servers are
//! upgraded, rolled back and run without reports, and the CRD of the writers changes its storage version. One seed decides the faults. The history of the
//! store is read from its first revision on and goes through the checks of the simulation.
//!
//! | file | what is in it |
//! |---|---|
//! | `sandbox.rs`, `network.rs`, `disk.rs`, `wall_clock.rs` | what the processes run on, and the faults of it |
//! | `managed_process.rs`, `cluster.rs`, `balancer.rs` | the processes |
//! | `plan.rs`, `faults.rs`, `member_loss.rs` | which faults happen when, and carrying them out |
//! | `aggregated.rs`, `aggregated/` | an aggregated API server with a store of its own |
//! | `writer.rs`, `watcher.rs`, `admin.rs`, `api.rs` | the clients |
//! | `history.rs`, `silence.rs`, `told.rs`, `observer.rs` | what happened, and the checks |
//! | `stock.rs`, `stock/` | stock API servers in place of Restow's, and what a migrator on them is held to |
//! | `etcd_part.rs`, `embedded_part.rs` | the two runs, from start to end |

mod admin;
mod aggregated;
mod api;
mod balancer;
mod cluster;
mod disk;
mod embedded_part;
mod etcd_part;
mod faults;
mod history;
mod host;
mod managed_process;
mod member_loss;
mod network;
mod observer;
mod plan;
mod report;
pub mod sandbox;
mod silence;
mod stock;
mod told;
mod wall_clock;
mod watcher;
mod writer;

pub use aggregated::server::AggregatedServer;
pub use report::{Counts, Part, ProcessError, ProcessReport, Progress};
pub use stock::{Migrator, StockOptions};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is run.
#[derive(Clone, Debug)]
pub struct ProcessOptions {
    /// Decides the faults and what is written.
    pub seed: u64,
    /// How long faults happen.
    pub duration: Duration,
    /// The number of API servers.
    pub servers: usize,
    /// The number of writers.
    pub writers: usize,
    /// On which stores.
    pub stores: Stores,
    /// Stock API servers in place of Restow's; then everything is on etcd.
    pub stock: Option<StockOptions>,
    /// The program `restow`.
    pub restow: PathBuf,
    /// The program `etcd`.
    pub etcd: PathBuf,
    /// For data, logs and histories. It must exist and be empty.
    pub folder: PathBuf,
}

/// On which stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Four fifths of the time on etcd, then one fifth on the embedded store.
    Both,
    /// Only on etcd.
    Etcd,
    /// Only on the embedded store.
    Embedded,
}

/// A release that API servers behave as. EndpointSlices are stored in another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    Older,
    Newer,
}

/// Whether a server reports its storage versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reporting {
    On,
    Off,
}

/// Who is told how far a run is.
pub trait Listener: Sync {
    /// Called many times in a second.
    fn progress(&self, progress: &Progress);
    /// Called when it is known what this machine cannot do.
    fn left_out(&self, left_out: &[String]);
}

pub(crate) struct Reporter<'l> {
    began: Instant,
    listener: &'l dyn Listener,
}

/// Runs it.
pub async fn run(options: &ProcessOptions, listener: &dyn Listener) -> Result<ProcessReport, ProcessError> {
    if sandbox::is_inside() {
        sandbox::prepare()?;
    }
    if options.stock.is_some() && !sandbox::is_inside() {
        return Err(ProcessError::NeedsSandbox);
    }
    let reporter = Reporter { began: Instant::now(), listener };
    let (mut parts, mut left_out) = (Vec::new(), Vec::new());
    let stores = if options.stock.is_some() { Stores::Etcd } else { options.stores };
    let embedded = match stores {
        Stores::Both => options.duration / 5,
        Stores::Etcd => Duration::ZERO,
        Stores::Embedded => options.duration,
    };
    if stores != Stores::Embedded {
        parts.extend(etcd_part::run(options, &reporter, &mut left_out, options.duration - embedded).await?);
    }
    if stores != Stores::Etcd {
        parts.push(embedded_part::run(options, &reporter, embedded).await?);
    }
    let seconds = reporter.began.elapsed().as_secs_f64();
    Ok(ProcessReport { seed: options.seed, seconds, parts, left_out, folder: options.folder.clone() })
}

impl Reporter<'_> {
    fn progress(&self, phase: &'static str, counts: Counts) {
        self.listener.progress(&Progress { phase, elapsed: self.began.elapsed(), counts });
    }

    fn left_out(&self, left_out: &[String]) {
        self.listener.left_out(left_out);
    }
}

impl ProcessOptions {
    /// Whether the API servers on etcd vote on storage versions. The seed decides it.
    pub fn is_voting(&self) -> bool {
        self.stock.is_none() && plan::is_voting(self.seed)
    }
}

impl Release {
    fn name(self) -> &'static str {
        match self {
            Release::Older => "1.30",
            Release::Newer => "1.31",
        }
    }
}

/// The panics in a log.
fn panics_in(name: &str, log: &Path) -> Vec<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().filter(|line| line.contains("panicked at")).map(|line| format!("{name}: {line}")).collect()
}
