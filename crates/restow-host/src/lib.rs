//! What a process takes from its machine: time, random numbers and tasks.
//!
//! On a real machine these are the system's clocks, the system's random numbers and tokio's tasks. A task of a
//! [simulated process](simulated::Process) gets that process's own clocks and random numbers, which follow from one seed,
//! and the tasks that it spawns belong to the same process: they stop when it is suspended, and end when it crashes. So the
//! code that runs in a simulation is the code that runs in production. Code that is simulated must take nothing of this
//! from anywhere else.

mod clock;
mod random;
pub mod simulated;
mod task;

pub use clock::{Moment, SteadyClock, now, since_boot};
pub use random::{Random, random, uuid};
pub use task::{inherit, run_blocking, spawn};
