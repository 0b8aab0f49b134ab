//! `restow bench`: repeatable benchmarks.

mod agreement;
mod apiserver;
mod hostile;
mod migrate;
mod process;
mod rate;
mod report;
mod store;

use clap::Subcommand;

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Compare the embedded store with etcd, in one run, on the same disk.
    Store(store::StoreArgs),
    /// Compare our API server on each store with another API server, in one run.
    Apiserver(apiserver::ApiserverArgs),
    /// Measure how soon servers agree on storage versions, what the fence costs, and how fast a server starts beside others.
    Agreement(agreement::AgreementArgs),
    /// Measure the latency of health checks, lease renewals and administrators under hostile load.
    Hostile(hostile::HostileArgs),
    /// Measure how fast stored objects are rewritten on an existing cluster.
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
