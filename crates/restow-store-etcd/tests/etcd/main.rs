//! Tests of the etcd store against real servers, with real faults.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod auth;
mod basics;
mod crash;
mod endpoints;
mod fake;
mod faults;
mod gateway;
mod leases;
mod proxy;
mod retries;
mod rollback;
mod support;
mod tls;
mod watches;
