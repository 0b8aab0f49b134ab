//! Servers in one process on one store in memory: their reports and votes, how they are fenced and join again, and how
//! they are collected. Tests with real processes on a real etcd are those of the binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod client_reports;
mod fixture;
mod gates;
mod guards;
mod healing;
mod reports;
mod stale;
mod unread;
mod upstream;
mod votes;
