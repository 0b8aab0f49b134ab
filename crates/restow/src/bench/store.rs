//! `restow bench store`: the embedded store against etcd.

use crate::bench::process::{disk_bytes, resident_bytes};
use crate::bench::rate::rate;
use crate::bench::report::{Report, Unit};
use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use indicatif::{ProgressBar, ProgressStyle};
use restow_local_etcd::{LocalEtcd, LocalEtcdOptions};
use restow_store::{Key, RangeRequest, Store, StoreExt, Txn, WatchRequest};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The bytes of each value: a usual Kubernetes object.
const VALUE_BYTES: usize = 2048;
/// How many keys the range reads.
const RANGE_KEYS: usize = 10_000;
/// How many changes each watcher is sent.
const WATCH_EVENTS: u64 = 2000;

/// Measures durable puts by 1, 16, 64 and 256 writers, compare-and-swap updates, a range of 10,000 keys, delivery to
/// watchers, and the disk and memory that 100,000 keys take, with values of 2 kB.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// Measure this etcd instead of starting one (its memory and disk are then not measured).
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_endpoints: Vec<String>,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// Where to put the stores; both lie on this disk. They are removed afterwards.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// How long each rate is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// How many keys the stores hold when disk and memory are measured.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(RANGE_KEYS as u64..=10_000_000))]
    keys: u64,
}

/// A store under measurement.
struct Subject {
    name: String,
    store: Arc<dyn Store>,
    /// The process whose memory counts, and the folder whose files count.
    process: Option<u32>,
    folder: Option<PathBuf>,
    _etcd: Option<LocalEtcd>,
}

/// One result of one store.
type Result1 = (String, Unit, Option<f64>);

pub(crate) async fn run(args: StoreArgs) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("restow-bench-").tempdir_in(&args.directory);
    let folder = folder.with_context(|| format!("cannot make a folder in {}", args.directory.display()))?;
    let bar = ProgressBar::new(20).with_style(ProgressStyle::with_template("{bar:30} {elapsed} {msg}")?);
    let ours = {
        let subject = embedded(folder.path().join("embedded"))?;
        (subject.name.clone(), measure(&subject, &args, &bar).await?)
    };
    let theirs = {
        let subject = etcd(&args, folder.path().join("etcd")).await?;
        (subject.name.clone(), measure(&subject, &args, &bar).await?)
    };
    bar.finish_and_clear();
    let mut report = Report {
        title: format!("Stores with values of {VALUE_BYTES} bytes; a ratio above 1 is in favour of the embedded store"),
        columns: vec![ours.0, theirs.0],
        compared: Some([0, 1]),
        rows: Vec::new(),
    };
    for ((what, unit, ours), (_, _, theirs)) in ours.1.into_iter().zip(theirs.1) {
        report.add(what, unit, vec![ours, theirs]);
    }
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.table()),
    }
    Ok(())
}

fn embedded(folder: PathBuf) -> anyhow::Result<Subject> {
    let store = Arc::new(EmbeddedStore::open(EmbeddedConfig::new(&folder))?);
    let process = Some(std::process::id());
    Ok(Subject { name: "embedded".into(), store, process, folder: Some(folder), _etcd: None })
}

async fn etcd(args: &StoreArgs, folder: PathBuf) -> anyhow::Result<Subject> {
    let local = match args.etcd_endpoints.is_empty() {
        true => {
            let options = LocalEtcdOptions {
                data_dir: Some(folder.clone()),
                quota_bytes: Some(8 << 30),
                ..LocalEtcdOptions::default()
            };
            Some(LocalEtcd::start_with(options).await.context("cannot start an etcd to compare with")?)
        }
        false => None,
    };
    let endpoints = local.as_ref().map_or(args.etcd_endpoints.clone(), |etcd| vec![etcd.endpoint()]);
    let config = EtcdConfig {
        prefix: format!("/restow-bench-{}", std::process::id()),
        request_timeout: Duration::from_secs(30),
        ..EtcdConfig::new(endpoints)
    };
    let store: Arc<dyn Store> = Arc::new(EtcdStore::connect(config).await?);
    let name = store.status().await?.backend;
    let process = local.as_ref().and_then(LocalEtcd::process_id);
    let folder = local.is_some().then_some(folder);
    Ok(Subject { name, store, process, folder, _etcd: local })
}

