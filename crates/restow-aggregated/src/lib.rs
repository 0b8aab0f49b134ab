//! Lets an aggregated API server report its storage versions to the main one, through the main one's public API.
//!
//! A server made with `restow-apiserver` has a store of its own. Its resources are part of a cluster all the same: whoever
//! upgrades or migrates asks the main API server who stores what. [`MainServer`] takes an identity lease there, keeps it, and
//! reports each resource in its StorageVersion before the server writes it.
//!
//! ```no_run
//! # use restow_aggregated::MainServer;
//! # async fn connect(config: &mut restow_apiserver::ServerConfig) -> Result<(), Box<dyn std::error::Error>> {
//! let main = MainServer::connect("main-kubeconfig".as_ref(), "garden", &config.agreement).await?;
//! config.agreement.elsewhere = Some(main);
//! # Ok(())
//! # }
//! ```
//!
//! # What it can guarantee, and what it cannot
//!
//! - A server writes a resource only after its report is stored at the main server.
//! - A server whose lease there was removed, or could not be renewed in time by its own clock, stops writing, takes a new lease,
//!   reports again and goes on.
//! - Two instances on one store are fenced from each other by that store, as always.
//! - A write that was on its way to the own store when the server froze *can* land after the main server's collector has
//!   removed its entry, because no transaction spans the two stores. The window is that one write. Whoever migrates such a
//!   resource should look again afterwards.

mod lease;
mod main_server;
mod reports;

pub use main_server::{ConnectError, MainServer};
