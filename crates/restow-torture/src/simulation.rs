//! Runs a plan in a thread of its own time, and reports what was found.

use crate::checks::Violation;
use crate::plan::{Plan, Shape};
use crate::world::{self, Prepared};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::AddAssign;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;
use tokio::runtime::Builder;

/// What a run found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The rule that was broken first, if one was.
    pub violation: Option<Violation>,
    /// A digest of everything that was stored, and when. Two runs of one plan have the same.
    pub digest: u64,
    /// What happened, if it was to be told.
    pub story: Vec<StoryLine>,
    /// How much happened.
    pub statistics: Statistics,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoryLine {
    /// When, since the beginning.
    pub at: Duration,
    /// What.
    pub words: String,
}

/// Whether a run tells what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// It only tells what it found.
    Nothing,
    /// It tells everything.
    Story,
}

/// How much happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Revisions of the store that were checked.
    pub revisions: u64,
    /// Writes that users asked for.
    pub operations: u64,
    /// Reads of users that were checked.
    pub reads: u64,
    /// Events of plans: crashes, pauses, faults, changes.
    pub events: u64,
    /// Crashes of servers and controllers.
    pub crashes: u64,
    /// Times that a server or a controller was suspended.
    pub suspensions: u64,
    /// Migrations that succeeded.
    pub migrations: u64,
    /// Simulated time.
    pub simulated: Duration,
}

impl AddAssign<&Statistics> for Statistics {
    fn add_assign(&mut self, other: &Statistics) {
        self.revisions += other.revisions;
        self.operations += other.operations;
        self.reads += other.reads;
        self.events += other.events;
        self.crashes += other.crashes;
        self.suspensions += other.suspensions;
        self.migrations += other.migrations;
        self.simulated += other.simulated;
    }
}

/// Whether two runs of one plan are equal to the last byte, as this crate was built.
pub fn repeats_exactly() -> bool {
    cfg!(tokio_unstable)
}

thread_local! {
    /// What panicked in the simulation of this thread; `None` outside of one.
    static PANIC: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs a plan. It takes no real time but that of its computations.
pub fn run(plan: &Plan, telling: Telling) -> Report {
    let prepared = prepared(plan.shape);
    record_panics();
    PANIC.set(Some(Vec::new()));
    let report = simulate(plan.seed, world::live(plan, telling, prepared));
    PANIC.set(None);
    report
}

/// The store that worlds of this shape begin with. It is prepared once, always in the same way.
fn prepared(shape: Shape) -> Prepared {
    static PREPARED: Mutex<BTreeMap<Shape, Prepared>> = Mutex::new(BTreeMap::new());
    // Users write only when everything is prepared, and another controller changes nothing.
    let shape = Shape { users: 0, controllers: 1, ..shape };
    let mut prepared = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
    prepared.entry(shape).or_insert_with(|| simulate(0, world::prepare(shape))).clone()
}

/// Runs something in simulated time on a thread of its own.
fn simulate<T>(seed: u64, life: impl Future<Output = T>) -> T {
    fastrand::seed(seed);
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    // Without it, tokio wakes those who wait for the same thing in an order of its own.
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    let runtime = match builder.build() {
        Ok(runtime) => runtime,
        // It needs no resources of the system.
        Err(error) => unreachable!("a runtime without I/O: {error}"),
    };
    runtime.block_on(life)
}

/// What has panicked so far.
pub(crate) fn panics() -> Vec<String> {
    PANIC.with_borrow(|panics| panics.clone().unwrap_or_default())
}

/// Takes up panics of simulated tasks, which tokio would swallow.
fn record_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let taken = PANIC.with_borrow_mut(|panics| match panics {
                Some(panics) => {
                    panics.push(panic.to_string());
                    true
                }
                None => false,
            });
            if !taken {
                before(panic);
            }
        }));
    });
}
