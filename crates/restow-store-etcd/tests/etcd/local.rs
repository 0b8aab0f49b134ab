//! The private servers themselves.

use crate::support::{connect, key};
use restow_store::StoreExt;
use restow_store_etcd::{LocalEtcd, LocalEtcdError, LocalEtcdOptions};
use std::path::PathBuf;

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_program_is_said_with_what_to_install() {
    let options = LocalEtcdOptions { program: Some(PathBuf::from("/nowhere/etcd")), ..Default::default() };
    let error = LocalEtcd::start_with(options).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, LocalEtcdError::NotInstalled(_)));
    assert!(error.to_string().contains("set RESTOW_ETCD"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_start_shows_its_log() {
    let nowhere = PathBuf::from("/nowhere/certificate.pem");
    let tls = restow_store_etcd::LocalEtcdTls { certificate: nowhere.clone(), key: nowhere, client_ca: None };
    let error = LocalEtcd::start_with(LocalEtcdOptions { tls: Some(tls), ..Default::default() }).await;
    let error = error.map(|_| ()).unwrap_err();
    assert!(matches!(&error, LocalEtcdError::Ended { log, .. } if log.contains("/nowhere/")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_directory_keeps_the_data_over_an_orderly_stop() {
    let directory = tempfile::tempdir().unwrap();
    let options = LocalEtcdOptions { data_dir: Some(directory.path().join("etcd")), ..Default::default() };
    let mut etcd = LocalEtcd::start_with(options).await.unwrap();
    let store = connect(etcd.endpoint()).await;
    store.put(&key("a"), "1".into()).await.unwrap();
    etcd.stop().await.unwrap();
    assert_eq!(etcd.process_id(), None);
    etcd.restart().await.unwrap();
    assert_eq!(connect(etcd.endpoint()).await.get(&key("a")).await.unwrap().unwrap().value, "1");
    drop(etcd);
    assert!(directory.path().join("etcd/etcd.log").exists());
}
