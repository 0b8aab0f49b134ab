//! Several `restow serve` on one real etcd: storage versions during upgrades, rollbacks, crashes and pauses. Afterwards the
//! history is read from etcd itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod aggregated;
mod clock_skew;
mod custom_resources;
mod etcd_history;
mod etcd_lost_at_start;
mod etcd_restore;
mod feature_gates;
mod fleet;
mod foreign_store;
mod kubernetes_service;
mod rolling_upgrade;
mod stale_reports;
mod unique_allocations;
mod voting;
mod writers;
mod wrong_clock;
