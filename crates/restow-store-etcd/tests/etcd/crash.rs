//! A server that is killed and restarted under load: acknowledged writes are there, failed ones are not, and only writes of
//! unknown outcome may be either.

use crate::support::{TIMEOUT, connect, key, start};
use restow_store::{At, Content, KeyRange, RangeRequest, Revision, Store, StoreError, StoreExt};
use restow_store_etcd::EtcdStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 6;
const CRASHES: usize = 5;

#[derive(Clone, Debug)]
enum WriteOutcome {
    Written(Revision),
    NotWritten,
    Unknown,
}

/// Creates keys until `stop` is set, and returns the outcome of each.
async fn write(store: Arc<EtcdStore>, writer: usize, stop: Arc<AtomicBool>) -> BTreeMap<String, WriteOutcome> {
    let mut outcomes = BTreeMap::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let name = format!("w{writer}/{number:06}");
        number += 1;
        let outcome = match store.create(&key(&name), name.clone().into()).await {
            Ok(revision) => WriteOutcome::Written(revision),
            Err(StoreError::Unavailable(_)) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                WriteOutcome::NotWritten
            }
            Err(StoreError::OutcomeUnknown(_)) => WriteOutcome::Unknown,
            // A key that is created once can only be there before if a failed write was applied.
            Err(error) => panic!("{name}: {error}"),
        };
        outcomes.insert(name, outcome);
    }
    outcomes
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
            assert!(begun.elapsed() < TIMEOUT, "the writers are stuck");
            tokio::task::yield_now().await;
        }
        etcd.kill();
        etcd.restart().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let mut outcomes = BTreeMap::new();
    for writer in writers {
        outcomes.extend(writer.await.unwrap());
    }
    check(&store, &outcomes).await;
}

async fn check(store: &EtcdStore, outcomes: &BTreeMap<String, WriteOutcome>) {
    let request = RangeRequest { range: KeyRange::all(), at: At::Latest, limit: None, content: Content::Full };
    let stored = store.range(request).await.unwrap().entries;
    let stored: BTreeMap<String, _> = stored.into_iter().map(|entry| (entry.key.to_string(), entry)).collect();
    let (mut written, mut unknown, mut failed) = (0, 0, 0);
    for (name, outcome) in outcomes {
        match (outcome, stored.get(name)) {
            (WriteOutcome::Written(revision), Some(entry)) => {
                assert_eq!((entry.mod_revision, entry.version, entry.value.as_ref()), (*revision, 1, name.as_bytes()));
                written += 1;
            }
            (WriteOutcome::Written(revision), None) => panic!("{name} was acknowledged at {revision} and is lost"),
            (WriteOutcome::NotWritten, Some(entry)) => panic!("{name} failed for good and is there: {entry:?}"),
            (WriteOutcome::NotWritten, None) => failed += 1,
            (WriteOutcome::Unknown, _) => unknown += 1,
        }
    }
    assert!(stored.keys().all(|name| outcomes.contains_key(name)), "nobody wrote some keys");
    assert!(written > 50 * CRASHES, "too little was written to tell: {written}");
    assert!(unknown > 0, "with writes always in flight, some outcomes must be unknown");
    println!("{written} written, {unknown} unknown, {failed} failed");
}
