//! Attacks on real servers: by an anonymous client, by a user without permissions, and by a user with permissions in one
//! namespace. Each test is one attack; docs/security.md lists them.

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
