//! What the tests of all crates share: saying that a test was skipped, and processes that are not waited for without end.
//!
//! For tests alone. It knows no other crate of the workspace, so that each can use it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod process;
mod skip;

pub use process::{PATIENCE, drain, next_line, output, wait};
pub use skip::skip;
