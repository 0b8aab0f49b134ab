//! Restow's store on an etcd cluster, through its v3 gRPC API.
//!
//! [`EtcdStore`] implements [`restow_store::Store`]. It works with etcd 3.4 and newer, logs the known bugs of older servers
//! that matter to it, and needs no `protoc` to be built.
//!
//! # Failures
//!
//! * Every call has a deadline. Until then, reads are retried on the other members; a transaction is retried only if it was
//!   certainly not applied, and otherwise fails with [`StoreError::OutcomeUnknown`].
//! * A watch survives lost connections, restarted members and leader elections: it resumes after the last revision that it
//!   has delivered. If that revision was compacted meanwhile, it ends with [`StoreError::Compacted`].
//! * A watch with a slow consumer is closed at the server and resumed later, so that its events fill neither the server's
//!   memory nor ours.
//!
//! [`StoreError::OutcomeUnknown`]: restow_store::StoreError::OutcomeUnknown
//! [`StoreError::Compacted`]: restow_store::StoreError::Compacted

mod auth;
mod cluster;
mod compaction;
mod config;
mod failure;
mod keyspace;
mod lease;
mod member;
mod proto;
mod range;
mod rollback;

mod store;
mod txn;
mod version;
mod watch;

pub use config::{ClientIdentity, ConfigError, Credentials, EtcdConfig, TlsConfig};
pub use store::{ConnectError, EtcdStore};
pub use version::ServerVersion;