async fn measure(subject: &Subject, args: &StoreArgs, bar: &ProgressBar) -> anyhow::Result<Vec<Result1>> {
    let store = &subject.store;
    let time = Duration::from_secs(args.seconds);
    let step = |what: &str| {
        bar.inc(1);
        bar.set_message(format!("{}: {what}", subject.name));
    };
    let mut results = Vec::new();

    step("loading");
    let loaded = load(store, args.keys).await?;
    results.push((format!("{} keys loaded, 100 to a transaction", args.keys), Unit::PerSecond, Some(loaded)));
    let disk = subject.folder.as_deref().and_then(disk_bytes);
    results.push((format!("disk for {} keys", args.keys), Unit::Bytes, disk));
    let memory = subject.process.and_then(resident_bytes);
    results.push((format!("memory for {} keys", args.keys), Unit::Bytes, memory));

    step("reading a range");
    results.push((format!("range of {RANGE_KEYS} keys"), Unit::Milliseconds, Some(range(store).await?)));

    for writers in [1, 16, 64, 256] {
        step(&format!("{writers} writers"));
        let rate = puts(store, writers, time).await?;
        let name = if writers == 1 { "writer" } else { "writers" };
        results.push((format!("durable puts, {writers} {name}"), Unit::PerSecond, Some(rate)));
    }
    step("compare and swap");
    results.push(("compare-and-swap, 16 writers".into(), Unit::PerSecond, Some(swaps(store, 16, time).await?)));
    for watchers in [1, 100] {
        step(&format!("{watchers} watchers"));
        let rate = deliveries(store, watchers).await?;
        let name = if watchers == 1 { "watcher" } else { "watchers" };
        results.push((format!("events delivered, {watchers} {name}"), Unit::PerSecond, Some(rate)));
    }
    Ok(results)
}

fn key(collection: &str, number: u64) -> anyhow::Result<Key> {
    let namespace = number % 100;
    Ok(Key::try_from(format!("/example.com/{collection}/namespace-{namespace:03}/object-{number:08}"))?)
}

/// A value that compresses about as well as a Kubernetes object does.
fn value(number: u64) -> Bytes {
    let mut text = format!("{{\"apiVersion\":\"example.com/v1\",\"kind\":\"Widget\",\"number\":{number},\"data\":{{");
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while text.len() < VALUE_BYTES - 30 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(&format!("\"field\":\"{:x}\",", state));
    }
    text.push_str(&" ".repeat(VALUE_BYTES - 2 - text.len()));
    text.push_str("}}");
    text.into()
}

/// Fills the store; keys a second.
async fn load(store: &Arc<dyn Store>, keys: u64) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut running = FuturesUnordered::new();
    for first in (0..keys).step_by(100) {
        let mut txn = Txn::new();
        for number in first..(first + 100).min(keys) {
            txn = txn.put(&key("loaded", number)?, value(number));
        }
        running.push(store.txn(txn));
        if running.len() >= 16 {
            running.next().await.transpose()?;
        }
    }
    while running.next().await.transpose()?.is_some() {}
    Ok(keys as f64 / start.elapsed().as_secs_f64())
}

/// Reads a range again and again; the median in milliseconds.
async fn range(store: &Arc<dyn Store>) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..11 {
        let start = Instant::now();
        let response = store.range(RangeRequest::prefix("/example.com/loaded/").limit(RANGE_KEYS)).await?;
        anyhow::ensure!(response.entries.len() == RANGE_KEYS, "the range is incomplete");
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Writers that put new keys as fast as they can; puts a second.
async fn puts(store: &Arc<dyn Store>, writers: u64, time: Duration) -> anyhow::Result<f64> {
    let next = Arc::new(AtomicU64::new(0));
    let collection = format!("put-by-{writers}");
    rate(writers, time, async |_| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        store.put(&key(&collection, number)?, value(number)).await?;
        Ok(())
    })
    .await
}

/// Writers that each update a key of their own, over and over, on condition of what they read; updates a second.
async fn swaps(store: &Arc<dyn Store>, writers: u64, time: Duration) -> anyhow::Result<f64> {
    for writer in 0..writers {
        store.put(&key("swap", writer)?, value(0)).await?;
    }
    rate(writers, time, async |writer| {
        let key = key("swap", writer)?;
        let current = store.get(&key).await?.context("the key is gone")?;
        store.update(&key, value(current.version), current.mod_revision).await?;
        Ok(())
    })
    .await
}

/// Watchers that follow what 16 writers do; events delivered a second, over all watchers, from the first write to the
/// last delivery.
async fn deliveries(store: &Arc<dyn Store>, watchers: u64) -> anyhow::Result<f64> {
    let collection = format!("watched-by-{watchers}");
    let mut followers = Vec::new();
    for _ in 0..watchers {
        let prefix = format!("/example.com/{collection}/");
        let mut watch = store.watch(WatchRequest::from_now(restow_store::KeyRange::prefix(prefix))).await?;
        followers.push(tokio::spawn(async move {
            let mut seen = 0;
            while seen < WATCH_EVENTS {
                seen += watch.next().await.context("a watch ended early")??.events.len() as u64;
            }
            anyhow::Ok(())
        }));
    }
    let start = Instant::now();
    let mut running = FuturesUnordered::new();
    for number in 0..WATCH_EVENTS {
        let key = key(&collection, number)?;
        running.push(async move { store.put(&key, value(number)).await });
        if running.len() >= 16 {
            running.next().await.transpose()?;
        }
    }
    while running.next().await.transpose()?.is_some() {}
    for follower in followers {
        follower.await??;
    }
    Ok((watchers * WATCH_EVENTS) as f64 / start.elapsed().as_secs_f64())
}
