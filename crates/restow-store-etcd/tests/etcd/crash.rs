//! A server that is killed and restarted under load: what was acknowledged is there, what failed is not, and only what
//! is reported as unknown may be either.

use crate::support::{PATIENCE, connect, key, start};
use restow_store::{At, Content, KeyRange, RangeRequest, Revision, Store, StoreError, StoreExt};
use restow_store_etcd::EtcdStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 6;
const CRASHES: usize = 5;

#[derive(Clone, Debug)]
enum Fate {
    Written(Revision),
    NotWritten,
    Unknown,
}

/// Creates one key after the other until told to stop, and notes what became of each.
async fn write(store: Arc<EtcdStore>, writer: usize, stop: Arc<AtomicBool>) -> BTreeMap<String, Fate> {
    let mut fates = BTreeMap::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("w{writer}/{number:06}");
        number += 1;
        let fate = match store.create(&key(&name), name.clone().into()).await {
            Ok(revision) => Fate::Written(revision),
            Err(StoreError::Unavailable(_)) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Fate::NotWritten
            }
            Err(StoreError::OutcomeUnknown(_)) => Fate::Unknown,
            // A key that is created once can only be there before if a failed write was applied.
            Err(error) => panic!("{name}: {error}"),
        };
        fates.insert(name, fate);
    }
    fates
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let mut etcd = start().await;
    let store = Arc::new(connect(etcd.endpoint()).await);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(store.clone(), writer, stop.clone()))).collect();
    for crash in 0..CRASHES {
        let (before, begun) = (store.status().await.unwrap().revision, Instant::now());
        while store.status().await.unwrap().revision.get() < before.get() + 50 + 37 * crash as u64 {
            assert!(begun.elapsed() < PATIENCE, "the writers are stuck");
            tokio::task::yield_now().await;
        }
        etcd.kill();
        etcd.restart().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let mut fates = BTreeMap::new();
    for writer in writers {
        fates.extend(writer.await.unwrap());
    }
    check(&store, &fates).await;
}

async fn check(store: &EtcdStore, fates: &BTreeMap<String, Fate>) {
    let request = RangeRequest { range: KeyRange::all(), at: At::Latest, limit: None, content: Content::Full };
    let stored = store.range(request).await.unwrap().entries;
    let stored: BTreeMap<String, _> = stored.into_iter().map(|entry| (entry.key.to_string(), entry)).collect();
    let (mut written, mut unknown, mut failed) = (0, 0, 0);
    for (name, fate) in fates {
        match (fate, stored.get(name)) {
            (Fate::Written(revision), Some(entry)) => {
                assert_eq!((entry.mod_revision, entry.version, entry.value.as_ref()), (*revision, 1, name.as_bytes()));
                written += 1;
            }
            (Fate::Written(revision), None) => panic!("{name} was acknowledged at {revision} and is lost"),
            (Fate::NotWritten, Some(entry)) => panic!("{name} failed for good and is there: {entry:?}"),
            (Fate::NotWritten, None) => failed += 1,
            (Fate::Unknown, _) => unknown += 1,
        }
    }
    assert!(stored.keys().all(|name| fates.contains_key(name)), "nobody wrote some keys");
    assert!(written > 50 * CRASHES, "too little was written to tell: {written}");
    assert!(unknown > 0, "with writes always in flight, some outcomes must be unknown");
    println!("{written} written, {unknown} unknown, {failed} failed");
}
