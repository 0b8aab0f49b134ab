//! Keys with a time to live. These checks take as many seconds as the keys live.

use super::*;
use crate::{Change, Event, Key, RangeRequest, Revision, StoreExt, WatchRequest};
use std::time::Duration;
use tokio::time::Instant;

/// The shortest time to live that every back end can keep.
const SHORT: Duration = Duration::from_secs(2);
/// A time to live that is replaced before it is over, and the one that is seen to replace it.
const FIRST: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(9);
/// How long after its time a key may still be there.
const SOON: Duration = Duration::from_secs(30);

pub(super) async fn a_key_expires_after_its_time_to_live(fixture: &dyn Fixture) {
    let mirror = Mirror::open(fixture).await;
    let store = &mirror.store;
    // The second one is not a whole number of seconds: it must not be rounded down to one.
    let lives = [(key("/ttl/a"), SHORT), (key("/ttl/b"), Duration::from_millis(2500))];
    let mut reader = mirror.follow(WatchRequest::from_now(KeyRange::prefix("/ttl/")).with_previous()).await;
    let before = Instant::now();
    let mut written = Vec::new();
    for (name, time_to_live) in &lives {
        let txn = Txn::new().put_for(name, "mortal", *time_to_live).put(&key("/ttl/stays"), "x");
        written.push(store.commit(name, txn).await.unwrap());
    }
    let mut gone = Vec::new();
    while gone.len() < lives.len() {
        let batch = reader.batch().await.unwrap();
        for event in batch.events.into_iter().filter(|event| matches!(event.change, Change::Delete(_))) {
            gone.push((event, before.elapsed()));
        }
    }
    for ((name, time_to_live), written) in lives.iter().zip(written) {
        let (event, seen) = gone.iter().find(|(event, _)| event.key() == name).expect("each key goes");
        assert!(seen >= time_to_live, "{name} lived {seen:?} of {time_to_live:?}");
        assert!(*seen < *time_to_live + SOON, "{name} lived {seen:?} instead of {time_to_live:?}");
        assert!(event.revision > written);
        assert_eq!(event.previous.as_ref().map(|entry| &entry.value[..]), Some(&b"mortal"[..]));
        assert_eq!(store.get(name).await, Ok(None));
        let then = store.range(RangeRequest::key(name).at(written)).await.unwrap();
        assert_eq!(then.entries.len(), 1, "the past stays as it was");
        let created = store.create(name, "again".into()).await.unwrap();
        assert_eq!(
            store.get(name).await.unwrap().map(|entry| (entry.create_revision, entry.version)),
            Some((created, 1))
        );
    }
    assert!(store.get(&key("/ttl/stays")).await.unwrap().is_some());
}

pub(super) async fn writing_again_replaces_the_time_to_live(fixture: &dyn Fixture) {
    let mirror = Mirror::open(fixture).await;
    let store = &mirror.store;
    let mortal = ["kept", "longer", "recreated", "deleted", "shorter"].map(key);
    let [kept, longer, recreated, deleted, shorter] = &mortal;
    let mut reader = mirror.follow(WatchRequest::from(KeyRange::all(), mirror.revision().next())).await;
    // Each key is written again directly after, long before the first time to live is over.
    let before = Instant::now();
    for (name, first, second) in [
        (kept, FIRST, Txn::new().put(kept, "2")),
        (recreated, FIRST, Txn::new().delete(recreated)),
        (deleted, FIRST, Txn::new().delete(deleted)),
        (shorter, Duration::from_secs(3600), Txn::new().put_for(shorter, "2", SHORT)),
        (longer, FIRST, Txn::new().put_for(longer, "2", LONG)),
    ] {
        store.commit(name, Txn::new().put_for(name, "1", first)).await.unwrap();
        store.txn(second).await.unwrap();
    }
    store.put(recreated, "2".into()).await.unwrap();
    let is_the_end = |event: &Event| event.key() == longer && matches!(event.change, Change::Delete(_));
    while !reader.events().iter().any(is_the_end) {
        reader.batch().await.unwrap();
    }
    let lived = before.elapsed();
    assert!((LONG..LONG + SOON).contains(&lived), "{longer} lived {lived:?} instead of {LONG:?}");
    // The other times have passed by now, so what should not happen has had its time.
    assert_eq!(fate(reader.events(), kept), ["put", "put"]);
    assert_eq!(fate(reader.events(), recreated), ["put", "delete", "put"]);
    assert_eq!(fate(reader.events(), deleted), ["put", "delete"]);
    let last: Revision = store.put(deleted, "3".into()).await.unwrap();
    reader.until(last).await.unwrap();
    while fate(reader.events(), shorter).len() < 3 {
        reader.batch().await.unwrap();
    }
    assert_eq!(fate(reader.events(), shorter), ["put", "put", "delete"]);
    for name in [kept, recreated, deleted] {
        assert!(store.get(name).await.unwrap().is_some(), "{name} has no time to live any more");
    }
}

/// What happened to a key, in order.
fn fate(events: &[Event], name: &Key) -> Vec<&'static str> {
    let of_key = events.iter().filter(|event| event.key() == name);
    of_key
        .map(|event| match event.change {
            Change::Put(_) => "put",
            Change::Delete(_) => "delete",
        })
        .collect()
}
