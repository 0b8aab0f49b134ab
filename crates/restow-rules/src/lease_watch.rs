//! Lease expiry: a lease has expired when one observer has watched it for its whole duration without a change.
//!
//! **No two clocks are compared.** The renew time of a lease comes from the clock of its holder, so it is ignored. The
//! observer uses its own time since boot, which never jumps and includes suspended time.
//!
//! Only time in which the observer could read counts. Between two reads that are far apart the observer may have been
//! suspended, or the store unavailable; then the holder may have been unable to renew for the same reason. So a long gap
//! between two reads restarts the watch, and the holder has its whole duration again.
//!
//! All of this errs towards keeping a lease. A holder that is considered gone too late costs waiting; one that is
//! considered gone too early loses its lease although it is alive.

use restow_api::ResourceVersion;
use std::collections::BTreeMap;
use std::time::Duration;

/// The duration of a lease that has none, or zero.
pub const USUAL_DURATION: Duration = Duration::from_secs(15);
/// Observers read about once a second, later on a loaded machine. A gap of this length never restarts a watch.
const SHORT_GAP: Duration = Duration::from_secs(3);

/// What one observer has seen of leases, and for how long each is unchanged. A new observer has to watch each lease for its
/// whole duration.
#[derive(Clone, Debug, Default)]
pub struct LeaseWatch {
    sightings: BTreeMap<String, Sighting>,
}

/// A lease as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenLease<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its revision. Every write to the lease changes it.
    pub revision: &'a ResourceVersion,
    /// The lease duration that it specifies.
    pub duration_seconds: Option<i64>,
}

/// When leases were read, by the observer's own time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTime {
    /// When the request was sent.
    pub asked: Duration,
    /// When the answer arrived.
    pub answered: Duration,
}

#[derive(Clone, Debug)]
struct Sighting {
    revision: ResourceVersion,
    /// The time of the answer since which it is unchanged.
    since: Duration,
    /// When the last read was sent that found it unchanged.
    last: Duration,
}

impl LeaseWatch {
    /// Records one read. Leases that it did not find are forgotten.
    pub fn saw<'a>(&mut self, leases: impl IntoIterator<Item = SeenLease<'a>>, read: ReadTime) {
        let mut before = std::mem::take(&mut self.sightings);
        for lease in leases {
            let known = before.remove(lease.name).filter(|known| known.goes_on(&lease, read));
            let since = known.map_or(read.answered, |known| known.since);
            let sighting = Sighting { revision: lease.revision.clone(), since, last: read.asked };
            self.sightings.insert(lease.name.to_owned(), sighting);
        }
    }

    /// Whether this lease, as in the last read, is unchanged for longer than its duration.
    pub fn is_expired(&self, lease: SeenLease<'_>) -> bool {
        let known = self.sightings.get(lease.name).filter(|known| known.revision == *lease.revision);
        // From the first answer to the last request it has certainly not changed.
        known.is_some_and(|known| known.last.saturating_sub(known.since) > lasts(lease.duration_seconds))
    }
}

impl Sighting {
    /// Whether a read continues this watch: the lease is unchanged, and there was no long gap.
    fn goes_on(&self, lease: &SeenLease<'_>, read: ReadTime) -> bool {
        let gap = read.answered.saturating_sub(self.last);
        self.revision == *lease.revision && gap <= longest_gap(lease.duration_seconds)
    }
}

/// The duration of a lease. There is no maximum, because the holder may rely on it.
fn lasts(duration_seconds: Option<i64>) -> Duration {
    let seconds = duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
    seconds.map_or(USUAL_DURATION, Duration::from_secs)
}

