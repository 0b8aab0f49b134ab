//! Random holders that renew, die and are suspended, and random observers: a lease that is renewed in time never counts as
//! expired, and any other lease soon does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::collection::vec;
use proptest::prelude::*;
use restow_api::ResourceVersion;
use restow_rules::{LeaseWatch, ReadTime, SeenLease};
use std::time::Duration;

/// How long the lease lasts, how often it is renewed, and how often it is read, in milliseconds: the defaults.
const LASTS: u64 = 10_000;
const RENEWED: u64 = 3_000;
const READ: u64 = 1_000;

/// One observer of one lease.
#[derive(Default)]
struct Observer {
    watch: LeaseWatch,
}

impl Observer {
    /// Reads the lease, which was renewed so many times. Returns whether it has expired.
    fn reads(&mut self, renewals: usize, asked: u64, answered: u64) -> bool {
        let revision = ResourceVersion::new(renewals.to_string());
        let lease = SeenLease { name: "a", revision: &revision, duration_seconds: Some(10) };
        let (asked, answered) = (Duration::from_millis(asked), Duration::from_millis(answered));
        self.watch.saw([lease], ReadTime { asked, answered });
        self.watch.is_expired(lease)
    }
}

/// The number of these moments that have passed.
fn count(moments: &[u64], now: u64) -> usize {
    moments.iter().filter(|moment| **moment <= now).count()
}

/// The moments at which the sum of these pauses is reached.
fn moments(pauses: &[u64]) -> Vec<u64> {
    pauses.iter().scan(0, |time, pause| (*time += pause, Some(*time)).1).collect()
}

proptest! {
    /// The lease of a holder that renews in time does not expire, with any frequency and duration of reads.
    #[test]
    fn a_lease_that_is_renewed_in_time_never_expires(
        renewals in vec(1..=LASTS, 1..60),
        reads in vec((0..=20_000_u64, 0..=8_000_u64, 0.0..=1.0), 1..120),
    ) {
        let renewals = moments(&renewals);
        let mut observer = Observer::default();
        let mut now = 0;
        for (pause, takes, part) in reads {
            let (asked, answered) = (now + pause, now + pause + takes);
            // The response is the content of the store at some moment between the two.
            let held = asked + (takes as f64 * part) as u64;
            now = answered;
            if held > *renewals.last().unwrap() {
                break;
            }
            prop_assert!(!observer.reads(count(&renewals, held), asked, answered), "renewed at {renewals:?}, read at {held}");
        }
    }

    /// An observer that reads about once a second notices a dead holder after the lease's duration, and soon after it.
    #[test]
    fn the_lease_of_a_dead_server_expires_in_time(
        lived in vec(1..=RENEWED, 0..20),
        begins in 0..60_000_u64,
        late in vec(0..=1_000_u64, 200),
    ) {
        let renewals = moments(&lived);
        let died = renewals.last().copied().unwrap_or(0).max(begins);
        let mut observer = Observer::default();
        let mut now = begins;
        for late in late {
            let expired = observer.reads(count(&renewals, now), now, now);
            prop_assert!(!expired || now > renewals.last().copied().unwrap_or(0) + LASTS);
            if expired {
                return Ok(());
            }
            prop_assert!(now <= died + LASTS + 2 * (READ + 1_000), "not noticed {} ms after its death", now - died);
            now += READ + late;
        }
    }

    /// Holder and observer are suspended together, as on one machine, for any time: the lease does not expire. Their timers
    /// stop while they are suspended; the observer's time since boot does not.
    #[test]
    fn no_lease_expires_while_holder_and_observer_are_suspended(
        awake in vec(LASTS..=40_000_u64, 1..12),
        asleep in vec(0..=100_000_000_u64, 12),
        first_read in 0..READ,
    ) {
        let naps: Vec<(u64, u64)> = moments(&awake).into_iter().zip(asleep).collect();
        let since_boot = |awake: u64| awake + naps.iter().filter(|(at, _)| *at < awake).map(|(_, nap)| nap).sum::<u64>();
        let mut observer = Observer::default();
        let end = naps.last().unwrap().0 + 20_000;
        for read in (first_read..end).step_by(READ as usize) {
            let now = since_boot(read);
            let renewals = (read / RENEWED) as usize;
            prop_assert!(!observer.reads(renewals, now, now), "{naps:?}, {read}");
        }
    }
}
