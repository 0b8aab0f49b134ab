//! Runs a plan in a thread of its own time, and reports what was found.

use crate::panics;
use crate::plan::{Plan, Shape};
use crate::story::Telling;
use crate::world::{self, Prepared, Report};

use std::collections::BTreeMap;
use std::future::Future;

use std::sync::{Mutex, PoisonError};

use tokio::runtime::Builder;

/// Whether two runs of one plan are equal to the last byte, as this crate was built.
pub fn repeats_exactly() -> bool {
    cfg!(tokio_unstable)
}

/// Runs a plan. It takes no real time but that of its computations.
pub fn run(plan: &Plan, telling: Telling) -> Report {
    let prepared = prepared(plan.shape);
    panics::recorded(|| simulate(plan.seed, world::live(plan, telling, prepared)))
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
