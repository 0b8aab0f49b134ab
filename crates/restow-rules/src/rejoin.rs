//! How long a server that lost its lease waits before it joins again.

use crate::trigger::Backoff;
use jiff::SignedDuration;
use std::time::Duration;

/// The delays double from one loss to the next. Joining costs a write for each resource, so a server that keeps losing its
/// lease must not spend all of its time, and the store's, on it.
const WAITS: Backoff = Backoff { first: SignedDuration::from_millis(100), cap: SignedDuration::from_secs(10) };
/// A server that has held its lease for this long is healthy, and earlier losses do not count any more.
const CALM: Duration = Duration::from_secs(30);

/// How often in a row a server lost its lease soon after it had joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejoin {
    losses: u32,
}

impl Rejoin {
    /// Records the loss of a lease that was held for this time. Returns the maximum delay; the caller waits a random part
    /// of it, so that servers which lost their leases together do not rejoin together.
    pub fn lost_after(&mut self, held: Duration) -> Duration {
        self.losses = if held >= CALM { 1 } else { self.losses.saturating_add(1) };
        // Delays are never negative.
        WAITS.after(self.losses).unsigned_abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_rejoins_wait_longer_each_time() {
        let mut rejoin = Rejoin::default();
        let mut lost_after = |held: u64| rejoin.lost_after(Duration::from_secs(held)).as_millis();
        assert_eq!(lost_after(3600), 100);
        assert_eq!([0; 8].map(&mut lost_after), [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(lost_after(29), 10_000);
        assert_eq!(lost_after(30), 100, "it was in order for long enough");
    }

    #[test]
    fn joining_again_stays_rare_in_the_long_run() {
        let (mut rejoin, mut time, mut joined) = (Rejoin::default(), Duration::ZERO, 0);
        while time < Duration::from_secs(600) {
            time += rejoin.lost_after(Duration::ZERO);
            joined += 1;
        }
        assert!(joined < 70, "{joined} times in ten minutes");
    }
}
