//! The delays between retries, which double up to a maximum. What may be retried at all is decided elsewhere.

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use std::time::Duration;

/// The longest delay between two tries of a request.
const MAX_REQUEST_DELAY: Duration = Duration::from_secs(10);
/// Between two tries of the same request.
const REQUEST: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_max_delay(MAX_REQUEST_DELAY)
    .without_max_times();
/// Between two reconciles of the cluster that failed.
const RECONCILE: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(400))
    .with_max_delay(Duration::from_millis(12_800))
    .without_max_times();

/// The delays of one series of tries.
pub(crate) struct Backoff(ExponentialBackoff);

impl Backoff {
    /// For a request that is sent again.
    pub(crate) fn of_request() -> Self {
        Backoff(REQUEST.build())
    }

    /// For a reconcile that failed.
    pub(crate) fn of_reconcile() -> Self {
        Backoff(RECONCILE.build())
    }

    /// The next delay. There is always one.
    pub(crate) fn next_delay(&mut self) -> Duration {
        self.0.next().unwrap_or(MAX_REQUEST_DELAY)
    }
}

/// The delay before a request is sent again that has failed this often before, the first time being zero.
pub(crate) fn request_delay(failed_tries: u32) -> Duration {
    let index = usize::try_from(failed_tries).unwrap_or(usize::MAX).min(10);
    REQUEST.build().nth(index).unwrap_or(MAX_REQUEST_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_maximum() {
        let first = |mut backoff: Backoff| (0..12).map(|_| backoff.next_delay().as_millis()).collect::<Vec<_>>();
        assert_eq!(
            first(Backoff::of_request()),
            [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000, 10_000, 10_000]
        );
        assert_eq!(first(Backoff::of_reconcile())[..7], [400, 800, 1_600, 3_200, 6_400, 12_800, 12_800]);
        assert_eq!(request_delay(3).as_millis(), 800);
        assert_eq!(request_delay(1_000).as_millis(), 10_000);
    }
}
