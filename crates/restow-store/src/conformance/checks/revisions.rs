//! One revision for the whole store, and what moves it.

use super::*;
use crate::{Compare, RangeRequest, Revision, StoreExt};

pub(super) async fn an_empty_store_is_at_a_revision_of_at_least_one(fixture: &dyn Fixture) {
    let mirror = Mirror::open(fixture).await;
    assert!(mirror.revision() >= Revision::new(1));
    let everything = mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap();
    assert_eq!(everything.entries, [], "a fixture must open an empty store");
    assert_eq!(mirror.store.get(&key("/a")).await, Ok(None));
}

pub(super) async fn each_change_takes_one_revision(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let start = mirror.revision().get();
    let mut taken = vec![
        mirror.put("/a", "1").await,
        mirror.put("/a", "2").await,
        // Writing what is there already is a change too: the version and the revision tell of it.
        mirror.put("/a", "2").await,
        mirror.put("/b", "").await,
    ];
    taken.push(mirror.commit(Txn::new().put(&key("/a"), "3").put(&key("/c"), "3").delete(&key("/b"))).await);
    taken.push(mirror.commit(Txn::new().delete(&key("/missing")).delete(&key("/c"))).await);
    taken.push(mirror.commit(Txn::new().delete(&key("/missing")).put(&key("/c"), "4")).await);
    taken.push(mirror.delete("/a").await);
    let numbers: Vec<u64> = taken.iter().map(|revision| revision.get() - start).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap();
}

pub(super) async fn a_transaction_without_changes_takes_no_revision(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let before = mirror.put("/a", "1").await;
    assert_eq!(mirror.delete("/missing").await, before);
    assert_eq!(mirror.commit(Txn::new()).await, before);
    assert_eq!(mirror.commit(Txn::new().when(Compare::exists(&key("/a")))).await, before);
    mirror.txn(Txn::new().when(Compare::absent(&key("/a"))).put(&key("/b"), "1").delete(&key("/a"))).await.unwrap();
    mirror.txn(Txn::new().when(Compare::absent(&key("/a"))).otherwise_get(&key("/a"))).await.unwrap();
    assert_eq!(mirror.store.status().await.unwrap().revision, before);
    let after = mirror.put("/a", "2").await;
    assert_eq!(after, before.next());
}

pub(super) async fn a_recreated_key_starts_over(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let name = key("/a");
    let created = mirror.put("/a", "1").await;
    let changed = mirror.put("/a", "2").await;
    let entry = mirror.store.get(&name).await.unwrap().unwrap();
    assert_eq!((entry.create_revision, entry.mod_revision, entry.version), (created, changed, 2));
    mirror.delete("/a").await;
    assert_eq!(mirror.store.get(&name).await, Ok(None));
    let recreated = mirror.put("/a", "3").await;
    let entry = mirror.store.get(&name).await.unwrap().unwrap();
    assert_eq!((entry.create_revision, entry.mod_revision, entry.version), (recreated, recreated, 1));
    assert_eq!(entry.value, "3");
}

pub(super) async fn status_reports_backend_revision_and_size(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let latest = mirror.put("/a", &"x".repeat(1000)).await;
    let status = mirror.store.status().await.unwrap();
    assert!(!status.backend.is_empty(), "people want to know which back end it is");
    assert_eq!(status.revision, latest);
    assert!(status.disk_bytes > 0, "a durable value takes space");
    assert_eq!(mirror.store.ready().await, Ok(()));
}
