//! Reports the storage versions of an aggregated API server to the main API server, through its public API.
//!
//! A server built with `restow-apiserver` has its own store, but its resources are part of a cluster: upgrade tools and the
//! migrator read storage versions from the main API server. [`MainServer`] takes an identity lease there, renews it, and
//! reports each resource in its StorageVersion before the server writes it.
//!
//! ```no_run
//! # use restow_aggregated::MainServer;
//! # async fn connect(config: &mut restow_apiserver::ServerConfig) -> Result<(), Box<dyn std::error::Error>> {
//! let main = MainServer::connect("main-kubeconfig".as_ref(), "garden", &config.agreement).await?;
//! config.agreement.upstream = Some(main);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees and limits
//!
//! - A server writes a resource only after its report is stored at the main server.
//! - A server whose lease there was deleted, or could not be renewed in time by its own clock, stops writing, takes a new lease,
//!   reports again and continues.
//! - Two instances on one store are fenced from each other by that store, as always.
//! - A write that was in flight to the server's own store when the server was paused *can* be committed after the main server's
//!   collector has removed its entry, because no transaction spans the two stores. The window is that one write. After a
//!   migration of such a resource, check again.

mod lease;
mod main_server;
mod reports;

pub use main_server::{ConnectError, MainServer};
