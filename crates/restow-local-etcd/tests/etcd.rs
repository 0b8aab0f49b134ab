//! Private servers that cannot be started, and one that is stopped and started again. The target is called `etcd` so that
//! `./test` runs it on the older etcd, too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_local_etcd::{LocalEtcd, LocalEtcdError, LocalEtcdOptions, LocalEtcdTls};
use std::path::PathBuf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends a call to etcd's JSON gateway and returns the response.
async fn gateway(etcd: &LocalEtcd, call: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", etcd.port())).await.unwrap();
    let head = format!("POST /v3/{call} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.0 200"), "{call}: {response}");
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_binary_is_reported_with_what_to_install() {
    let options = LocalEtcdOptions { program: Some(PathBuf::from("/nowhere/etcd")), ..Default::default() };
    let error = LocalEtcd::start_with(options).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, LocalEtcdError::NotInstalled(_)));
    assert!(error.to_string().contains("set RESTOW_ETCD"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_start_shows_its_log() {
    let nowhere = PathBuf::from("/nowhere/certificate.pem");
    let tls = LocalEtcdTls { certificate: nowhere.clone(), key: nowhere, client_ca: None };
    let error = LocalEtcd::start_with(LocalEtcdOptions { tls: Some(tls), ..Default::default() }).await;
    let error = error.map(|_| ()).unwrap_err();
    assert!(matches!(&error, LocalEtcdError::Exited { log, .. } if log.contains("/nowhere/")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_data_directory_survives_a_restart_and_the_end_of_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let options = LocalEtcdOptions { data_dir: Some(directory.path().join("etcd")), ..Default::default() };
    let mut etcd = LocalEtcd::start_with(options).await.unwrap();
    // The gateway encodes keys and values in base64: this is a=1.
    gateway(&etcd, "kv/put", r#"{"key":"YQ==","value":"MQ=="}"#).await;
    etcd.stop().await.unwrap();
    assert_eq!(etcd.process_id(), None);
    etcd.restart().await.unwrap();
    let found = gateway(&etcd, "kv/range", r#"{"key":"YQ=="}"#).await;
    assert!(found.contains(r#""value":"MQ==""#), "{found}");
    drop(etcd);
    assert!(directory.path().join("etcd/etcd.log").exists());
}
