//! The one clock by which it may be judged how much time has passed: the time since boot.
//!
//! The wall clock jumps and differs between machines, so it only dates what people read. [`std::time::Instant`] stands
//! still while the machine is suspended; whoever holds something for a time, such as a lease, would believe after a long
//! sleep to hold it still.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime};

/// Counts on while the machine is suspended. Elsewhere than on Linux the monotonic clock does so, or there is no better.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// A moment, by the time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// The present.
    pub fn now() -> Self {
        Moment(since_boot())
    }

    /// How much time has passed since then, suspended or not.
    pub fn elapsed(self) -> Duration {
        since_boot().saturating_sub(self.0)
    }
}

/// The time of day as it was once, and from then on by the time that has passed since: it never jumps.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    began: SystemTime,
    since: Moment,
}

impl SteadyClock {
    /// A clock that begins at this time of day, now.
    pub fn beginning_at(began: SystemTime) -> Self {
        SteadyClock { began, since: Moment::now() }
    }

    /// The time of day by this clock.
    pub fn now(&self) -> SystemTime {
        self.began + self.since.elapsed()
    }
}

/// How much time has passed since the machine was booted, suspended or not.
pub fn since_boot() -> Duration {
    // It is never negative: the clock begins at zero.
    Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes() {
        let before = Moment::now();
        std::thread::sleep(Duration::from_millis(20));
        assert!(before.elapsed() >= Duration::from_millis(20));
        assert!(Moment::now() > before);
    }

    #[test]
    fn a_steady_clock_does_not_ask_for_the_time_of_day_again() {
        let clock = SteadyClock::beginning_at(SystemTime::UNIX_EPOCH);
        let now = clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert!(now < Duration::from_secs(3600), "{now:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn it_is_the_clock_that_counts_suspended_time() {
        let read = || Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap();
        let (before, now, after) = (read(), since_boot(), read());
        assert!(before <= now && now <= after);
    }
}
