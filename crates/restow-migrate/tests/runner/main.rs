//! The runner against simulated servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod interruptions;
mod passes;
mod proof;
mod server;
