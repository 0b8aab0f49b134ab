//! The pacer on servers of all kinds.

use super::*;

/// A server that needs `latency` for each request and finishes at most `capacity` a second.
struct Server {
    latency: f64,
    capacity: f64,
}

impl Server {
    fn rate(&self, in_flight: usize) -> f64 {
        (in_flight as f64 / self.latency).min(self.capacity)
    }

    /// Runs the pacer against it for so long, and returns the answers of the last half a second each.
    fn run(&self, pacer: &mut Pacer, from: Duration, seconds: u64) -> f64 {
        let mut now = from;
        let end = from + Duration::from_secs(seconds);
        let mut answers = 0u64;
        while now < end {
            now += Duration::from_secs_f64(1.0 / self.rate(pacer.limit()));
            pacer.answered(pacer.limit(), now);
            answers += u64::from(now >= end - Duration::from_secs(seconds / 2));
        }
        answers as f64 / (seconds / 2) as f64
    }
}

#[test]
fn it_finds_the_point_beyond_which_more_is_no_faster() {
    for (latency, capacity) in [(0.002, 4_000.0), (0.005, 2_000.0), (0.02, 3_000.0), (0.001, 700.0), (0.1, 400.0)] {
        let server = Server { latency, capacity };
        let mut pacer = Pacer::new(PacerLimits::default());
        let rate = server.run(&mut pacer, Duration::ZERO, 60);
        let knee = capacity * latency;
        assert!(rate > 0.9 * capacity.min(128.0 / latency), "{rate} a second of {capacity}");
        assert!(pacer.limit() as f64 <= (3.0 * knee).max(12.0), "{} in flight where {knee} suffice", pacer.limit());
    }
}

#[test]
fn it_follows_a_server_that_becomes_slower_and_faster() {
    let mut pacer = Pacer::new(PacerLimits::default());
    let slow = Server { latency: 0.01, capacity: 1_000.0 };
    let fast = Server { latency: 0.01, capacity: 8_000.0 };
    slow.run(&mut pacer, Duration::ZERO, 30);
    assert!(fast.run(&mut pacer, Duration::from_secs(30), 120) > 0.8 * 8_000.0);
}

/// Runs the pacer against a server whose small reads take `read(in_flight)`. Returns the answers a second and the
/// middle one of all reads, both of the second half.
fn run_guarded(server: &Server, read: impl Fn(usize) -> f64, seconds: u64) -> (f64, f64) {
    run_on(|in_flight, _| server.rate(in_flight), |in_flight, _| read(in_flight), seconds)
}

/// The same for a server that is not always equally fast.
fn run_on(rate: impl Fn(usize, Duration) -> f64, read: impl Fn(usize, Duration) -> f64, seconds: u64) -> (f64, f64) {
    let mut pacer = Pacer::new(PacerLimits::default());
    pacer.protect();
    let (end, half) = (Duration::from_secs(seconds), Duration::from_secs(seconds / 2));
    let (mut now, mut next_read) = (Duration::ZERO, Duration::ZERO);
    let (mut answers, mut reads) = (0u64, Vec::new());
    while now < end {
        let in_flight = pacer.limit();
        if now >= next_read || in_flight == 0 {
            let took = read(in_flight, now);
            pacer.probed(Duration::from_secs_f64(took), in_flight, now);
            next_read = now + Duration::from_millis(25);
            if now >= half {
                reads.push(took);
            }
        }
        if in_flight == 0 {
            now += Duration::from_millis(2);
            continue;
        }
        now += Duration::from_secs_f64(1.0 / rate(in_flight, now));
        pacer.answered(in_flight, now);
        answers += u64::from(now >= half);
    }
    reads.sort_by(f64::total_cmp);
    (answers as f64 / (seconds - seconds / 2) as f64, reads[reads.len() / 2])
}

