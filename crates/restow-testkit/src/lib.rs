//! What the tests of all crates share: reporting that a test was skipped, waiting for processes with a bound, and processes
//! that abort at a log event.
//!
//! For tests alone. It knows no other crate of the workspace, so that each can use it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod abort;
mod process;
mod skip;

pub use abort::{LogEvent, abort_at, test_in_a_process};
pub use process::{PATIENCE, drain, next_line, output, wait};
pub use skip::skip;
