//! How many objects may be in flight at once.
//!
//! More requests at once finish sooner until the server is busy; beyond that point they only wait for each other, and
//! everybody else's requests wait with them. The pacer looks for that point: it raises the number as long as that makes
//! things noticeably faster, goes back when it does not, and now and then tries again in both directions. When the server
//! says that it has too much to do, the number drops at once, and nothing is sent for as long as the server asks.
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

impl Default for PacerLimits {
    fn default() -> Self {
        PacerLimits { first: 8, ceiling: 128 }
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
        }
    }

    /// How many may be in flight.
    pub fn limit(&self) -> usize {
        self.limit
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
        let next = (self.limit + self.limit.div_ceil(2)).min(self.limits.ceiling);
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

    #[test]
    fn an_overloaded_server_gets_less_and_time() {
        let mut pacer = Pacer::new(PacerLimits { first: 40, ceiling: 64 });
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
        let mut pacer = Pacer::new(PacerLimits { first: 8, ceiling: 10 });
        Server { latency: 1.0, capacity: 1_000.0 }.run(&mut pacer, Duration::ZERO, 60);
        assert!(pacer.limit() <= 10);
        pacer.set_ceiling(3);
        assert_eq!(pacer.limit(), 3);
    }
}