#[test]
fn others_wait_at_most_twice_as_long_and_the_speed_is_nearly_the_best() {
    for (latency, capacity, idle) in [(0.005, 2_000.0, 0.02), (0.02, 3_000.0, 0.04), (0.01, 600.0, 0.03)] {
        let server = Server { latency, capacity };
        let knee = capacity * latency;
        // Reads share the server with the writes: they wait as soon as the writes wait for each other.
        let (rate, wait) = run_guarded(&server, |in_flight| idle * (in_flight as f64 / knee).max(1.0), 120);
        assert!(rate > 0.9 * capacity, "{rate} a second of {capacity}");
        assert!(wait <= 2.0 * idle, "others wait {wait} s instead of {idle} s");
    }
}

#[test]
fn where_speed_and_others_cannot_both_be_had_others_come_first() {
    let server = Server { latency: 0.01, capacity: 5_000.0 };
    let (rate, wait) = run_guarded(&server, |in_flight| 0.02 * (1.0 + in_flight as f64 / 6.0), 120);
    assert!(wait <= 0.042, "others wait {wait} s instead of 0.02 s");
    assert!(rate >= 300.0, "{rate} a second, though 6 in flight do no harm");
}

/// Between these points, by in-flight number, on straight lines.
fn between(points: &[(usize, f64)], in_flight: usize) -> f64 {
    let pairs = points.iter().zip(&points[1..]);
    let mut values = pairs
        .filter(|(from, to)| (from.0..=to.0).contains(&in_flight))
        .map(|(from, to)| from.1 + (to.1 - from.1) * (in_flight - from.0) as f64 / (to.0 - from.0) as f64);
    values.next().unwrap_or(points[points.len() - 1].1)
}

/// By chance, but always the same: between 1 - `spread` and 1 + `spread`, another one each tenth of a second.
fn chance(seed: u64, now: Duration, spread: f64) -> f64 {
    let mut state = seed.wrapping_add(now.as_millis() as u64 / 100).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    1.0 + spread * (((state >> 33) % 2_001) as f64 / 1_000.0 - 1.0)
}

/// Runs the pacer on servers that do this on average, and expects so much of it every time.
fn check_with_moods(rates: &[(usize, f64)], reads: &[(usize, f64)], least_rate: f64, longest_wait: f64) {
    for seed in 0..20 {
        let rate = |in_flight: usize, now| between(rates, in_flight) * chance(seed, now, 0.25);
        let read = |in_flight: usize, now| between(reads, in_flight) * chance(seed + 1_000, now, 0.3) / 1_000.0;
        let (rate, wait) = run_on(rate, read, 60);
        assert!(rate >= least_rate, "{rate} a second with seed {seed} instead of {least_rate}");
        assert!(wait * 1_000.0 <= longest_wait, "others wait {wait} s with seed {seed}");
    }
}

#[test]
fn a_server_with_moods_does_not_mislead_it() {
    // What a kube-apiserver and its etcd on two cores were measured to do. 4 in flight double what others wait.
    let rates = [(1, 205.0), (2, 320.0), (4, 400.0), (8, 475.0), (16, 475.0), (32, 550.0), (128, 560.0)];
    let reads = [(0, 2.6), (1, 2.9), (2, 3.3), (4, 4.8), (8, 8.0), (16, 15.0), (32, 25.0), (128, 100.0)];
    check_with_moods(&rates, &reads, 0.95 * 400.0, 5.8);
    // A quick one that others hardly share with us.
    let rates = [(1, 600.0), (4, 1_500.0), (8, 2_200.0), (16, 3_200.0), (32, 4_300.0), (128, 4_500.0)];
    let reads = [(0, 1.0), (8, 1.2), (32, 1.6), (64, 2.4), (128, 4.0)];
    check_with_moods(&rates, &reads, 0.9 * 4_300.0, 5.0);
}

