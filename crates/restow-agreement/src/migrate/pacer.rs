//! How many objects may be in flight at once.
//!
//! More requests at once finish sooner until the server is busy; beyond that point they only wait for each other, and
//! everybody else's requests wait with them. The pacer looks for that point: it raises the number as long as that makes
//! things noticeably faster, goes back when it does not, and now and then tries again in both directions. When the server
//! says that it has too much to do, the number drops at once, and nothing is sent for as long as the server asks.
//!
//! It also looks after the other clients: now and then a small read is sent as any of them could send it ([`Pacer::probed`]).
//! What such a read takes while nothing else of ours is under way is the measure. When it takes twice that, the measure is
//! taken anew, because others come and go; if it is still twice that, it is because of us, and the number goes down, whatever
//! that costs in speed.
//!
//! Time is an argument: the time since the run began.

use std::time::Duration;

/// Between which numbers the pacer chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacerLimits {
    /// Where it begins.
    pub first: usize,
    /// The most.
    pub ceiling: usize,
    /// Whether others come first.
    pub others: Others,
}

/// What is done for the other clients of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Others {
    /// They may wait twice as long as without us, and no longer.
    #[default]
    Protected,
    /// Nothing. For measurements.
    Ignored,
}

/// Chooses how many objects may be in flight.
#[derive(Clone, Debug)]
pub struct Pacer {
    limits: PacerLimits,
    limit: usize,
    blocked_until: Duration,
    window: Window,
    /// The best so far: at this many in flight, this many answers a second.
    best: Option<(usize, f64)>,
    step: Step,
    overloads: u64,
    guard: Guard,
}

/// What small reads took, and what they may take.
#[derive(Clone, Debug, Default)]
struct Guard {
    /// What a read takes without us; nothing when that was never measured.
    idle: Option<Duration>,
    measured: Duration,
    is_measuring: bool,
    recent: Vec<Duration>,
    /// What a read took that took too long, until it is known whether that is because of us.
    suspicion: Option<Duration>,
    /// Whether a read has ever taken too long because of us. From then on, more is tried in small steps only.
    has_acted: bool,
}

/// What the answers of a short time have in common.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    started: Duration,
    answers: usize,
    in_flight: usize,
}

/// What the pacer is trying at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Whether more is faster.
    Up,
    /// Whether less is as fast.
    Down,
    /// Nothing, for this many windows.
    Hold(u32),
}

/// A window is as long as this at least, so that chance does not decide.
const WINDOW: Duration = Duration::from_millis(200);
/// And it has at least this many answers for each that may be in flight.
const ANSWERS_PER_SLOT: usize = 3;
/// How much faster more has to be to be worth it.
const WORTH: f64 = 1.05;
/// How much slower less may be to be preferred.
const AS_GOOD: f64 = 0.97;
/// How many windows pass between trials.
const REST: u32 = 15;
/// Of so many reads the one in the middle is looked at.
const PROBES: usize = 5;
/// How many times as long as without us others may wait.
const PATIENCE: u32 = 2;
/// Below this nobody notices a difference.
const UNNOTICED: Duration = Duration::from_millis(5);
/// The guard goes no lower than this, or a migration beside a busy client would never end.
const FLOOR: usize = 4;
/// How often what a read takes without us is measured anew.
const MEASURE_AGAIN: Duration = Duration::from_secs(20);
/// And how long it stays as it is at least, whatever reads take.
const LEAST_BETWEEN: Duration = Duration::from_millis(500);

/// What others may wait, if they wait this long without us.
fn bearable(idle: Duration) -> Duration {
    (idle * PATIENCE).max(UNNOTICED)
}

impl Default for PacerLimits {
    fn default() -> Self {
        PacerLimits { first: 8, ceiling: 128, others: Others::Protected }
    }
}

impl Pacer {
    /// A pacer that knows nothing yet.
    pub fn new(limits: PacerLimits) -> Self {
        let limits = PacerLimits { ceiling: limits.ceiling.max(1), ..limits };
        Pacer {
            limits,
            limit: limits.first.clamp(1, limits.ceiling),
            blocked_until: Duration::ZERO,
            window: Window::default(),
            best: None,
            step: Step::Up,
            overloads: 0,
            guard: Guard::default(),
        }
    }

    /// How many may be in flight; none while it is measured what others wait without us.
    pub fn limit(&self) -> usize {
        if self.guard.is_measuring { 0 } else { self.limit }
    }

    /// Begins to measure what others wait without us. Until that is known, nothing may be sent but reads that measure it.
    pub fn measure(&mut self) {
        if self.limits.others == Others::Ignored {
            return;
        }
        self.guard = Guard { is_measuring: true, recent: Vec::new(), ..self.guard };
    }

