//! The clocks: the time since boot, which also counts the time that the machine was suspended, and the time of day.
//!
//! The time of day can jump and differs between machines, so it is only for timestamps that people read.
//! [`std::time::Instant`] stops while the machine is suspended: after a long suspend, the holder of an expired lease would
//! believe that it still holds it.

use crate::simulated::Process;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime};

/// A clock that counts suspended time. On other systems than Linux the monotonic clock does so, or there is no better one.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// A point in time, by the time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// The present.
    pub fn now() -> Self {
        Moment(since_boot())
    }

    /// The time since then, including suspended time.
    pub fn elapsed(self) -> Duration {
        since_boot().saturating_sub(self.0)
    }
}

/// A wall clock that never jumps: it reads the time of day once, and adds the time since boot from then on.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    began: SystemTime,
    since: Moment,
}

impl SteadyClock {
    /// A clock that starts now, with this time of day.
    pub fn beginning_at(began: SystemTime) -> Self {
        SteadyClock { began, since: Moment::now() }
    }

    /// The time of day by this clock.
    pub fn now(&self) -> SystemTime {
        self.began + self.since.elapsed()
    }
}

/// The time since the machine was booted, including suspended time.
pub fn since_boot() -> Duration {
    match Process::current() {
        Some(process) => process.since_boot(),
        // It is never negative: the clock begins at zero.
        None => Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default(),
    }
}

/// The time of day.
pub fn now() -> Timestamp {
    match Process::current() {
        Some(process) => process.time_of_day(),
        None => Timestamp::now(),
    }
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
