//! The pacer: how many objects may be in flight at once.
//!
//! More concurrent requests are faster until the server is busy; beyond that point they only wait for each other, and delay
//! the requests of other clients. The pacer searches for that point: it tries more for a moment, stays there if that was
//! noticeably faster, and goes back if not. If the server sends a 429, the number drops at once, and nothing is sent for
//! the requested time.
//!
//! It also protects other clients: a small read is sent now and then, as any of them could send it ([`Pacer::probed`]). Its
//! latency without requests of our own is the baseline, which is measured soon after the start and again from time to time.
//! If reads take more than twice as long, the number is reduced step by step until they do not, whatever that costs in
//! speed. If that does not help, other clients may be busier than before, and the baseline is measured again. Nothing may
//! be sent meanwhile, so this is rare.
//!
//! Time is an argument: the time since the run began.

use std::time::Duration;

/// The limits of the pacer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacerLimits {
    /// The initial number.
    pub first: usize,
    /// The most.
    pub ceiling: usize,
    /// Whether others come first.
    pub others: OtherClients,
}

/// Whether other clients are protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherClients {
    /// Their latency may double, and no more.
    #[default]
    Protected,
    /// They are ignored: as fast as possible.
    Ignored,
}

/// The initial number if other clients are ignored, which keeps any server busy.
const HURRY_IN_FLIGHT: usize = 32;

/// Chooses how many objects may be in flight.
#[derive(Clone, Debug)]
pub struct Pacer {
    limits: PacerLimits,
    limit: usize,
    blocked_until: Duration,
    window: RateWindow,
    stage: Stage,
    /// Whether a higher number has always been faster so far. Until that changes, it grows in large steps.
    is_young: bool,
    overloads: u64,
    guard: LatencyGuard,
}

/// The measured latency of small reads, and its limit.
#[derive(Clone, Debug, Default)]
struct LatencyGuard {
    is_on: bool,
    /// The baseline latency; `None` if it was never measured.
    idle: Option<Duration>,
    measured: Duration,
    is_measuring: bool,
    recent: Vec<Duration>,
    others: ReadLatency,
    /// How many samples in a row were above the limit.
    in_a_row: u32,
}

/// The latency of other clients, relative to the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReadLatency {
    /// Half of the limit or less.
    Low,
    /// Within the limit.
    #[default]
    Acceptable,
    /// At the limit, or slightly above: measurements vary.
    AtLimit,
    /// Above the limit.
    TooHigh,
}

/// The responses of a short time.
#[derive(Clone, Copy, Debug, Default)]
struct RateWindow {
    started: Duration,
    answers: usize,
    in_flight: usize,
}

/// The state at the current limit.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    /// During a trial: the number before it, and its responses per second.
    trial: Option<(usize, f64)>,
    windows: u32,
    answers: usize,
    time: Duration,
}

/// The minimum duration of a window, so that results are not random.
const WINDOW: Duration = Duration::from_millis(200);
/// The minimum number of responses in a window, per object in flight.
const ANSWERS_PER_SLOT: usize = 3;
/// The speedup that makes a higher number worthwhile.
const MIN_SPEEDUP: f64 = 1.03;
/// The same while the latency of other clients is low: it is enough that more is not measurably slower.
const MIN_SPEEDUP_WITH_HEADROOM: f64 = 0.97;
/// How many windows pass between trials.
const WINDOWS_BETWEEN_TRIALS: u32 = 6;
/// How many windows a trial takes.
const WINDOWS_PER_TRIAL: u32 = 3;
/// The number of reads in a sample, of which the median counts.
const READS_PER_SAMPLE: usize = 9;
/// How many times the baseline latency is acceptable.
const MAX_SLOWDOWN: u32 = 2;
/// A sample that exceeds the limit by this factor counts at once.
const TOLERANCE: f64 = 1.2;
/// This many samples in a row count although they exceed the limit by less.
const CONFIRMATIONS: u32 = 3;
/// Latencies below this are acceptable in any case.
const NEGLIGIBLE: Duration = Duration::from_millis(5);
/// The latency guard goes no lower, or a migration beside a busy client would never end.
const MIN_IN_FLIGHT: usize = 2;
/// When the baseline is first measured. The first objects do not wait for that.
const MEASURE_FIRST: Duration = Duration::from_millis(500);
/// When the baseline is measured again: the server may have been busy the first time, because of the very change that
/// causes the migration. After that it is measured less and less often.
const MEASURE_SOON: Duration = Duration::from_secs(2);
/// The longest time between two measurements.
const MEASURE_AGAIN: Duration = Duration::from_secs(20);

