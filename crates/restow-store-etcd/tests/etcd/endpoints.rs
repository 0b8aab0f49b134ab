//! Several endpoints, some of which do not work.

use crate::fake::{Fake, Reply};
use crate::support::{TIMEOUT, config, connect, key, start};
use restow_store::{StoreError, StoreExt};
use restow_store_etcd::{ConfigError, ConnectError, EtcdConfig, EtcdStore};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// A deadline far beyond the timeout of a test, to show that a response comes before it.
const LONG: Duration = Duration::from_secs(600);

/// An address at which no server listens.
fn dead_endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_without_a_server_is_unavailable_at_once() {
    let config = EtcdConfig { request_timeout: LONG, ..EtcdConfig::new([dead_endpoint(), dead_endpoint()]) };
    let begun = Instant::now();
    let error = EtcdStore::connect(config).await.unwrap_err();
    assert!(matches!(error, ConnectError::Store(StoreError::Unavailable(_))), "{error}");
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_is_unavailable_for_reads_and_writes() {
    let mut etcd = start().await;
    let store = EtcdStore::connect(EtcdConfig { request_timeout: LONG, ..config(etcd.endpoint()) }).await.unwrap();
    store.put(&key("a"), "1".into()).await.unwrap();
    etcd.kill();
    // The first call may use the broken connection, and a write that does has an unknown outcome.
    let _ = store.get(&key("a")).await;
    let begun = Instant::now();
    assert!(matches!(store.get(&key("a")).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(store.put(&key("a"), "2".into()).await, Err(StoreError::Unavailable(_))));
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    etcd.restart().await.unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_dead_endpoint_of_three_does_not_matter() {
    let etcd = start().await;
    let endpoints = [dead_endpoint(), etcd.endpoint(), dead_endpoint()];
    let store = EtcdStore::connect(EtcdConfig::new(endpoints)).await.unwrap();
    store.put(&key("a"), "1".into()).await.unwrap();
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().value, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_different_clusters_are_not_mixed() {
    let (mut one, two) = (start().await, start().await);
    let store = EtcdStore::connect(EtcdConfig::new([one.endpoint(), two.endpoint()])).await.unwrap();
    store.put(&key("a"), "1".into()).await.unwrap();
    one.kill();
    let _ = store.get(&key("a")).await;
    let error = store.put(&key("a"), "2".into()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert_eq!(connect(two.endpoint()).await.get(&key("a")).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_before_3_4_is_refused_with_its_version() {
    let fake = Fake::start("3.3.27", |_, _| Reply::status(12, "unimplemented")).await;
    let error = EtcdStore::connect(EtcdConfig::new([fake.endpoint()])).await.unwrap_err();
    assert!(matches!(error, ConnectError::TooOld(version) if version.to_string() == "3.3.27"), "{error}");
    assert!(error.to_string().contains("3.3.27"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_configuration_is_refused_before_anything_is_sent() {
    let error = EtcdStore::connect(EtcdConfig::new(["http://127.0.0.1"])).await.unwrap_err();
    assert!(matches!(error, ConnectError::Config(ConfigError::Endpoint { .. })), "{error}");
}
