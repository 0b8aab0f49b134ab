//! A simulated process: its own clocks and random numbers, and tasks that can be suspended and crash.
//!
//! Time is tokio's, so a simulation runs on a runtime with one thread whose time is paused. Nothing here is used in
//! production, where no task belongs to a simulated process.

use jiff::{SignedDuration, Timestamp};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Process>>> = const { RefCell::new(None) };
}

/// The time of day when a simulation begins, by a clock that is right.
const BEGINNING: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// A simulated process on a machine of its own.
#[derive(Debug)]
pub struct Process {
    started: Instant,
    uptime: Duration,
    state: Mutex<State>,
    random: Mutex<StdRng>,
    outbound: OnceLock<Arc<dyn Outbound>>,
}

/// The network that a simulated process sends HTTP requests to, instead of opening sockets.
pub trait Outbound: fmt::Debug + Send + Sync {
    /// Posts a body to a URL, and returns the status code and the body of the response.
    fn post(&self, url: &str, body: Vec<u8>) -> OutboundResponse;
}

/// The status code and the body of a response, or why there is none.
pub type OutboundResponse = Pin<Box<dyn Future<Output = Result<(u16, Vec<u8>), String>> + Send>>;

#[derive(Debug)]
struct State {
    life: Life,
    /// When it was suspended, if it is now.
    since: Option<Instant>,
    /// When it was resumed, and for how long it had been suspended.
    suspensions: Vec<(Instant, Duration)>,
    wall_clock: WallClock,
    /// Tasks that were woken while the process was suspended.
    suspended: Vec<Waker>,
    tasks: Vec<AbortHandle>,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Running,
    Suspended,
    Crashed,
}

/// The clock for the time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WallClock {
    /// It goes, and is this much ahead.
    Ahead(SignedDuration),
    /// It stands still.
    StandsAt(Timestamp),
}

impl Process {
    /// A process that starts now, on a machine that has been up for so long.
    pub fn new(seed: u64, uptime: Duration, wall_clock: WallClock) -> Arc<Self> {
        let state = State {
            life: Life::Running,
            since: None,
            suspensions: Vec::new(),
            wall_clock,
            suspended: Vec::new(),
            tasks: Vec::new(),
        };
        Arc::new(Process {
            started: Instant::now(),
            uptime,
            state: Mutex::new(state),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            outbound: OnceLock::new(),
        })
    }

    /// Sets the network that this process sends HTTP requests to. The first one stays.
    pub fn set_outbound(&self, network: Arc<dyn Outbound>) {
        let _ = self.outbound.set(network);
    }

    /// The network that this process sends HTTP requests to, if it has one.
    pub fn outbound(&self) -> Option<&Arc<dyn Outbound>> {
        self.outbound.get()
    }

    /// The process that the present task belongs to, if it is simulated.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Spawns a task that belongs to this process.
    pub fn spawn<F>(self: &Arc<Self>, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        // In a box it is moved once: the future of a request has kilobytes.
        let future = Box::pin(future);
        let handle = tokio::spawn(self.enter(|| crate::inherit(future)));
        let mut state = self.state();
        if state.tasks.len() >= 256 {
            state.tasks.retain(|task| !task.is_finished());
        }
        state.tasks.push(handle.abort_handle());
        handle
    }

    /// Runs something as this process.
    pub fn enter<T>(self: &Arc<Self>, run: impl FnOnce() -> T) -> T {
        let _entered = Entered { before: CURRENT.replace(Some(self.clone())) };
        run()
    }

    /// Polls a future of this process, unless the process does not run.
    pub(crate) fn poll<T>(
        self: &Arc<Self>,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let mut state = self.state();
        match state.life {
            Life::Running => {}
            Life::Suspended => {
                state.suspended.push(context.waker().clone());
                return Poll::Pending;
            }
            Life::Crashed => return Poll::Pending,
        }
        drop(state);
        self.enter(|| poll(context))
    }

    /// Suspends the process: none of its tasks runs until it is resumed.
    pub fn suspend(&self) {
        let mut state = self.state();
        if state.life == Life::Running {
            state.life = Life::Suspended;
            state.since = Some(Instant::now());
        }
    }

    /// Resumes the process after it was suspended.
    pub fn resume(&self) {
        let mut state = self.state();
        if state.life == Life::Suspended {
            state.life = Life::Running;
            let now = Instant::now();
            let suspension = state.since.take().map(|since| (now, now - since));
            state.suspensions.extend(suspension);
            state.suspended.drain(..).for_each(Waker::wake);
        }
    }

