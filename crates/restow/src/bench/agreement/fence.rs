//! What the fence costs: the same writes to a server that compares its lease and to one that does not, in turns.

use crate::bench::agreement::fleet::Files;
use crate::bench::agreement::{etcd_in, median};
use crate::bench::apiserver::objects::Collection;
use crate::bench::apiserver::subject::{Running, start};
use crate::bench::process::cpu_seconds;
use crate::bench::rate::count;
use restow_local_etcd::LocalEtcd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a server has its turn.
const TURN: Duration = Duration::from_millis(500);

/// What was measured of one of the two servers.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    done: f64,
    seconds: f64,
    server_cpu: f64,
    etcd_cpu: f64,
    rates: Vec<f64>,
}

/// What was measured of both.
pub(super) struct FenceCost {
    pub(super) with: Tally,
    pub(super) without: Tally,
}

impl Tally {
    pub(super) fn rate(&self) -> f64 {
        self.done / self.seconds.max(f64::MIN_POSITIVE)
    }
}

impl FenceCost {
    /// By how many percent fewer writes are made in the same time: the middle of all pairs of turns.
    pub(super) fn in_rate(&self) -> Option<f64> {
        median(&self.in_rates())
    }

    /// Between which values the true middle lies, with 95 % certainty. Nothing where there are too few pairs to say.
    pub(super) fn in_rate_surely(&self) -> Option<(f64, f64)> {
        let mut costs = self.in_rates();
        costs.sort_by(f64::total_cmp);
        // How many pairs fall below the true middle is a matter of coin tosses.
        let (middle, deviation) = (costs.len() as f64 / 2.0, (costs.len() as f64).sqrt() / 2.0);
        let lowest = (middle - 1.96 * deviation).floor();
        if lowest < 1.0 {
            return None;
        }
        let rank = lowest as usize;
        Some((costs[rank - 1], costs[costs.len() - rank]))
    }

    fn in_rates(&self) -> Vec<f64> {
        let pairs = self.with.rates.iter().zip(&self.without.rates);
        pairs.map(|(with, without)| (1.0 - with / without) * 100.0).collect()
    }

    /// By how many percent more CPU time of the server a write takes.
    pub(super) fn in_server_cpu(&self) -> Option<f64> {
        more(self.with.server_cpu / self.with.done, self.without.server_cpu / self.without.done)
    }

    /// By how many percent more CPU time of etcd a write takes.
    pub(super) fn in_etcd_cpu(&self) -> Option<f64> {
        more(self.with.etcd_cpu / self.with.done, self.without.etcd_cpu / self.without.done)
    }

    pub(super) fn pairs(&self) -> usize {
        self.with.rates.len()
    }
}

fn more(with: f64, without: f64) -> Option<f64> {
    let percent = (with / without - 1.0) * 100.0;
    percent.is_finite().then_some(percent)
}

struct Subject {
    server: Running,
    objects: Collection,
}

/// Writes to both servers for `time` each.
pub(super) async fn measure(directory: &Path, time: Duration, clients: u64) -> anyhow::Result<FenceCost> {
    let (folder, etcd) = etcd_in(directory).await?;
    let files = Files::make(folder.path())?;
    let fenced = prepare(&files, &etcd, "fenced", "", clients).await?;
    let free = prepare(&files, &etcd, "free", "StorageVersionAPI=false", clients).await?;
    let mut cost = FenceCost { with: Tally::default(), without: Tally::default() };
    let pairs = (time.as_secs_f64() / TURN.as_secs_f64()).ceil() as u64;
    // One pair to warm up, which does not count.
    for pair in 0..=pairs {
        let mut turns = [(&fenced, Tally::default()), (&free, Tally::default())];
        // Who begins changes, so that what the first leaves behind for the second meets both.
        if pair % 2 == 1 {
            turns.reverse();
        }
        for (subject, tally) in &mut turns {
            *tally = turn(subject, &etcd, clients).await?;
        }
        if pair % 2 == 1 {
            turns.reverse();
        }
        if pair > 0 {
            let [(_, with), (_, without)] = turns;
            cost.with.add(with);
            cost.without.add(without);
        }
    }
    Ok(cost)
}

/// A server on keys of its own, with an object for each client.
async fn prepare(files: &Files, etcd: &LocalEtcd, name: &str, gates: &str, clients: u64) -> anyhow::Result<Subject> {
    let mut command = files.serve(etcd);
    command.args(["--etcd-prefix", &format!("/{name}"), "--identity", name, "--feature-gates", gates]);
    let (server, address) = start(&mut command)?;
    let objects = Collection::prepare(files.client(&address).await?, "restow-bench").await?;
    for client in 0..clients {
        objects.create(&format!("object-{client}")).await?;
    }
    Ok(Subject { server, objects })
}

async fn turn(subject: &Subject, etcd: &LocalEtcd, clients: u64) -> anyhow::Result<Tally> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let cpu = || {
        let etcd = etcd.process_id().and_then(cpu_seconds).unwrap_or_default();
        (cpu_seconds(subject.server.0.id()).unwrap_or_default(), etcd)
    };
    let (server_before, etcd_before) = cpu();
    let begun = Instant::now();
    let done = count(clients, TURN, async |client| {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        subject.objects.update(&format!("object-{client}"), number).await
    })
    .await? as f64;
    let seconds = begun.elapsed().as_secs_f64();
    let (server_after, etcd_after) = cpu();
    Ok(Tally {
        done,
        seconds,
        server_cpu: server_after - server_before,
        etcd_cpu: etcd_after - etcd_before,
        rates: vec![done / seconds],
    })
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.done += other.done;
        self.seconds += other.seconds;
        self.server_cpu += other.server_cpu;
        self.etcd_cpu += other.etcd_cpu;
        self.rates.extend(other.rates);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_the_middle_of_pairs_and_the_sum_of_cpu() {
        let tally = |rates: &[f64], cpu: f64| Tally {
            done: rates.iter().sum(),
            seconds: rates.len() as f64,
            server_cpu: cpu,
            etcd_cpu: cpu,
            rates: rates.to_vec(),
        };
        let cost = FenceCost { with: tally(&[98.0, 50.0, 99.0], 24.7), without: tally(&[100.0, 100.0, 100.0], 30.0) };
        assert!((cost.in_rate().unwrap() - 2.0).abs() < 1e-9, "one bad turn counts for no more than any other");
        assert!(cost.in_server_cpu().unwrap().abs() < 1e-9);
        assert_eq!(more(1.0, 0.0), None);
        assert_eq!(cost.in_rate_surely(), None, "three pairs say too little");
        let even: Vec<f64> = (1..=100).map(f64::from).collect();
        let cost = FenceCost { with: tally(&even, 1.0), without: tally(&[100.0; 100], 1.0) };
        let (least, most) = cost.in_rate_surely().unwrap();
        assert!((least - 39.0).abs() < 1e-9 && (most - 60.0).abs() < 1e-9, "{least} to {most}");
    }
}
