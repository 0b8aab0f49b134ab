//! `restow bench apiserver`: our API server on each store, and another API server, with the same work in one run.

mod conversion_webhook;
mod custom_resources;
pub(super) mod objects;
pub(super) mod server_under_test;
mod work;

use crate::bench::report::{Report, Unit};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use server_under_test::ServerUnderTest;
use std::path::PathBuf;

/// Measure creates, gets, updates, lists, watch fan-out, start-up time and resident memory, with objects of 2 kB. Every rate
/// comes with the CPU time of the server process, which is comparable on a busy machine too.
///
/// With a kubeconfig, another API server is measured too. Where it runs on this machine, its process is found by the port that
/// it listens on. The benchmark creates a namespace `restow-bench` in it and removes it again.
#[derive(Debug, Args)]
pub(crate) struct ApiserverArgs {
    /// The kubeconfig of another API server to measure.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The etcd to run our server on, under its own prefix [default: start one].
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_endpoints: Vec<String>,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// A short run to check that the benchmark works; its numbers mean little.
    #[arg(long)]
    quick: bool,
    /// The seconds for which each rate is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// The number of requests in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=256))]
    clients: u64,
    /// The number of objects to list.
    #[arg(long, default_value_t = 10_000)]
    listed: u64,
    /// The number of objects when memory is measured.
    #[arg(long, default_value_t = 100_000)]
    objects: u64,
    /// The number of watchers.
    #[arg(long, default_value_t = 1000)]
    watchers: u64,
    /// The directory for the stores, which are removed afterwards.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// How much work is done.
#[derive(Clone, Copy, Debug)]
struct Amounts {
    seconds: u64,
    clients: u64,
    listed: u64,
    objects: u64,
    watchers: u64,
    events: u64,
    /// How many objects a webhook converts in one list.
    converted: u64,
    /// How many CRDs are created at once.
    crds: u64,
}

/// One result of one server.
type Measurement = (String, Unit, Option<f64>);

pub(crate) async fn run(args: ApiserverArgs) -> anyhow::Result<()> {
    let amounts = args.amounts();
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{elapsed} {msg}")?);
    let mut columns = Vec::new();
    {
        let server = ServerUnderTest::embedded(&args.directory).await?;
        columns.push((server.name.clone(), work::measure(&server, amounts, &bar).await?));
    }
    {
        let server = ServerUnderTest::etcd(&args.directory, &args.etcd_endpoints).await?;
        columns.push((server.name.clone(), work::measure(&server, amounts, &bar).await?));
    }
    if let Some(kubeconfig) = &args.kubeconfig {
        let server = ServerUnderTest::other(kubeconfig).await?;
        columns.push((server.name.clone(), work::measure(&server, amounts, &bar).await?));
    }
    bar.finish_and_clear();
    let report = report(columns, amounts);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.table()),
    }
    Ok(())
}

/// Puts what was measured of each server side by side.
fn report(columns: Vec<(String, Vec<Measurement>)>, amounts: Amounts) -> Report {
    let names: Vec<String> = columns.iter().map(|(name, _)| name.clone()).collect();
    // The ratio is between ours on etcd and the other, which runs on etcd too.
    let compared = (names.len() == 3).then_some([1, 2]);
    let comparison = match compared {
        Some(_) => "; a ratio above 1 is in favour of ours on etcd",
        None => "",
    };
    let title =
        format!("API servers with config maps of {} bytes, {} clients{comparison}", objects::BYTES, amounts.clients);
    let mut report = Report { title, columns: names, compared, rows: Vec::new() };
    let rows = columns.first().map(|(_, results)| results.clone()).unwrap_or_default();
    for (number, (what, unit, _)) in rows.into_iter().enumerate() {
        let values = columns.iter().map(|(_, results)| results.get(number).and_then(|result| result.2)).collect();
        report.add(what, unit, values);
    }
    report
}

impl ApiserverArgs {
    fn amounts(&self) -> Amounts {
        match self.quick {
            true => Amounts {
                seconds: 1,
                clients: 4,
                listed: 100,
                objects: 200,
                watchers: 10,
                events: 10,
                converted: 100,
                crds: 10,
            },
            false => Amounts {
                seconds: self.seconds,
                clients: self.clients,
                listed: self.listed,
                objects: self.objects.max(self.listed),
                watchers: self.watchers,
                events: 100,
                converted: 5000,
                crds: 500,
            },
        }
    }
}