#[test]
fn a_server_that_others_keep_busy_is_measured_anew_and_the_work_goes_on() {
    let server = Server { latency: 0.01, capacity: 2_000.0 };
    let mut pacer = Pacer::new(PacerLimits::default());
    pacer.protect();
    pacer.measure();
    for _ in 0..READS_PER_SAMPLE {
        pacer.probed(Duration::from_millis(2), 0, Duration::ZERO);
    }
    // From now on every read takes five times as long, with us and without us.
    let slow = Duration::from_millis(10);
    let later = Duration::from_secs(60);
    for number in 1..600u64 {
        pacer.probed(slow, pacer.limit(), Duration::from_millis(100 * number));
    }
    assert_eq!(pacer.guard.idle, Some(slow), "it is not because of us");
    let rate = server.run(&mut pacer, later + Duration::from_secs(1), 120);
    assert!(rate > 1_000.0, "{rate} a second: it has recovered");
}

#[test]
fn an_overloaded_server_gets_less_and_time() {
    let mut pacer = Pacer::new(PacerLimits { first: 40, ceiling: 64, ..PacerLimits::default() });
    let now = Duration::from_secs(1);
    pacer.overloaded(Duration::from_secs(2), now);
    pacer.overloaded(Duration::from_secs(3), now);
    assert_eq!(pacer.limit(), 24, "one wave of refusals counts once");
    assert_eq!(pacer.blocked_until(now), Some(Duration::from_secs(4)));
    assert_eq!(pacer.blocked_until(Duration::from_secs(4)), None);
    for second in 0..100 {
        pacer.overloaded(Duration::ZERO, Duration::from_secs(10 + second));
    }
    assert_eq!(pacer.limit(), 1, "it never stops altogether");
    assert_eq!(pacer.overloads(), 102);
}

#[test]
fn the_ceiling_holds() {
    let mut pacer = Pacer::new(PacerLimits { first: 8, ceiling: 10, ..PacerLimits::default() });
    Server { latency: 1.0, capacity: 1_000.0 }.run(&mut pacer, Duration::ZERO, 60);
    assert!(pacer.limit() <= 10);
    pacer.set_ceiling(3);
    assert_eq!(pacer.limit(), 3);
}

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// A sample of small reads that all take as long.
fn sample(pacer: &mut Pacer, took: u64, in_flight: usize, now: u64) {
    for _ in 0..READS_PER_SAMPLE {
        pacer.probed(milliseconds(took), in_flight, milliseconds(now));
    }
}

/// A pacer with a baseline of 10 ms, measured at this time.
fn measured(limits: PacerLimits, now: u64) -> Pacer {
    let mut pacer = Pacer::new(limits);
    pacer.protect();
    pacer.measure();
    sample(&mut pacer, 10, 0, now);
    assert_eq!(pacer.guard.idle, Some(milliseconds(10)));
    pacer
}

#[test]
fn other_clients_are_protected_unless_in_a_hurry() {
    let mut pacer = Pacer::new(PacerLimits::default());
    assert!(!pacer.is_guarded(), "nobody has asked for it");
    pacer.protect();
    assert!(pacer.is_guarded());
    let mut pacer = Pacer::new(PacerLimits::in_a_hurry());
    pacer.protect();
    assert!(!pacer.is_guarded());
    assert_eq!(pacer.limit(), HURRY_IN_FLIGHT);
}

#[test]
fn the_latency_of_others_may_double() {
    use ReadLatency::{Acceptable, AtLimit, Low, TooHigh};
    for (wait, idle, expected) in [
        (10, 10, Low),
        (11, 10, Acceptable),
        (20, 10, Acceptable),
        (21, 10, AtLimit),
        (24, 10, AtLimit),
        (25, 10, TooHigh),
        // Below five milliseconds nobody notices.
        (2, 1, Low),
        (5, 1, Acceptable),
        (7, 1, TooHigh),
    ] {
        assert_eq!(ReadLatency::of(milliseconds(wait), milliseconds(idle)), expected, "{wait} ms instead of {idle} ms");
    }
}

