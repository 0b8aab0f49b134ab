//! Stores whose files are corrupt, truncated or missing: either everything that was acknowledged is there, or the store is
//! refused with the reason, and no file is changed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod fixture;
mod repair;
mod upgrade;
mod witness;
