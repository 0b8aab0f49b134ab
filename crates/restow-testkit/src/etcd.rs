//! A real etcd for a test, and the store on it.

use restow_store_etcd::{EtcdConfig, EtcdStore};

pub use restow_local_etcd::LocalEtcd;

/// Starts an etcd of its own for a test. It ends when this is dropped.
pub async fn start_etcd() -> LocalEtcd {
    LocalEtcd::start().await.unwrap()
}

/// Opens the keys below a prefix of an etcd as a store.
pub async fn etcd_store(endpoint: &str, prefix: &str) -> EtcdStore {
    EtcdStore::connect(EtcdConfig { prefix: prefix.into(), ..EtcdConfig::new([endpoint]) }).await.unwrap()
}
