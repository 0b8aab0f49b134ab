//! Shared helpers of tests: processes (also ones that abort at a log event), waiting with a time limit, and, with the feature `server`,
//! Restow API servers on port 0, an etcd, HTTP clients, and builders of objects.
//!
//! For tests only. Without the feature `server` it depends on no other crate of the workspace, so that every crate can use it
//! without building an API server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod abort;
#[cfg(feature = "server")]
mod api_client;
#[cfg(feature = "server")]
mod cluster;
#[cfg(feature = "server")]
mod credentials;
#[cfg(feature = "server")]
mod etcd;
mod eventually;
#[cfg(feature = "server")]
mod objects;
mod process;
#[cfg(feature = "server")]
mod raw_client;
#[cfg(feature = "server")]
mod server;
mod skip;

pub use abort::{LogEvent, abort_at, test_in_a_process};
#[cfg(feature = "server")]
pub use api_client::ApiClient;
#[cfg(feature = "server")]
pub use cluster::{Cluster, On};
#[cfg(feature = "server")]
pub use credentials::Credentials;
#[cfg(feature = "server")]
pub use etcd::{LocalEtcd, etcd_store, start_etcd};
pub use eventually::{eventually, eventually_blocking, eventually_some};
#[cfg(feature = "server")]
pub use objects::{Crd, api, crds, namespaced_api, object, preserve_unknown_fields};
pub use process::{Process, Signal, TIMEOUT, drain, next_line, output, wait};
#[cfg(feature = "server")]
pub use raw_client::{RawClient, RawResponse};
#[cfg(feature = "server")]
pub use server::{Pki, Server, kubectl_command, restow_binary, restow_output, run};
pub use skip::skip;
