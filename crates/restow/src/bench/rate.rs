//! Repeats an action as often as possible for a while, and counts.

use std::time::{Duration, Instant};

/// Repeats an action in each of several tasks for some time; how often a second it was done in all.
pub(crate) async fn rate(
    tasks: u64,
    time: Duration,
    action: impl AsyncFn(u64) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let start = Instant::now();
    let done = count(tasks, time, action).await?;
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// Repeats an action in each of several tasks for some time; how often it was done in all.
pub(crate) async fn count(
    tasks: u64,
    time: Duration,
    action: impl AsyncFn(u64) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let start = Instant::now();
    let loops = (0..tasks).map(async |task| {
        let mut done = 0u64;
        while start.elapsed() < time {
            action(task).await?;
            done += 1;
        }
        anyhow::Ok(done)
    });
    Ok(futures::future::try_join_all(loops).await?.iter().sum())
}
