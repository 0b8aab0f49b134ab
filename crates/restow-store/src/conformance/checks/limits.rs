//! Limits: the largest and smallest keys and values that a store must accept, and what it must refuse.

use super::*;
use crate::conformance::seed::Seed;
use crate::conformance::{Opened, report_not_checked};
use crate::{Key, RangeRequest, Revision, StoreError, StoreExt, TxnOutcome};
use bytes::Bytes;
use rand::Rng;

pub(super) async fn a_value_of_exactly_the_limit_works(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let start = mirror.revision();
    let size = mirror.limits().value_bytes;
    // Beside a key of the greatest length, so that nothing is left over for what a request needs around it.
    let long = Key::new(vec![b'k'; Key::MAX_BYTES]).unwrap();
    mirror.commit(Txn::new().put(&key("/a"), vec![1; size])).await;
    mirror.commit(Txn::new().put(&long, vec![2; size]).put(&key("/small"), "x")).await;
    mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap();
    mirror.watch_to_the_end(vec![(KeyRange::all(), start.next())]).await;
}

pub(super) async fn a_value_beyond_the_limit_is_refused(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let limit = mirror.limits().value_bytes;
    let before = mirror.put("/a", "1").await;
    let large = Txn::new().put(&key("/b"), "2").put(&key("/a"), vec![0; limit + 1]).delete(&key("/c"));
    let refused = StoreError::TooLarge { key: key("/a"), size: limit + 1, limit };
    assert_eq!(mirror.txn(large).await, Err(refused));
    let response = mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap();
    assert_eq!((response.revision, response.entries.len()), (before, 1), "nothing of it may have been applied");
}

pub(super) async fn keys_of_all_bytes_and_lengths_work(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let start = mirror.revision();
    let single: Vec<Key> = (1..=255u8).map(|byte| Key::new(vec![byte]).unwrap()).collect();
    for some in single.chunks(Txn::MAX_OPERATIONS) {
        mirror.commit(some.iter().fold(Txn::new(), |txn, name| txn.put(name, name.as_bytes().clone()))).await;
    }
    let high = [vec![0xff; 2], vec![0xff; Key::MAX_BYTES], vec![1; Key::MAX_BYTES], (1..=255).collect()];
    let high: Vec<Key> = high.into_iter().map(|bytes| Key::new(bytes).unwrap()).collect();
    mirror.commit(high.iter().fold(Txn::new(), |txn, name| txn.put(name, "long"))).await;
    for name in single.iter().step_by(17).chain(&high).chain(&single[253..]) {
        assert!(mirror.store.get(name).await.unwrap().is_some(), "{name:?}");
        for range in [KeyRange::all().after(name), KeyRange::prefix(name.as_bytes().clone())] {
            mirror.range(RangeRequest::new(range)).await.unwrap();
        }
    }
    mirror.range(RangeRequest::new(KeyRange::all())).await.unwrap();
    let ranges = [KeyRange::all(), KeyRange::prefix(vec![0xff])];
    mirror.watch_to_the_end(ranges.map(|range| (range, start.next())).to_vec()).await;
    mirror.commit(high.iter().fold(Txn::new(), |txn, name| txn.delete(name))).await;
    mirror.range(RangeRequest::prefix(vec![0xff])).await.unwrap();
}

pub(super) async fn empty_values_are_values(fixture: &dyn Fixture) {
    let mut mirror = Mirror::open(fixture).await;
    let created = mirror.put("/a", "").await;
    let entry = mirror.store.get(&key("/a")).await.unwrap().expect("an empty value is not a missing key");
    assert_eq!((entry.value, entry.mod_revision), (Bytes::new(), created));
    assert_eq!(mirror.store.count(KeyRange::all(), crate::At::Latest).await, Ok(1));
    mirror.commit(Txn::new().when(crate::Compare::value(&key("/a"), "")).put(&key("/a"), "1")).await;
    mirror.put("/a", "").await;
    mirror.watch_to_the_end(vec![(KeyRange::all(), created)]).await;
}

pub(super) async fn a_full_store_refuses_to_grow_but_serves(fixture: &dyn Fixture) {
    let Some(opened) = fixture.open_small().await else {
        let backend = fixture.open().await.store.status().await.unwrap().backend;
        report_not_checked(&backend, "a full store, because its fixture opens none with a quota");
        return;
    };
    let quota = opened.limits.store_bytes.expect("a small store has a quota");
    let written = fill(&opened, quota).await;
    let store = &*opened.store;

    let before = store.status().await.unwrap().revision;
    assert_eq!(before, written.revision, "a refused write takes no revision");
    let entries = store.range(RangeRequest::new(KeyRange::all())).await.unwrap().entries;
    assert_eq!(entries.len(), written.count, "what was acknowledged is there, what was refused is not");
    let deleted = store.remove(&key("/fill/0000"), entries[0].mod_revision).await.unwrap();
    assert_eq!(deleted, before.next());
    assert_eq!(store.get(&key("/fill/0000")).await, Ok(None));
    store.compact(deleted).await.unwrap();
    assert_eq!(store.count(KeyRange::all(), crate::At::Latest).await, Ok(written.count as u64 - 1));
}

struct Filled {
    revision: Revision,
    count: usize,
}

/// Writes until the store is full. The values cannot be compressed.
async fn fill(opened: &Opened, quota: u64) -> Filled {
    let seed = Seed::take();
    let mut random = seed.generator(0);
    let size = usize::try_from(quota / 32).unwrap().min(opened.limits.value_bytes);
    let mut filled = Filled { revision: opened.store.status().await.unwrap().revision, count: 0 };
    let most = usize::try_from(quota).unwrap() / size * 4;
    while filled.count <= most {
        let mut value = vec![0; size];
        random.fill(&mut value[..]);
        let name = key(&format!("/fill/{:04}", filled.count));
        match opened.store.txn(Txn::new().put(&name, value)).await {
            Ok(TxnOutcome::Committed { revision }) => filled = Filled { revision, count: filled.count + 1 },
            Err(StoreError::Full(_)) if filled.count > 0 => return filled,
            other => panic!("filling up ended with {other:?} after {} values", filled.count),
        }
    }
    panic!("{} values of {size} bytes fit into a store with a quota of {quota} bytes", filled.count)
}
