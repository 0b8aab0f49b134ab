//! Connections that fall silent: every call comes back by its deadline and says what is known.

use crate::proxy::{Proxy, Weather};
use crate::support::{PATIENCE, config, fresh, key, start};
use restow_store::{StoreError, StoreExt};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use std::time::{Duration, Instant};

async fn impatient(endpoint: String) -> EtcdStore {
    let config = EtcdConfig {
        request_timeout: Duration::from_millis(1500),
        connect_timeout: Duration::from_millis(800),
        ..config(endpoint)
    };
    EtcdStore::connect(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_into_silence_is_in_doubt_and_a_read_is_unavailable() {
    let etcd = start().await;
    let proxy = Proxy::to(etcd.port()).await;
    let store = impatient(proxy.endpoint()).await;
    store.put(&key("a"), "1".into()).await.unwrap();

    proxy.set(Weather::Silent);
    let begun = Instant::now();
    let error = store.put(&key("a"), "2".into()).await.unwrap_err();
    assert!(matches!(error, StoreError::OutcomeUnknown(_)), "{error}");
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    // The silent connection was given up; a new one is not answered either, so nothing was sent.
    let error = store.put(&key("a"), "3".into()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    let error = store.get(&key("a")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");

    proxy.set(Weather::Fair);
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_into_silence_is_unavailable_by_its_deadline() {
    let etcd = start().await;
    let proxy = Proxy::to(etcd.port()).await;
    let store = impatient(proxy.endpoint()).await;
    proxy.set(Weather::Silent);
    let begun = Instant::now();
    let error = store.get(&key("a")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_goes_to_another_endpoint_when_one_falls_silent() {
    let etcd = start().await;
    let (silent, fair) = (Proxy::to(etcd.port()).await, Proxy::to(etcd.port()).await);
    let store = EtcdStore::connect(EtcdConfig::new([silent.endpoint(), fair.endpoint()])).await.unwrap();
    store.put(&key("a"), "1".into()).await.unwrap();
    silent.set(Weather::Silent);
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, "1");
    // From now on the other endpoint is the current one.
    store.put(&key("a"), "2".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_is_outlived() {
    let (etcd, store) = fresh().await;
    drop(store);
    let store = impatient(etcd.endpoint()).await;
    etcd.pause().unwrap();
    let error = store.put(&key("a"), "1".into()).await.unwrap_err();
    assert!(matches!(error, StoreError::OutcomeUnknown(_)), "{error}");
    etcd.resume().unwrap();
    crate::support::put_at_last(&store, "a", "2").await;
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, "2");
}
