//! The quota: a full store accepts writes again after keys were deleted and compacted.

#![allow(clippy::unwrap_used, clippy::panic)]

use rand::Rng;
use restow_store::{Key, KeyRange, Limits, RangeRequest, Store, StoreError, StoreExt, Txn};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use std::path::Path;
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

/// How many values fit in at least. A table that is being flushed counts twice for a moment, and a store of this size has
/// space for three tables.
const FIT: usize = 40;

/// Writes until the store is full; returns the number of values. Waits while space is being reclaimed.
async fn fill(store: &EmbeddedStore) -> usize {
    let begun = Instant::now();
    let mut count = 0;
    while count < 1000 {
        match store.put(&key(count), value().into()).await {
            Ok(_) => count += 1,
            Err(StoreError::Full(_)) if count > FIT => return count,
            Err(StoreError::Full(_)) if begun.elapsed() < Duration::from_secs(60) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(other) => panic!("after {count} values: {other}"),
        }
    }
    panic!("the store is never full");
}

/// Deletes the first values, and compacts.
async fn empty(store: &EmbeddedStore, count: usize) {
    let everything = (0..count).fold(Txn::new(), |txn, n| txn.delete(&key(n)));
    store.txn(everything).await.unwrap();
    store.compact(store.status().await.unwrap().revision).await.unwrap();
}

fn small_store(parent: &Path) -> EmbeddedStore {
    let limits = Limits { store_bytes: Some(24 << 20), ..Limits::default() };
    EmbeddedStore::open(EmbeddedConfig { limits, ..EmbeddedConfig::new(parent.join("store")) }).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_and_compacted_keys_free_space() {
    let parent = tempfile::tempdir().unwrap();
    let store = small_store(parent.path());
    for _round in 0..3 {
        let count = fill(&store).await;
        empty(&store, count).await;
    }
    assert_eq!(store.range(RangeRequest::new(KeyRange::all())).await.unwrap().entries.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_were_compacted_earlier_free_space_when_it_is_needed() {
    let parent = tempfile::tempdir().unwrap();
    let store = small_store(parent.path());
    let few = FIT / 4 * 3;
    for n in 0..few {
        store.put(&key(n), value().into()).await.unwrap();
    }
    empty(&store, few).await;
    fill(&store).await;
}

#[tokio::test]
async fn the_longest_time_to_live_is_accepted_and_other_keys_expire() {
    let parent = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(EmbeddedConfig::new(parent.path().join("store"))).unwrap();
    store.txn(Txn::new().put_for(&key(1), "long", Duration::MAX)).await.unwrap();
    store.txn(Txn::new().put_for(&key(2), "short", Duration::from_millis(1))).await.unwrap();
    let begun = Instant::now();
    while store.get(&key(2)).await.unwrap().is_some() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the short one does not expire");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.get(&key(1)).await.unwrap().unwrap().value, "long");
}