/// The longest gap between two reads that does not restart the watch. With half of the duration, a holder that was
/// suspended together with the observer still has time to renew when both resume.
fn longest_gap(duration_seconds: Option<i64>) -> Duration {
    (lasts(duration_seconds) / 2).max(SHORT_GAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> ReadTime {
        let time = Duration::from_secs_f64(seconds);
        ReadTime { asked: time, answered: time }
    }

    /// Whether a lease of this duration has expired after it was read at these times, with these revisions.
    fn expired(duration_seconds: Option<i64>, reads: &[(f64, &str)]) -> bool {
        let mut watch = LeaseWatch::default();
        let mut expired = false;
        for (time, revision) in reads {
            let revision = ResourceVersion::new(*revision);
            let lease = SeenLease { name: "a", revision: &revision, duration_seconds };
            watch.saw([lease], at(*time));
            expired = watch.is_expired(lease);
        }
        expired
    }

    /// Reads of an unchanged lease, once a second.
    fn every_second(from: u32, to: u32) -> Vec<(f64, &'static str)> {
        (from..=to).map(|second| (f64::from(second), "1")).collect()
    }

    #[test]
    fn a_lease_expires_when_it_was_watched_for_longer_than_it_lasts() {
        assert!(!expired(Some(10), &every_second(100, 100)), "whoever starts knows nothing");
        assert!(!expired(Some(10), &every_second(100, 110)));
        assert!(expired(Some(10), &every_second(100, 111)));
    }

    #[test]
    fn any_change_begins_the_watch_anew() {
        let mut reads = every_second(0, 10);
        reads.push((11.0, "2"));
        reads.extend((12..=21).map(|second| (f64::from(second), "2")));
        assert!(!expired(Some(10), &reads));
        reads.push((22.0, "2"));
        assert!(expired(Some(10), &reads));
    }

    #[test]
    fn an_observer_that_was_away_watches_from_the_beginning() {
        let mut reads = every_second(0, 9);
        reads.extend(every_second(3609, 3619));
        assert!(!expired(Some(10), &reads), "asleep for an hour");
        reads.push((3620.0, "1"));
        assert!(expired(Some(10), &reads));
        assert!(!expired(Some(10), &[(0.0, "1"), (11.0, "1")]), "two reads are no watch");
        assert!(expired(Some(10), &[(0.0, "1"), (5.0, "1"), (10.0, "1"), (15.0, "1")]), "slow is not away");
    }

    #[test]
    fn a_read_that_takes_long_proves_nothing_about_the_time_that_it_took() {
        let revision = ResourceVersion::new("1");
        let lease = SeenLease { name: "a", revision: &revision, duration_seconds: Some(12) };
        let mut watch = LeaseWatch::default();
        let mut saw = |asked: u64, answered: u64| {
            let (asked, answered) = (Duration::from_secs(asked), Duration::from_secs(answered));
            watch.saw([lease], ReadTime { asked, answered });
            watch.is_expired(lease)
        };
        for begin in [0, 3, 6, 9, 12, 15] {
            assert!(!saw(begin, begin + 3), "it is known of the seconds 3 to {begin} only");
        }
        assert!(saw(16, 16));
        assert!(!saw(17, 40), "suspended between the question and the answer");
    }

    #[test]
    fn durations_that_make_no_sense_are_the_usual_one_and_long_ones_are_kept() {
        for senseless in [None, Some(0), Some(-5), Some(i64::MIN)] {
            assert!(!expired(senseless, &every_second(0, 15)), "{senseless:?}");
            assert!(expired(senseless, &every_second(0, 16)), "{senseless:?}");
        }
        assert!(!expired(Some(i64::MAX), &every_second(0, 1000)));
        assert!(expired(Some(1), &every_second(0, 2)));
    }

    #[test]
    fn a_lease_that_was_deleted_and_made_again_is_another_one() {
        let revision = ResourceVersion::new("1");
        let lease = SeenLease { name: "a", revision: &revision, duration_seconds: Some(2) };
        let mut watch = LeaseWatch::default();
        watch.saw([lease], at(0.0));
        watch.saw([], at(1.0));
        watch.saw([lease], at(2.0));
        watch.saw([lease], at(4.0));
        assert!(!watch.is_expired(lease));
        let other = ResourceVersion::new("2");
        watch.saw([lease], at(5.0));
        assert!(watch.is_expired(lease));
        assert!(!watch.is_expired(SeenLease { revision: &other, ..lease }), "nothing is known of this revision");
    }
}