impl ReadLatency {
    /// Classifies a latency, given the baseline.
    fn of(wait: Duration, idle: Duration) -> Self {
        let acceptable = (idle * MAX_SLOWDOWN).max(NEGLIGIBLE);
        match wait {
            _ if 2 * wait <= acceptable => ReadLatency::Low,
            _ if wait <= acceptable => ReadLatency::Acceptable,
            _ if wait <= acceptable.mul_f64(TOLERANCE) => ReadLatency::AtLimit,
            _ => ReadLatency::TooHigh,
        }
    }
}

impl Default for PacerLimits {
    fn default() -> Self {
        PacerLimits { first: 4, ceiling: 128, others: OtherClients::Protected }
    }
}

impl PacerLimits {
    /// As fast as possible, whatever the latency of other clients. 429 responses still count.
    pub fn in_a_hurry() -> Self {
        PacerLimits { first: HURRY_IN_FLIGHT, others: OtherClients::Ignored, ..PacerLimits::default() }
    }
}

impl Pacer {
    /// A new pacer.
    pub fn new(limits: PacerLimits) -> Self {
        let limits = PacerLimits { ceiling: limits.ceiling.max(1), ..limits };
        Pacer {
            limits,
            limit: limits.first.clamp(1, limits.ceiling),
            blocked_until: Duration::ZERO,
            window: RateWindow::default(),
            stage: Stage::default(),
            is_young: true,
            overloads: 0,
            guard: LatencyGuard::default(),
        }
    }

    /// How many may be in flight; zero while the baseline is measured.
    pub fn limit(&self) -> usize {
        if self.guard.is_measuring { 0 } else { self.limit }
    }

    /// Starts to protect other clients, if configured.
    pub fn protect(&mut self) {
        self.guard.is_on = self.limits.others == OtherClients::Protected;
    }

