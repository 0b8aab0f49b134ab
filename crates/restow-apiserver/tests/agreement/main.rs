//! Servers in one process on one store in memory: what they report and vote for, how they are shut out and come back, and what
//! is collected after them. Real processes on a real etcd are in the tests of the binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;
mod gates;
mod guards;
mod healing;
mod reports;
mod stale;
mod unread;
mod upstream;
mod votes;
