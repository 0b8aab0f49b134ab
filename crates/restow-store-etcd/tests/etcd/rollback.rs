//! An etcd that is restored from a backup under a running store. Its cluster id stays the same, so only revisions and terms
//! show the rollback.

use crate::proxy::{Network, Proxy};
use crate::support::{changes_until, connect, fresh, key, next, put_with_retries};
use restow_local_etcd::LocalEtcd;
use restow_store::{KeyRange, Revision, Store, StoreError, StoreExt, WatchRequest};
use std::path::Path;
use std::process::Command;

/// Replaces the content of one directory by a copy of the other's.
fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(to).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
    }
    let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Copies the data of a server while it is stopped.
async fn back_up(etcd: &mut LocalEtcd) -> tempfile::TempDir {
    let backup = tempfile::tempdir().unwrap();
    etcd.stop().await.unwrap();
    copy(etcd.directory(), backup.path());
    etcd.restart().await.unwrap();
    backup
}

async fn restore(etcd: &mut LocalEtcd, backup: &tempfile::TempDir) {
    etcd.stop().await.unwrap();
    copy(backup.path(), etcd.directory());
    etcd.restart().await.unwrap();
}

fn everything_from(revision: Revision) -> WatchRequest {
    WatchRequest::from(KeyRange::all(), revision)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_history_is_lost() {
    let (mut etcd, store) = fresh().await;
    let first = store.put(&key("a"), "0".into()).await.unwrap();
    let mut watch = store.watch(everything_from(first)).await.unwrap();
    let backup = back_up(&mut etcd).await;
    let mut last = first;
    for n in 0..20 {
        last = put_with_retries(&store, &format!("lost{n}"), "x").await;
    }
    changes_until(&mut watch, last).await;
    restore(&mut etcd, &backup).await;
    put_with_retries(&store, "b", "1").await;
    assert_eq!(next(&mut watch).await, Err(StoreError::HistoryLost));
    assert_eq!(store.watch(everything_from(last.next())).await.err(), Some(StoreError::HistoryLost));
    let mut again = store.watch(everything_from(first)).await.unwrap();
    let after = store.put(&key("c"), "1".into()).await.unwrap();
    assert!(after < last, "these revisions come a second time");
    let keys: Vec<String> = changes_until(&mut again, after).await.into_iter().map(|(_, key)| key).collect();
    assert_eq!(keys, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_is_detected_after_the_new_history_has_reached_the_same_revision() {
    let (mut etcd, direct) = fresh().await;
    let proxy = Proxy::to(etcd.port()).await;
    let store = connect(proxy.endpoint()).await;
    let first = direct.put(&key("a"), "0".into()).await.unwrap();
    let mut watch = store.watch(everything_from(first)).await.unwrap();
    let backup = back_up(&mut etcd).await;
    let lost = put_with_retries(&direct, "lost", "x").await;
    changes_until(&mut watch, lost).await;
    proxy.set(Network::Reset);
    restore(&mut etcd, &backup).await;
    let direct = connect(etcd.endpoint()).await;
    let mut last = first;
    while last <= lost {
        last = put_with_retries(&direct, "other", "x").await;
    }
    proxy.set(Network::Up);
    assert_eq!(next(&mut watch).await, Err(StoreError::HistoryLost));
}