    /// Whether small reads are of use.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_on
    }

    /// Starts to measure the baseline. Until that is done, only the measuring reads may be sent.
    fn measure(&mut self) {
        self.guard.is_measuring = true;
        self.guard.recent.clear();
    }

    /// Records the latency of a small read, with this number of objects in flight.
    pub fn probed(&mut self, took: Duration, in_flight: usize, now: Duration) {
        if self.guard.is_measuring && in_flight > 0 {
            return;
        }
        self.guard.recent.push(took);
        if self.guard.recent.len() < READS_PER_SAMPLE {
            return;
        }
        let mut recent = std::mem::take(&mut self.guard.recent);
        recent.sort_unstable();
        let middle = recent[READS_PER_SAMPLE / 2];
        if self.guard.is_measuring {
            self.guard.idle = Some(middle);
            self.guard.measured = now;
            self.guard.is_measuring = false;
            self.window = RateWindow { started: now, ..RateWindow::default() };
            return;
        }
        let Some(idle) = self.guard.idle else {
            if now > MEASURE_FIRST {
                self.measure();
            }
            return;
        };
        self.guard.others = ReadLatency::of(middle, idle);
        self.guard.in_a_row = match self.guard.others {
            ReadLatency::Low | ReadLatency::Acceptable => 0,
            ReadLatency::AtLimit => self.guard.in_a_row + 1,
            ReadLatency::TooHigh => CONFIRMATIONS,
        };
        let is_too_long = self.guard.in_a_row >= CONFIRMATIONS;
        if is_too_long && self.limit > MIN_IN_FLIGHT {
            self.begin((self.limit * 4 / 5).max(MIN_IN_FLIGHT), None, now);
            self.is_young = false;
            self.guard.in_a_row = 0;
        }
        let is_in_vain = is_too_long && self.limit == MIN_IN_FLIGHT;
        let measure_after = if is_in_vain { MEASURE_SOON } else { now.clamp(2 * MEASURE_SOON, 2 * MEASURE_AGAIN) / 2 };
        if now.saturating_sub(self.guard.measured) > measure_after {
            self.measure();
        }
    }

    /// How many 429 responses there were.
    pub fn overloads(&self) -> u64 {
        self.overloads
    }

    /// Until when nothing may be sent; `None` if something may be sent now.
    pub fn blocked_until(&self, now: Duration) -> Option<Duration> {
        (self.blocked_until > now).then_some(self.blocked_until)
    }

    /// Sets another ceiling.
    pub fn set_ceiling(&mut self, ceiling: usize) {
        self.limits.ceiling = ceiling.max(1);
        self.limit = self.limit.min(self.limits.ceiling);
    }

    /// Records a response; `in_flight` includes its request.
    pub fn answered(&mut self, in_flight: usize, now: Duration) {
        // More is tried only when the baseline is known.
        if self.guard.is_measuring || self.guard.is_on && self.guard.idle.is_none() {
            return;
        }
        self.window.answers += 1;
        self.window.in_flight += in_flight;
        let length = now.saturating_sub(self.window.started);
        if length < WINDOW || self.window.answers < ANSWERS_PER_SLOT * self.limit {
            return;
        }
        let window = std::mem::replace(&mut self.window, RateWindow { started: now, ..RateWindow::default() });
        // If there were too few requests, the server's speed was not measured.
        let was_full = window.in_flight * 10 >= window.answers * self.limit * 8;
        if was_full {
            self.stage.windows += 1;
            self.stage.answers += window.answers;
            self.stage.time += length;
            self.learn(now);
        }
    }

    /// The server is overloaded and asks to wait.
    pub fn overloaded(&mut self, wait: Duration, now: Duration) {
        self.overloads += 1;
        // Requests in flight together get the same news. It counts once.
        if self.blocked_until(now).is_none() {
            self.begin((self.limit * 6 / 10).max(1), None, now);
            self.is_young = false;
        }
        self.blocked_until = self.blocked_until.max(now + wait);
    }

    /// Continues with another limit.
    fn begin(&mut self, limit: usize, trial: Option<(usize, f64)>, now: Duration) {
        self.limit = limit.min(self.limits.ceiling);
        self.stage = Stage { trial, ..Stage::default() };
        self.window = RateWindow { started: now, ..RateWindow::default() };
    }

    /// Chooses the next limit, once the speed at the current one is known well enough.
    fn learn(&mut self, now: Duration) {
        let stage = self.stage;
        let wanted = match (self.is_young, stage.trial) {
            (true, _) => 1,
            (false, Some(_)) => WINDOWS_PER_TRIAL,
            (false, None) => WINDOWS_BETWEEN_TRIALS,
        };
        if stage.windows < wanted {
            return;
        }
        let rate = stage.answers as f64 / stage.time.as_secs_f64();
        let worth = if self.guard.others == ReadLatency::Low { MIN_SPEEDUP_WITH_HEADROOM } else { MIN_SPEEDUP };
        if let Some((before, rate_before)) = stage.trial
            && rate < rate_before * worth
        {
            self.is_young = false;
            return self.begin(before, None, now);
        }
        if matches!(self.guard.others, ReadLatency::AtLimit | ReadLatency::TooHigh) {
            return self.begin(self.limit, None, now);
        }
        // It was worthwhile, or nothing was tried yet: try more.
        let step = if self.is_young { self.limit.div_ceil(2) } else { self.limit.div_ceil(8) };
        let next = (self.limit + step).min(self.limits.ceiling);
        let trial = (next > self.limit).then_some((self.limit, rate));
        self.begin(next, trial, now);
    }
}

#[cfg(test)]
mod tests;
