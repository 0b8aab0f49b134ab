//! Several `restow serve` on one real etcd: storage versions during upgrades, rollbacks, crashes and pauses. Afterwards the
//! history is read from etcd itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod aggregated;
mod clocks;
mod custom;
mod fleet;
mod foreign_store;
mod gates;
mod history;
mod leftovers;
mod one_owner;
mod restored;
mod rolling;
mod voting;
mod whereabouts;
mod writers;
mod wrong_clock;
