//! Aggregated API servers: APIServices, requests that are passed on, discovery.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;
mod garden;
mod local;
mod proxy;