    /// Whether small reads are of use.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_measuring || self.guard.idle.is_some()
    }

    /// A small read took this long while so many objects were in flight.
    pub fn probed(&mut self, took: Duration, in_flight: usize, now: Duration) {
        if self.guard.is_measuring && in_flight > 0 {
            return;
        }
        self.guard.recent.push(took);
        if self.guard.recent.len() < PROBES {
            return;
        }
        let mut recent = std::mem::take(&mut self.guard.recent);
        recent.sort_unstable();
        let middle = recent[PROBES / 2];
        if self.guard.is_measuring {
            return self.measured(middle, now);
        }
        let Some(idle) = self.guard.idle else { return };
        let age = now.saturating_sub(self.guard.measured);
        if middle > bearable(idle) && age > LEAST_BETWEEN && self.limit > FLOOR {
            // It may be because of us, or because others have become busier: without us it will be seen.
            self.guard.suspicion = Some(middle);
            self.measure();
        } else if age > MEASURE_AGAIN {
            self.measure();
        }
    }

    /// What others wait without us is known anew.
    fn measured(&mut self, idle: Duration, now: Duration) {
        self.guard.idle = Some(idle);
        self.guard.measured = now;
        self.guard.is_measuring = false;
        self.window = Window { started: now, ..Window::default() };
        let is_because_of_us = self.guard.suspicion.take().is_some_and(|waited| waited > bearable(idle));
        if is_because_of_us && self.limit > FLOOR {
            self.limit = (self.limit * 7 / 10).max(FLOOR);
            self.guard.has_acted = true;
            self.best = None;
            self.step = Step::Hold(REST);
        }
    }

    /// How often the server said that it has too much to do.
    pub fn overloads(&self) -> u64 {
        self.overloads
    }

    /// Until when nothing may be sent; nothing if something may be sent now.
    pub fn blocked_until(&self, now: Duration) -> Option<Duration> {
        (self.blocked_until > now).then_some(self.blocked_until)
    }

    /// Sets another ceiling, at once.
    pub fn set_ceiling(&mut self, ceiling: usize) {
        self.limits.ceiling = ceiling.max(1);
        self.limit = self.limit.min(self.limits.ceiling);
    }

    /// An answer came; so many were in flight, itself among them.
    pub fn answered(&mut self, in_flight: usize, now: Duration) {
        if self.guard.is_measuring {
            return;
        }
        self.window.answers += 1;
        self.window.in_flight += in_flight;
        let length = now.saturating_sub(self.window.started);
        if length < WINDOW || self.window.answers < ANSWERS_PER_SLOT * self.limit {
            return;
        }
        let window = std::mem::replace(&mut self.window, Window { started: now, ..Window::default() });
        // Where there was not enough to send, the server's speed was not measured.
        let was_full = window.in_flight * 10 >= window.answers * self.limit * 8;
        if was_full {
            self.learn(window.answers as f64 / length.as_secs_f64());
        }
    }

    /// The server has too much to do and asks to wait.
    pub fn overloaded(&mut self, wait: Duration, now: Duration) {
        self.overloads += 1;
        // Of the many that were in flight together, each brings this news once. It counts once.
        if self.blocked_until(now).is_none() {
            self.limit = (self.limit * 6 / 10).max(1);
            self.best = None;
            self.step = Step::Hold(REST);
            self.window = Window { started: now, ..Window::default() };
        }
        self.blocked_until = self.blocked_until.max(now + wait);
    }

    /// Takes the speed at the present limit into account and chooses the next limit.
    fn learn(&mut self, rate: f64) {
        let (best_limit, best_rate) = *self.best.get_or_insert((self.limit, rate));
        self.step = match self.step {
            Step::Up if self.limit == best_limit || rate > best_rate * WORTH => self.climb(rate),
            Step::Down if rate >= best_rate * AS_GOOD => {
                self.best = Some((self.limit, rate));
                Step::Hold(REST)
            }
            Step::Up | Step::Down => {
                self.limit = best_limit.min(self.limits.ceiling);
                Step::Hold(REST)
            }
            Step::Hold(0) => self.try_another(rate),
            Step::Hold(rest) => Step::Hold(rest - 1),
        };
    }

    fn climb(&mut self, rate: f64) -> Step {
        self.best = Some((self.limit, rate));
        let step = if self.guard.has_acted { self.limit.div_ceil(8) } else { self.limit.div_ceil(2) };
        let next = (self.limit + step).min(self.limits.ceiling);
        if next == self.limit {
            return Step::Hold(REST);
        }
        self.limit = next;
        Step::Up
    }

    /// The server may have become faster or slower since. More is tried first, less when more is not allowed or the last
    /// trial upwards ended where this one would: both are cheap, because a bad one lasts one window.
    fn try_another(&mut self, rate: f64) -> Step {
        let slower_than_before = self.best.is_some_and(|(_, best)| rate < best * 0.8);
        self.best = Some((self.limit, rate));
        let down = (self.limit * 3 / 4).max(1);
        if (slower_than_before || self.limit == self.limits.ceiling) && down < self.limit {
            self.limit = down;
            return Step::Down;
        }
        self.climb(rate)
    }
}

#[cfg(test)]
mod tests {
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
        let mut pacer = Pacer::new(PacerLimits::default());
        pacer.measure();
        let (end, half) = (Duration::from_secs(seconds), Duration::from_secs(seconds / 2));
        let (mut now, mut next_read) = (Duration::ZERO, Duration::ZERO);
        let (mut answers, mut reads) = (0u64, Vec::new());
        while now < end {
            let in_flight = pacer.limit();
            if now >= next_read || in_flight == 0 {
                let took = read(in_flight);
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
            now += Duration::from_secs_f64(1.0 / server.rate(in_flight));
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

    #[test]
    fn a_server_that_others_keep_busy_is_measured_anew_and_the_work_goes_on() {
        let server = Server { latency: 0.01, capacity: 2_000.0 };
        let mut pacer = Pacer::new(PacerLimits::default());
        pacer.measure();
        for _ in 0..PROBES {
            pacer.probed(Duration::from_millis(2), 0, Duration::ZERO);
        }
        // From now on every read takes five times as long, with us and without us.
        let slow = Duration::from_millis(10);
        let later = Duration::from_secs(60);
        for number in 1..600u64 {
            pacer.probed(slow, pacer.limit(), Duration::from_millis(100 * number));
        }
        assert_eq!(pacer.limit.max(8), pacer.limit, "it is not because of us");
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
}
