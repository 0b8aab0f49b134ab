//! Properties of the etcd store that the conformance suite does not check: prefixes, long lists, its version.

use crate::support::{changes_until, config, connect, fresh, key};
use restow_local_etcd::{LocalEtcd, LocalEtcdOptions};
use restow_store::{Content, KeyRange, RangeRequest, Store, StoreError, StoreExt, Txn, WatchRequest};
use restow_store_etcd::EtcdStore;

#[tokio::test(flavor = "multi_thread")]
async fn stores_with_different_prefixes_do_not_see_each_other() {
    let (etcd, everything) = fresh().await;
    let with_prefix = async |prefix: &str| {
        let mut config = config(etcd.endpoint());
        config.prefix = prefix.into();
        EtcdStore::connect(config).await.unwrap()
    };
    let (one, two) = (with_prefix("/one").await, with_prefix("/two/").await);
    let mut watch = one.watch(WatchRequest::from_now(KeyRange::all()).with_previous()).await.unwrap();
    everything.put(&key("/one"), "the bare prefix".into()).await.unwrap();
    let first = one.put(&key("/pods/a"), "1".into()).await.unwrap();
    two.put(&key("/pods/a"), "2".into()).await.unwrap();
    let last = one.put(&key("/pods/a"), "3".into()).await.unwrap();

    assert_eq!(one.get(&key("/pods/a")).await.unwrap().unwrap().value, "3");
    assert_eq!(two.get(&key("/pods/a")).await.unwrap().unwrap().value, "2");
    assert_eq!(everything.get(&key("/one/pods/a")).await.unwrap().unwrap().value, "3");
    assert_eq!(everything.get(&key("/two//pods/a")).await.unwrap().unwrap().value, "2");
    let listed = one.range(RangeRequest::new(KeyRange::all())).await.unwrap();
    assert_eq!(listed.entries.len(), 1);
    assert_eq!((listed.entries[0].key.clone(), listed.count), (key("/pods/a"), Some(1)));
    let refused = one.create(&key("/pods/a"), "4".into()).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { current: Some(current), .. } if current.key == key("/pods/a")));

    let seen = changes_until(&mut watch, last).await;
    assert_eq!(seen, [(first, "/pods/a".to_owned()), (last, "/pods/a".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_entries_are_listed_in_pages_that_make_one_snapshot() {
    let (_etcd, store) = fresh().await;
    let value = bytes::Bytes::from(vec![7; 2048]);
    for chunk in 0..100 {
        let puts = (0..100).fold(Txn::new(), |txn, n| txn.put(&key(format!("/k/{chunk:02}{n:02}")), value.clone()));
        store.txn(puts).await.unwrap();
    }
    let all = RangeRequest::prefix("/k/");
    let listed = store.range(all.clone()).await.unwrap();
    assert_eq!((listed.entries.len(), listed.count, listed.more), (10_000, Some(10_000), false));
    assert!(listed.entries.is_sorted_by(|a, b| a.key < b.key));
    assert!(listed.entries.iter().all(|entry| entry.value == value));
    assert_eq!(listed.revision, store.status().await.unwrap().revision);

    let limited = store.range(all.clone().limit(7_777)).await.unwrap();
    assert_eq!((limited.entries.len(), limited.count, limited.more), (7_777, Some(10_000), true));
    assert_eq!(limited.entries, listed.entries[..7_777]);
    let exact = store.range(all.clone().limit(10_000)).await.unwrap();
    assert_eq!((exact.entries.len(), exact.more), (10_000, false));
    let keys = store.range(all.clone().content(Content::KeysOnly)).await.unwrap();
    assert_eq!(keys.entries.len(), 10_000);
    assert!(keys.entries.iter().all(|entry| entry.value.is_empty()));

    // Older revisions are paged, too.
    store.txn(Txn::new().delete(&key("/k/5000"))).await.unwrap();
    let older = store.range(all.at(listed.revision)).await.unwrap();
    assert_eq!(older.entries, listed.entries);
    assert_eq!((older.count, older.revision), (Some(10_000), listed.revision.next()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_names_the_server_and_its_size() {
    let (_etcd, store) = fresh().await;
    let before = store.status().await.unwrap();
    let revision = store.put(&key("a"), "1".into()).await.unwrap();
    let after = store.status().await.unwrap();
    assert!(after.backend.starts_with("etcd 3."), "{}", after.backend);
    assert_eq!((after.revision, before.revision.next()), (revision, revision));
    assert!(after.disk_bytes > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_and_a_request_that_is_too_large_fail_differently() {
    let options = LocalEtcdOptions { quota_bytes: Some(2 * 1024 * 1024), ..Default::default() };
    let etcd = LocalEtcd::start_with(options).await.unwrap();
    let store = connect(etcd.endpoint()).await;
    let value = bytes::Bytes::from(vec![1; 700 * 1024]);
    let too_large = (0..3).fold(Txn::new(), |txn, n| txn.put(&key(format!("{n}")), value.clone()));
    assert!(matches!(store.txn(too_large).await, Err(StoreError::Invalid(reason)) if reason.contains("--max-request")));
    let (mut names, mut unknown) = ((0..100).map(|n| key(format!("k{n:02}"))), 0);
    let refused = loop {
        let name = names.next().expect("the quota is not kept");
        match store.put(&name, value.clone()).await {
            Ok(revision) => assert_eq!(store.get(&name).await.unwrap().unwrap().mod_revision, revision),
            // etcd also returns NOSPACE for the write that it applies and that exceeds the quota.
            Err(StoreError::OutcomeUnknown(_)) => unknown += 1,
            Err(StoreError::Full(_)) => break name,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(unknown <= 1, "only the write that makes it full is in doubt");
    assert_eq!(store.get(&refused).await.unwrap(), None, "what is refused is not written");
    let again = store.put(&key("k00"), value.clone()).await;
    assert!(matches!(again, Err(StoreError::Full(_))), "{again:?}");
    assert_eq!(store.get(&key("k00")).await.unwrap().unwrap().version, 1);
    store.txn(Txn::new().delete(&key("k00"))).await.unwrap();
    assert_eq!(store.get(&key("k00")).await.unwrap(), None);
}
