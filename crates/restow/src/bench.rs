//! `restow bench`: measurements that anyone can repeat.

mod agreement;
mod apiserver;
mod hostile;
mod migrate;
mod process;
mod rate;
mod report;
mod store;

use clap::Subcommand;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Measure the embedded store against etcd, in one run, on the same disk.
    Store(store::StoreArgs),
    /// Measure our API server on each store, and another API server, in one run.
    Apiserver(apiserver::ApiserverArgs),
    /// Measure how soon servers agree on storage versions, what the fence costs, and how fast a server starts among others.
    Agreement(agreement::AgreementArgs),
    /// Measure how long health checks, leases and administrators wait while others do their worst.
    Hostile(hostile::HostileArgs),
    /// Measure how fast stored objects are rewritten, on a cluster that is given.
    Migrate(migrate::MigrateArgs),
}

impl Bench {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            Bench::Store(args) => store::run(args).await,
            Bench::Apiserver(args) => apiserver::run(args).await,
            Bench::Agreement(args) => agreement::run(args).await,
            Bench::Hostile(args) => hostile::run(args).await,
            Bench::Migrate(args) => migrate::run(args).await,
        }
    }
}
