//! The requests that are sent to every server, in the same order, and their cost.

use crate::bench::apiserver::objects::{Collection, Form};
use crate::bench::apiserver::server_under_test::ServerUnderTest;
use crate::bench::apiserver::{Amounts, Measurement, custom_resources};
use crate::bench::process::{cpu_seconds, resident_bytes};
use crate::bench::rate::count;
use crate::bench::report::Unit;
use anyhow::Context;
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use indicatif::ProgressBar;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The objects in a page.
const PAGE: u64 = 500;
/// How often each list is read.
const LISTS: usize = 5;
/// How long a server is left alone before its idle memory is read.
const REST: Duration = Duration::from_secs(2);

/// What a server has used before a measurement, to compare with afterwards.
pub(super) struct Meter {
    process: Option<u32>,
    begun: Instant,
    cpu: Option<f64>,
}

impl Meter {
    pub(super) fn start(server: &ServerUnderTest) -> Self {
        Meter { process: server.process, begun: Instant::now(), cpu: server.process.and_then(cpu_seconds) }
    }

    /// The rate of what was done since, and the CPU time that each took.
    pub(super) fn rows(self, what: &str, each: &str, done: u64) -> Vec<Measurement> {
        let done = done.max(1) as f64;
        let rate = done / self.begun.elapsed().as_secs_f64();
        let used = self.process.and_then(cpu_seconds).zip(self.cpu).map(|(now, then)| (now - then) * 1e3 / done);
        vec![
            (what.to_string(), Unit::PerSecond, Some(rate)),
            (format!("CPU of the server per {each}"), Unit::Milliseconds, used),
        ]
    }
}

pub(super) async fn measure(
    server: &ServerUnderTest,
    amounts: Amounts,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Measurement>> {
    let say = |what: &str| bar.set_message(format!("{}: {what}", server.name));
    let started = server.started_in.map(|time| time.as_secs_f64() * 1e3);
    let mut results = vec![("start to ready".to_string(), Unit::Milliseconds, started)];
    say("resting");
    tokio::time::sleep(REST).await;
    results.push(("memory, idle".into(), Unit::Bytes, server.process.and_then(resident_bytes)));
    let single = Collection::prepare(server.client.clone(), "restow-bench").await?;
    let many = Collection::prepare(server.client.clone(), "restow-bench-many").await?;
    say("creating, reading and updating");
    results.extend(single_objects(server, &single, amounts).await?);
    say("loading what is listed");
    fill(&many, 0..amounts.listed).await?;
    say("listing");
    results.extend(lists(server, &many, amounts).await?);
    say("watching");
    results.extend(fan_out(server, &single, amounts).await?);
    say("loading everything");
    fill(&many, amounts.listed..amounts.objects).await?;
    tokio::time::sleep(REST).await;
    let memory = server.process.and_then(resident_bytes);
    results.push((format!("memory with {} objects", amounts.objects), Unit::Bytes, memory));
    results.extend(custom_resources::measure(server, amounts, bar).await?);
    single.remove().await?;
    many.remove().await?;
    Ok(results)
}

async fn single_objects(
    server: &ServerUnderTest,
    collection: &Collection,
    amounts: Amounts,
) -> anyhow::Result<Vec<Measurement>> {
    let time = Duration::from_secs(amounts.seconds);
    let next = AtomicU64::new(0);
    let name = |number: u64| format!("made-{number}");
    let meter = Meter::start(server);
    let made = count(amounts.clients, time, async |_| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        collection.create(&name(number)).await
    })
    .await?;
    let mut results = meter.rows("creates", "create", made);
    let meter = Meter::start(server);
    let read = count(amounts.clients, time, async |_| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        collection.get(&name(number % made)).await
    })
    .await?;
    results.extend(meter.rows("gets", "get", read));
    let meter = Meter::start(server);
    // Each task has objects of its own, so that none waits for another.
    let updated = count(amounts.clients, time, async |task| {
        let number = next.fetch_add(1, Ordering::Relaxed);
        collection.update(&name(task % made), number).await
    })
    .await?;
    results.extend(meter.rows("updates, by merge patch", "update", updated));
    Ok(results)
}

/// Creates objects of these numbers.
async fn fill(collection: &Collection, numbers: std::ops::Range<u64>) -> anyhow::Result<()> {
    futures::stream::iter(numbers)
        .map(async |number| collection.create(&format!("filled-{number:07}")).await)
        .buffer_unordered(64)
        .try_collect::<()>()
        .await
}

async fn lists(
    server: &ServerUnderTest,
    collection: &Collection,
    amounts: Amounts,
) -> anyhow::Result<Vec<Measurement>> {
    let mut results = Vec::new();
    let ways = [
        ("whole", None, Form::Whole),
        ("in pages of 500", Some(PAGE), Form::Whole),
        ("metadata only", None, Form::MetadataOnly),
        ("as a table", None, Form::Table),
        ("in protobuf", None, Form::Protobuf),
    ];
    for (name, limit, form) in ways {
        let meter = Meter::start(server);
        let mut times = Vec::new();
        let mut size = 0;
        for _ in 0..LISTS {
            let begun = Instant::now();
            size = collection.list(limit, form).await?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        anyhow::ensure!(size as u64 > amounts.listed * 100, "a list is incomplete");
        times.sort_by(f64::total_cmp);
        let what = format!("list of {} objects, {name}", amounts.listed);
        results.push((what, Unit::Milliseconds, times.get(LISTS / 2).copied()));
        results.extend(meter.rows("", "such list", LISTS as u64).pop());
    }
    Ok(results)
}

/// Watchers of created objects; from the first create to the last delivery.
async fn fan_out(
    server: &ServerUnderTest,
    collection: &Collection,
    amounts: Amounts,
) -> anyhow::Result<Vec<Measurement>> {
    let opening = (0..amounts.watchers).map(async |_| collection.watch().await);
    let bodies: Vec<_> = futures::stream::iter(opening).buffer_unordered(32).try_collect().await?;
    let mut followers = Vec::new();
    for mut body in bodies {
        let events = amounts.events;
        followers.push(tokio::spawn(async move {
            let mut seen = 0;
            while seen < events {
                let frame = body.frame().await.context("a watch ended early")??;
                let bytes = frame.into_data().unwrap_or_default();
                seen += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            }
            anyhow::Ok(())
        }));
    }
    let meter = Meter::start(server);
    fill(collection, 0..amounts.events).await?;
    for follower in followers {
        follower.await??;
    }
    let what = format!("events delivered to {} watchers", amounts.watchers);
    Ok(meter.rows(&what, "event delivered", amounts.watchers * amounts.events))
}