    /// Ends the process at once: none of its tasks does anything any more.
    pub fn crash(&self) {
        let mut state = self.state();
        state.life = Life::Crashed;
        state.suspended.clear();
        let tasks = std::mem::take(&mut state.tasks);
        drop(state);
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// Whether it has run for so long, without having been suspended for more than half of it.
    pub fn ran_for(&self, time: Duration) -> bool {
        let state = self.state();
        let mut long = state.suspensions.iter().filter(|(_, length)| *length > time / 2);
        self.started.elapsed() >= time && long.all(|(resumed, _)| resumed.elapsed() >= time)
    }

    /// Whether the process was ended.
    pub fn has_crashed(&self) -> bool {
        self.state().life == Life::Crashed
    }

    /// Sets the clock for the time of day.
    pub fn set_wall_clock(&self, wall_clock: WallClock) {
        self.state().wall_clock = wall_clock;
    }

    /// The time of day by this process's clock.
    pub fn time_of_day(&self) -> Timestamp {
        match self.state().wall_clock {
            WallClock::Ahead(ahead) => right_time_of_day().saturating_add(ahead).unwrap_or(BEGINNING),
            WallClock::StandsAt(time) => time,
        }
    }

    /// The time since its machine was booted.
    pub(crate) fn since_boot(&self) -> Duration {
        self.uptime + self.started.elapsed()
    }

    pub(crate) fn random(&self) -> MutexGuard<'_, StdRng> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The present task runs as a process until this is dropped, even if it panics.
struct Entered {
    before: Option<Arc<Process>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
    }
}

thread_local! {
    static EPOCH: RefCell<Option<(Instant, Duration)>> = const { RefCell::new(None) };
}

/// Begins a simulation on this thread, as if it had begun so long ago: the right time of day is a fixed one then.
pub fn begin(ago: Duration) {
    EPOCH.set(Some((Instant::now(), ago)));
}

/// The time since the simulation of this thread began.
pub fn elapsed() -> Duration {
    EPOCH.with_borrow(|epoch| epoch.map(|(epoch, ago)| ago + epoch.elapsed()).unwrap_or_default())
}

/// The time of day by a clock that is right.
pub fn right_time_of_day() -> Timestamp {
    BEGINNING + elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Moment, now, random, spawn, uuid};
    use rand::Rng;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const RIGHT: WallClock = WallClock::Ahead(SignedDuration::ZERO);

    #[tokio::test(start_paused = true)]
    async fn one_seed_gives_the_same_random_numbers() {
        let draw = |seed| {
            let process = Process::new(seed, Duration::ZERO, RIGHT);
            process.enter(|| (uuid(), random().random_range(0..u64::MAX)))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(Process::current().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_of_a_process_have_its_clocks() {
        begin(Duration::ZERO);
        let ahead = SignedDuration::from_hours(2);
        let process = Process::new(1, Duration::from_secs(500), WallClock::Ahead(ahead));
        let nested = process.spawn(async { spawn(async { (now(), crate::since_boot()) }).await.unwrap() });
        let (time, uptime) = nested.await.unwrap();
        assert_eq!(time, BEGINNING + ahead);
        assert_eq!(uptime, Duration::from_secs(500));
        process.set_wall_clock(WallClock::StandsAt(BEGINNING));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(process.enter(now), BEGINNING);
        assert_eq!(process.enter(crate::since_boot), Duration::from_secs(560));
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspended_process_does_nothing_and_notices_that_time_has_passed() {
        let process = Process::new(1, Duration::ZERO, RIGHT);
        let steps = Arc::new(AtomicUsize::new(0));
        let counted = steps.clone();
        process.spawn(async move {
            let began = Moment::now();
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            assert!(began.elapsed() >= Duration::from_secs(100));
        });
        tokio::time::sleep(Duration::from_millis(2500)).await;
        process.suspend();
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(steps.load(Ordering::Relaxed), 2);
        process.resume();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(steps.load(Ordering::Relaxed), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crashed_process_never_runs_again() {
        let process = Process::new(1, Duration::ZERO, RIGHT);
        let steps = Arc::new(AtomicUsize::new(0));
        let counted = steps.clone();
        process.spawn(async move {
            spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        tokio::time::sleep(Duration::from_millis(2500)).await;
        process.crash();
        process.resume();
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(steps.load(Ordering::Relaxed), 2);
        assert!(process.has_crashed());
    }
}
