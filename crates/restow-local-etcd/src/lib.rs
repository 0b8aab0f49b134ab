//! Private etcd servers on this machine, for tests and benchmarks: real processes with real disks, on loopback ports.
//!
//! Not for production, and no way to manage an etcd that others use. It depends on no other crate of the workspace: it
//! starts etcd, and does not connect a store to it.

mod http;
mod ports;
mod process;
mod server;

pub use server::{LocalEtcd, LocalEtcdError, LocalEtcdOptions, LocalEtcdTls};