#[test]
fn the_baseline_is_measured_soon_after_the_start_without_requests_of_our_own() {
    let mut pacer = Pacer::new(PacerLimits::default());
    pacer.protect();
    sample(&mut pacer, 10, 4, 500);
    assert_eq!(pacer.limit(), 4, "not yet");
    sample(&mut pacer, 10, 4, 501);
    assert_eq!(pacer.limit(), 0, "nothing may be sent while it is measured");
    sample(&mut pacer, 90, 1, 600);
    assert_eq!((pacer.limit(), pacer.guard.idle), (0, None), "reads beside requests do not count");
    sample(&mut pacer, 10, 0, 700);
    assert_eq!((pacer.limit(), pacer.guard.idle), (4, Some(milliseconds(10))));
}

#[test]
fn the_baseline_is_measured_again_less_and_less_often() {
    for (measured_at, now, again) in [
        (1_000, 3_000, false),
        (1_000, 3_001, true),
        (20_000, 39_000, false),
        (20_000, 40_001, true),
        (100_000, 120_000, false),
        (100_000, 120_001, true),
    ] {
        let mut pacer = measured(PacerLimits::default(), measured_at);
        sample(&mut pacer, 10, 4, now);
        assert_eq!(pacer.guard.is_measuring, again, "at {now} ms, after {measured_at} ms");
    }
}

#[test]
fn the_baseline_is_measured_anew_where_fewer_requests_do_not_help() {
    // Ten seconds is too soon where others do not wait, or fewer requests may help.
    for (first, took, again) in [(2, 10, false), (2, 100, true), (9, 100, false)] {
        let mut pacer = measured(PacerLimits { first, ..PacerLimits::default() }, 50_000);
        sample(&mut pacer, took, first, 55_000);
        assert_eq!(pacer.guard.is_measuring, again, "{first} in flight, and reads take {took} ms");
    }
}

#[test]
fn a_latency_that_fewer_requests_did_not_help_stays_confirmed() {
    let mut pacer = measured(PacerLimits { first: MIN_IN_FLIGHT, ..PacerLimits::default() }, 50_000);
    sample(&mut pacer, 100, MIN_IN_FLIGHT, 51_000);
    assert_eq!(pacer.limit(), MIN_IN_FLIGHT, "it is too soon to measure again");
    sample(&mut pacer, 22, MIN_IN_FLIGHT, 55_000);
    assert!(pacer.guard.is_measuring, "slightly above the limit is enough now");
}

/// Sends so many responses at the same time.
fn answer(pacer: &mut Pacer, count: usize, in_flight: usize, now: u64) {
    for _ in 0..count {
        pacer.answered(in_flight, milliseconds(now));
    }
}

#[test]
fn nothing_is_tried_before_the_baseline_is_known() {
    let mut pacer = Pacer::new(PacerLimits::default());
    pacer.protect();
    answer(&mut pacer, 100, 4, 1_000);
    assert_eq!(pacer.limit(), 4);
}

#[test]
fn a_window_needs_time_and_responses_and_requests() {
    let new = || Pacer::new(PacerLimits::default());
    let mut pacer = new();
    answer(&mut pacer, 11, 4, 200);
    assert_eq!(pacer.limit(), 4, "too few responses");
    answer(&mut pacer, 1, 4, 200);
    assert_eq!(pacer.limit(), 6);
    let mut pacer = new();
    answer(&mut pacer, 30, 4, 199);
    assert_eq!(pacer.limit(), 4, "too short");
    let mut pacer = new();
    answer(&mut pacer, 12, 3, 200);
    assert_eq!(pacer.limit(), 4, "there were too few requests to know");
}

#[test]
fn more_in_flight_must_be_noticeably_faster() {
    for (answers, expected) in [(122, 4), (130, 9)] {
        let mut pacer = Pacer::new(PacerLimits::default());
        answer(&mut pacer, 119, 4, 100);
        answer(&mut pacer, 1, 4, 200);
        assert_eq!(pacer.limit(), 6, "600 a second");
        answer(&mut pacer, answers - 1, 6, 300);
        answer(&mut pacer, 1, 6, 400);
        assert_eq!(pacer.limit(), expected, "{} a second", answers * 5);
    }
}
