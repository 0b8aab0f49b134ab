//! `restow bench agreement`: how soon servers agree after an upgrade, what the fence costs a write, and how fast a server
//! starts among others.

mod fence;
mod fleet;

use crate::bench::report::{Report, Unit};
use anyhow::Context;
use clap::Args;
use fence::FenceCost;
use fleet::{Fleet, SIZE};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The releases between which servers are moved. They store endpoint slices in different versions.
const RELEASES: [&str; 2] = ["1.30", "1.31"];
/// How many resources a server has to report at least when its start is measured.
const RESOURCES: usize = 100;

/// Three servers, each a process of its own, on an etcd that is started for it.
///
/// Measured are: the time from the last server of a rolling upgrade being ready to `commonEncodingVersion` being set for all
/// resources, as etcd has it; the time from starting a process to its first successful `/readyz`, with 100 resources and two
/// other servers; and writes to a server with the fence and to one without it, in turns of half a second.
#[derive(Debug, Args)]
pub(crate) struct AgreementArgs {
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// A small run, to see that everything works: its numbers mean little.
    #[arg(long)]
    quick: bool,
    /// How many rolling upgrades, and how many starts, are measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// For how many seconds each of the two servers is written to.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// How many requests are under way at once.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=256))]
    clients: u64,
    /// Where to put etcd's data. It is removed afterwards. In memory (/dev/shm) the disk's moods do not cover what the
    /// fence costs.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

pub(crate) async fn run(args: AgreementArgs) -> anyhow::Result<()> {
    let (rounds, seconds) = if args.quick { (1, 1) } else { (args.rounds, args.seconds) };
    let bar = ProgressBar::new_spinner().with_style(ProgressStyle::with_template("{elapsed} {msg}")?);
    bar.set_message("writing with and without the fence");
    let cost = fence::measure(&args.directory, Duration::from_secs(seconds), args.clients).await?;
    let mut fleet = Fleet::prepare(&args.directory).await?;
    bar.set_message("upgrading");
    let agreements = upgrades(&mut fleet, rounds).await?;
    bar.set_message("starting among others");
    let (resources, starts) = starts(&mut fleet, rounds).await?;
    bar.finish_and_clear();
    let report = report(&agreements, resources, &starts, &cost);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.table()),
    }
    Ok(())
}

/// Rolling upgrades: how long after the last server was ready everybody agreed on everything, in milliseconds.
async fn upgrades(fleet: &mut Fleet, rounds: u64) -> anyhow::Result<Vec<f64>> {
    for number in 0..SIZE {
        fleet.start(number, RELEASES[0], &[]).await?;
    }
    let mut times = Vec::new();
    for round in 1..=rounds {
        for number in 0..SIZE {
            fleet.stop(number)?;
            fleet.start(number, release_of(round), &[]).await?;
        }
        let ready = Instant::now();
        while !fleet.reports().await?.iter().all(|report| report.common.is_some()) {
            anyhow::ensure!(ready.elapsed() < Duration::from_secs(60), "the servers do not agree");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        times.push(milliseconds(ready));
    }
    Ok(times)
}

/// Starts of the last of three servers, in milliseconds, and how many resources it reports.
async fn starts(fleet: &mut Fleet, rounds: u64) -> anyhow::Result<(usize, Vec<f64>)> {
    let missing = RESOURCES.saturating_sub(fleet.reports().await?.len());
    fleet.define(missing).await?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        fleet.stop(SIZE - 1)?;
        let begun = Instant::now();
        fleet.start(SIZE - 1, release_of(rounds), &[]).await?;
        times.push(milliseconds(begun));
    }
    let own = fleet::identity(SIZE - 1);
    let reported = fleet.reports().await?.iter().filter(|report| report.servers.contains(&own)).count();
    anyhow::ensure!(reported >= RESOURCES, "only {reported} resources were reported when the server was ready");
    Ok((reported, times))
}

/// The release that servers have after so many upgrades.
fn release_of(round: u64) -> &'static str {
    if round.is_multiple_of(2) { RELEASES[0] } else { RELEASES[1] }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn report(agreements: &[f64], resources: usize, starts: &[f64], cost: &FenceCost) -> Report {
    let title = format!("{SIZE} API servers on one etcd, {} upgrades, {} starts", agreements.len(), starts.len());
    let columns = vec!["measured".to_string(), "aim, at most".to_string()];
    let mut report = Report { title, columns, compared: None, rows: Vec::new() };
    let mut add = |what: &str, unit, value: Option<f64>, aim| report.add(what, unit, vec![value, aim]);
    let ready = "last server ready to agreement on everything";
    add(&format!("{ready}, median"), Unit::Milliseconds, median(agreements), Some(1000.0));
    add(&format!("{ready}, longest"), Unit::Milliseconds, longest(agreements), Some(1000.0));
    let start = format!("start to ready, {resources} resources, {} peers", SIZE - 1);
    add(&format!("{start}, median"), Unit::Milliseconds, median(starts), Some(2000.0));
    add(&format!("{start}, longest"), Unit::Milliseconds, longest(starts), Some(2000.0));
    add("updates with the fence", Unit::PerSecond, Some(cost.with.rate()), None);
    add("updates without it", Unit::PerSecond, Some(cost.without.rate()), None);
    add("cost of the fence in rate, median of pairs", Unit::Percent, cost.in_rate(), Some(3.0));
    let surely = cost.in_rate_surely();
    add("cost of the fence in rate, at least (95 %)", Unit::Percent, surely.map(|(least, _)| least), None);
    add("cost of the fence in rate, at most (95 %)", Unit::Percent, surely.map(|(_, most)| most), Some(3.0));
    add("cost of the fence in CPU of the server", Unit::Percent, cost.in_server_cpu(), Some(3.0));
    add("cost of the fence in CPU of etcd", Unit::Percent, cost.in_etcd_cpu(), Some(3.0));
    add("pairs of turns", Unit::Count, Some(cost.pairs() as f64), None);
    report
}

/// The value in the middle.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn longest(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

/// A folder for one part of the benchmark, with an etcd in it.
async fn etcd_in(directory: &std::path::Path) -> anyhow::Result<(tempfile::TempDir, restow_local_etcd::LocalEtcd)> {
    let folder = crate::bench::apiserver::subject::folder_in(directory)?;
    let options = restow_local_etcd::LocalEtcdOptions {
        data_dir: Some(folder.path().join("etcd")),
        quota_bytes: Some(8 << 30),
        ..restow_local_etcd::LocalEtcdOptions::default()
    };
    let etcd = restow_local_etcd::LocalEtcd::start_with(options).await.context("cannot start an etcd")?;
    Ok((folder, etcd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_longest() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), longest(&[3.0, 1.0, 2.0])), (Some(2.0), Some(3.0)));
        assert_eq!((median(&[]), longest(&[])), (None, None));
    }
}
