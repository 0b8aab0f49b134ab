//! Aggregated API servers: APIServices, requests that are passed on, discovery.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fixture;
mod front_proxy;
mod garden;
mod local;
mod namespaces;
mod proxy;
mod store_failures;
