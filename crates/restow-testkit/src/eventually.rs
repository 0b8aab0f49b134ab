//! Waits until a condition holds, with a time limit: a condition that never holds fails its test by name.

use crate::TIMEOUT;
use std::thread;
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Blocking conditions often start a process, so they are checked less often.
const BLOCKING_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits until a condition holds, and returns how long that took.
pub async fn eventually(condition: &str, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let start = tokio::time::Instant::now();
    eventually_some(condition, async || holds().await.then_some(())).await;
    start.elapsed()
}

/// Waits until there is a value, and returns it.
pub async fn eventually_some<T>(condition: &str, mut value: impl AsyncFnMut() -> Option<T>) -> T {
    let start = tokio::time::Instant::now();
    loop {
        if let Some(value) = value().await {
            return value;
        }
        assert!(start.elapsed() < TIMEOUT, "does not hold after {TIMEOUT:?}: {condition}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until a condition holds, on this thread.
pub fn eventually_blocking(condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "does not hold after {TIMEOUT:?}: {condition}");
        thread::sleep(BLOCKING_POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_value_is_returned_as_soon_as_there_is_one() {
        let mut tries = 0;
        let value = eventually_some("the third try", async || {
            tries += 1;
            (tries == 3).then_some(tries)
        });
        assert_eq!(value.await, 3);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "never true")]
    async fn a_condition_that_never_holds_fails_by_name() {
        eventually("never true", async || false).await;
    }
}
