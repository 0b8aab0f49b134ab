//! Real clients against real servers: the binary, on each store, used with kubectl.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod cluster;
mod kubectl;
mod outage;
mod start_up;
