//! A store that is full has room again once something was deleted and compacted.

#![allow(clippy::unwrap_used, clippy::panic)]

use rand::Rng;
use restow_store::{Key, KeyRange, Limits, RangeRequest, Store, StoreError, StoreExt, Txn};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use std::time::{Duration, Instant};

fn key(n: usize) -> Key {
    Key::try_from(format!("/{n:04}")).unwrap()
}

/// A value that cannot be compressed.
fn value() -> Vec<u8> {
    let mut value = vec![0; 400_000];
    rand::rng().fill(&mut value[..]);
    value
}

/// Writes until the store is full; returns how many values it took.
async fn fill(store: &EmbeddedStore) -> usize {
    for n in 0..1000 {
        match store.put(&key(n), value().into()).await {
            Ok(_) => {}
            Err(StoreError::Full(_)) => return n,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("the store is never full");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_and_compacted_makes_room() {
    let parent = tempfile::tempdir().unwrap();
    let limits = Limits { store_bytes: Some(24 << 20), ..Limits::default() };
    let config = EmbeddedConfig { limits, ..EmbeddedConfig::new(parent.path().join("store")) };
    let store = EmbeddedStore::open(config).unwrap();
    for round in 0..3 {
        let count = fill(&store).await;
        assert!(count > 40, "only {count} values fit in round {round}");
        let everything = (0..count).fold(Txn::new(), |txn, n| txn.delete(&key(n)));
        store.txn(everything).await.unwrap();
        store.compact(store.status().await.unwrap().revision).await.unwrap();
        let begun = Instant::now();
        while let Err(error) = store.put(&key(0), value().into()).await {
            assert!(matches!(error, StoreError::Full(_)), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(60), "in round {round}: {error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(store.range(RangeRequest::new(KeyRange::all())).await.unwrap().entries.len(), 1);
}

#[tokio::test]
async fn the_longest_time_to_live_is_taken_and_the_store_goes_on() {
    let parent = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(EmbeddedConfig::new(parent.path().join("store"))).unwrap();
    store.txn(Txn::new().put_for(&key(1), "long", Duration::MAX)).await.unwrap();
    store.txn(Txn::new().put_for(&key(2), "short", Duration::from_millis(1))).await.unwrap();
    while store.get(&key(2)).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.get(&key(1)).await.unwrap().unwrap().value, "long");
}
