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
//! - The lease there does not expire by time, and names the lease in the own store that fences every write. It is deleted by its
//!   server when that leaves, or by any server on the same store when the lease in that store is gone. So a write that was in flight
//!   when its server was paused is refused, or is committed while its report still counts.
//! - If no server on that store runs any more, lease and reports stay, and no agreement on another version is claimed. If store and
//!   servers are gone for good, delete the lease in `kube-system` by hand.

mod lease;
mod main_server;
mod reports;

pub use main_server::{ConnectError, MainServer};
