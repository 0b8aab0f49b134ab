//! Real clients against real servers: the binary, on each store, used with kubectl, kube-rs and the Python client.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access;
mod admission;
mod admission_beneath;
mod admission_policies;
mod applying;
mod bad_input;
// The security suite uses more of it.
#[allow(dead_code)]
mod cluster;
mod conversion;
mod custom;
mod custom_flips;
mod custom_real;
mod exit_codes;
mod kube_rs;
mod kubectl;
mod looking;
mod migration;
mod outage;
mod python;
mod start_up;
mod usual_life;
mod verifying;
mod webhook;
