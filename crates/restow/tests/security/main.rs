//! Attacks on real servers: a stranger with nothing but the address, a client without rights, and one with rights in one
//! namespace. Each test is one way in that was tried; docs/security.md lists them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission_rules;
mod asking;
mod authorization;
mod bounded_work;
// The clients suite uses more of it.
#[allow(dead_code)]
#[path = "../clients/cluster.rs"]
mod cluster;
mod connections;
mod data_directory;
mod least_privilege;
mod odd_requests;
mod raw;
mod stored_types;
mod talk;
mod unreadable_objects;
