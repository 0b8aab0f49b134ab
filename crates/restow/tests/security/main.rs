//! Attacks on real servers: a stranger with nothing but the address, a client without rights, and one with rights in one
//! namespace. Each test is one way in that was tried; docs/security.md lists them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission_rules;
mod authorization;
mod connections;
mod corrupt_objects;
mod data_directory;
mod http_connection;
mod least_privilege;
mod malformed_requests;
mod request_limits;
mod stored_types;
