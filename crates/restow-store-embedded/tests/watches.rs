//! Properties of watches that the conformance suite does not check.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use restow_store::{Key, KeyRange, Revision, Store, StoreError, StoreExt, WatchRequest};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use std::sync::Arc;
use std::time::Duration;

fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_notifications_come_while_keys_outside_the_range_change() {
    let parent = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(EmbeddedConfig::new(parent.path().join("store"))).unwrap());
    let request = WatchRequest::from_now(KeyRange::prefix("/quiet/")).with_progress(Duration::from_secs(1));
    let mut watch = store.watch(request).await.unwrap();
    let writers: Vec<_> = (0..8)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                loop {
                    store.put(&key(&format!("/busy/{task}")), "x".into()).await.unwrap();
                }
            })
        })
        .collect();
    let mut before = Revision::ZERO;
    for _ in 0..3 {
        let mark = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
        let mark = mark.expect("no progress notification came").unwrap().unwrap();
        assert!(mark.events.is_empty() && mark.revision > before);
        before = mark.revision;
    }
    for writer in writers {
        writer.abort();
    }
}

#[tokio::test]
async fn a_watch_does_not_keep_a_closed_store_open() {
    let parent = tempfile::tempdir().unwrap();
    let config = EmbeddedConfig::new(parent.path().join("store"));
    let store = EmbeddedStore::open(config.clone()).unwrap();
    let mut watch = store.watch(WatchRequest::from_now(KeyRange::all())).await.unwrap();
    drop(store);
    let store = EmbeddedStore::open(config).unwrap();
    store.put(&key("/a"), "1".into()).await.unwrap();
    let end = watch.next().await;
    assert!(matches!(end, Some(Err(StoreError::Unavailable(_)))), "{end:?}");
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn a_watch_that_is_far_behind_gets_its_history_in_small_batches() {
    let parent = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(EmbeddedConfig::new(parent.path().join("store"))).unwrap();
    let first = store.status().await.unwrap().revision.next();
    let mut last = first;
    for n in 0..24 {
        last = store.put(&key(&format!("/{n:02}")), vec![b'x'; 1_000_000].into()).await.unwrap();
    }
    let mut watch = store.watch(WatchRequest::from(KeyRange::all(), first)).await.unwrap();
    let mut expected = first;
    while expected <= last {
        let events = watch.next().await.unwrap().unwrap().events;
        assert!(events.len() <= 6, "{} values of a megabyte came at once", events.len());
        for event in events {
            assert_eq!(event.revision, expected);
            expected = expected.next();
        }
    }
}
