//! Silent connections: every call returns by its deadline, with an error that says whether it can have been applied.

use crate::proxy::{Network, Proxy};
use crate::support::{TIMEOUT, config, fresh, key, start};
use restow_store::{StoreError, StoreExt};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use std::time::{Duration, Instant};

async fn with_short_timeouts(endpoint: String) -> EtcdStore {
    let config = EtcdConfig {
        request_timeout: Duration::from_millis(1500),
        connect_timeout: Duration::from_millis(800),
        ..config(endpoint)
    };
    EtcdStore::connect(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_silent_connection_a_write_is_unknown_and_a_read_is_unavailable() {
    let etcd = start().await;
    let proxy = Proxy::to(etcd.port()).await;
    let store = with_short_timeouts(proxy.endpoint()).await;
    store.put(&key("a"), "1".into()).await.unwrap();

    proxy.set(Network::Silent);
    let begun = Instant::now();
    let error = store.put(&key("a"), "2".into()).await.unwrap_err();
    assert!(matches!(error, StoreError::OutcomeUnknown(_)), "{error}");
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    // The silent connection was closed, and a new one cannot be opened, so nothing was sent.
    let error = store.put(&key("a"), "3".into()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    let error = store.get(&key("a")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");

    proxy.set(Network::Up);
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_on_a_silent_connection_is_unavailable_by_its_deadline() {
    let etcd = start().await;
    let proxy = Proxy::to(etcd.port()).await;
    let store = with_short_timeouts(proxy.endpoint()).await;
    proxy.set(Network::Silent);
    let begun = Instant::now();
    let error = store.get(&key("a")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_retried_at_another_endpoint_when_one_is_silent() {
    let etcd = start().await;
    let (silent, fair) = (Proxy::to(etcd.port()).await, Proxy::to(etcd.port()).await);
    let store = EtcdStore::connect(EtcdConfig::new([silent.endpoint(), fair.endpoint()])).await.unwrap();
    store.put(&key("a"), "1".into()).await.unwrap();
    silent.set(Network::Silent);
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, "1");
    // From now on the other endpoint is the current one.
    store.put(&key("a"), "2".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_recovers_after_a_server_was_frozen() {
    let (etcd, store) = fresh().await;
    drop(store);
    let store = with_short_timeouts(etcd.endpoint()).await;
    etcd.pause().unwrap();
    let error = store.put(&key("a"), "1".into()).await.unwrap_err();
    assert!(matches!(error, StoreError::OutcomeUnknown(_)), "{error}");
    etcd.resume().unwrap();
    crate::support::put_with_retries(&store, "a", "2").await;
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, "2");
}
