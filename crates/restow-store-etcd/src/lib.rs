//! Restow's store on an etcd cluster, spoken to over its v3 gRPC API.
//!
//! [`EtcdStore`] implements [`restow_store::Store`]. It works with etcd 3.4 and newer, says in the log what an older
//! server lacks, and needs nothing but a Rust toolchain to be built.
//!
//! # What is done about failures
//!
//! * Every call has a deadline. Reads are repeated on the other members until it comes; a transaction is repeated only
//!   where it certainly was not applied, and is otherwise reported as [`StoreError::OutcomeUnknown`].
//! * A watch survives lost connections, restarted members and changes of the leader: it resumes after the last revision
//!   that it has delivered. If that was compacted meanwhile, it ends with [`StoreError::Compacted`].
//! * A watch whose consumer is slow is closed at the server and resumed later, so that it burdens neither the server's
//!   memory nor ours.
//!
//! [`StoreError::OutcomeUnknown`]: restow_store::StoreError::OutcomeUnknown
//! [`StoreError::Compacted`]: restow_store::StoreError::Compacted

mod cluster;
mod compaction;
mod config;
mod failure;
mod history;
mod keyspace;
mod lease;
mod member;
mod proto;
mod range;
mod session;
mod store;
mod txn;
mod version;
mod watch;

pub use config::{ClientIdentity, ConfigError, Credentials, EtcdConfig, TlsConfig};
pub use store::{ConnectError, EtcdStore};
pub use version::ServerVersion;
