//! Servers, stores and waits that the tests share.

use restow_local_etcd::{LocalEtcd, LocalEtcdOptions};
use restow_store::{Key, Revision, Store, StoreError, StoreExt, Watch};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use std::time::{Duration, Instant};

/// Long enough for a loaded machine; only failing tests wait so long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn connect(endpoint: String) -> EtcdStore {
    EtcdStore::connect(config(endpoint)).await.unwrap()
}

pub(crate) fn config(endpoint: String) -> EtcdConfig {
    EtcdConfig::new([endpoint])
}

/// A server with a short election timeout, so that a restart is fast.
pub(crate) async fn start() -> LocalEtcd {
    let election_timeout = Some(Duration::from_millis(200));
    LocalEtcd::start_with(LocalEtcdOptions { election_timeout, ..Default::default() }).await.unwrap()
}

pub(crate) async fn fresh() -> (LocalEtcd, EtcdStore) {
    let etcd = start().await;
    let store = connect(etcd.endpoint()).await;
    (etcd, store)
}

pub(crate) fn key(text: impl AsRef<str>) -> Key {
    Key::try_from(text.as_ref()).unwrap()
}

/// Writes with retries until the write is acknowledged.
pub(crate) async fn put_with_retries(store: &dyn Store, name: &str, value: &str) -> Revision {
    let begun = Instant::now();
    loop {
        match store.put(&key(name), value.to_owned().into()).await {
            Ok(revision) => return revision,
            Err(StoreError::Unavailable(_) | StoreError::OutcomeUnknown(_)) if begun.elapsed() < TIMEOUT => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The next revisions of a watch, and the keys that they changed, until `last` has come.
pub(crate) async fn changes_until(watch: &mut Watch, last: Revision) -> Vec<(Revision, String)> {
    let mut changes = Vec::new();
    while changes.last().is_none_or(|(revision, _)| *revision < last) {
        let batch = next(watch).await.unwrap();
        assert!(batch.events.last().is_none_or(|event| event.revision == batch.revision));
        changes.extend(batch.events.iter().map(|event| (event.revision, event.key().to_string())));
    }
    changes
}

pub(crate) async fn next(watch: &mut Watch) -> Result<restow_store::WatchBatch, StoreError> {
    tokio::time::timeout(TIMEOUT, watch.next()).await.expect("nothing came").expect("the watch has ended")
}
