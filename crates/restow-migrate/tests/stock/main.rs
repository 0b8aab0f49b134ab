//! The migrator against a stock cluster, given by `RESTOW_TEST_KUBECONFIG`. Each test has a CRD of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod controller;
mod fixture;
mod migration;
