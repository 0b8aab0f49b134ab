//! Watches that are resumed after their connection was lost.

use crate::proxy::{Network, Proxy};
use crate::support::{TIMEOUT, changes_until, config, connect, fresh, key, next, put_with_retries, start};
use restow_local_etcd::LocalEtcd;
use restow_store::{KeyRange, Revision, Store, StoreError, StoreExt, WatchRequest};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use std::time::{Duration, Instant};

fn everything_from(revision: Revision) -> WatchRequest {
    WatchRequest::from(KeyRange::all(), revision)
}

/// Every revision from the first to the last one, each with one key.
fn revisions(changes: &[(Revision, String)]) -> Vec<u64> {
    changes.iter().map(|(revision, _)| revision.get()).collect()
}

fn all_between(first: Revision, last: Revision) -> Vec<u64> {
    (first.get()..=last.get()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_loses_and_repeats_no_event() {
    let (etcd, direct) = fresh().await;
    let proxy = Proxy::to(etcd.port()).await;
    let store = connect(proxy.endpoint()).await;
    let mut from_now = store.watch(WatchRequest::from_now(KeyRange::all())).await.unwrap();
    // Nothing was delivered yet when the connection breaks for the first time.
    proxy.reset_once().await;
    let first = direct.put(&key("a"), "0".into()).await.unwrap();
    let mut from_first = store.watch(everything_from(first)).await.unwrap();
    let writer = tokio::spawn(async move {
        let mut last = first;
        for n in 0..400 {
            last = direct.put(&key(format!("k{n}")), "x".into()).await.unwrap();
        }
        last
    });
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.reset_once().await;
    }
    let last = writer.await.unwrap();
    assert_eq!(revisions(&changes_until(&mut from_now, last).await), all_between(first, last));
    assert_eq!(revisions(&changes_until(&mut from_first, last).await), all_between(first, last));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_resumes_after_the_server_was_killed_and_restarted() {
    let (mut etcd, store) = fresh().await;
    let first = store.put(&key("a"), "0".into()).await.unwrap();
    let mut watch = store.watch(everything_from(first)).await.unwrap();
    assert_eq!(changes_until(&mut watch, first).await.len(), 1);
    let mut last = first;
    for round in 0..2 {
        etcd.kill();
        etcd.restart().await.unwrap();
        last = put_with_retries(&store, &format!("k{round}"), "x").await;
    }
    let seen = revisions(&changes_until(&mut watch, last).await);
    assert_eq!(seen, all_between(first.next(), last));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_survives_a_leader_election() {
    let mut members = LocalEtcd::cluster(3).await.unwrap();
    let endpoints: Vec<String> = members.iter().map(LocalEtcd::endpoint).collect();
    let store = EtcdStore::connect(EtcdConfig::new(endpoints.clone())).await.unwrap();
    let first = store.put(&key("a"), "0".into()).await.unwrap();
    // One watch for each member as the first choice, so that one is at the leader.
    let mut watches = Vec::new();
    for shift in 0..3 {
        let mut order = endpoints.clone();
        order.rotate_left(shift);
        let at_member = EtcdStore::connect(EtcdConfig::new(order)).await.unwrap();
        let mut watch = at_member.watch(everything_from(first)).await.unwrap();
        changes_until(&mut watch, first).await;
        watches.push((at_member, watch));
    }
    let mut leader = None;
    for (index, member) in members.iter().enumerate() {
        if member.is_leader().await {
            leader = Some(index);
        }
    }
    members[leader.expect("a leader")].kill();
    let mut last = first;
    for n in 0..20 {
        last = put_with_retries(&store, &format!("k{n}"), "x").await;
    }
    for (_, watch) in &mut watches {
        assert_eq!(revisions(&changes_until(watch, last).await), all_between(first.next(), last));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_detected() {
    let (etcd, direct) = fresh().await;
    let (silent, fair) = (Proxy::to(etcd.port()).await, Proxy::to(etcd.port()).await);
    let store = EtcdStore::connect(EtcdConfig::new([silent.endpoint(), fair.endpoint()])).await.unwrap();
    let mut watch = store.watch(WatchRequest::from_now(KeyRange::all())).await.unwrap();
    silent.set(Network::Silent);
    let begun = Instant::now();
    let revision = direct.put(&key("a"), "1".into()).await.unwrap();
    changes_until(&mut watch, revision).await;
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_while_disconnected_is_an_error_and_never_a_gap() {
    let (etcd, direct) = fresh().await;
    let proxy = Proxy::to(etcd.port()).await;
    let store = connect(proxy.endpoint()).await;
    let first = direct.put(&key("a"), "0".into()).await.unwrap();
    let mut watch = store.watch(everything_from(first)).await.unwrap();
    changes_until(&mut watch, first).await;
    proxy.set(Network::Reset);
    for n in 0..5 {
        direct.put(&key("a"), format!("{n}").into()).await.unwrap();
    }
    let cut = direct.remove(&key("a"), Revision::new(first.get() + 5)).await.unwrap();
    direct.put(&key("b"), "1".into()).await.unwrap();
    direct.compact(cut).await.unwrap();
    proxy.set(Network::Up);
    assert_eq!(next(&mut watch).await, Err(StoreError::Compacted { oldest: cut }));
    assert!(watch.next().await.is_none(), "the watch ends after its error");
}

/// The watch starts at the compact revision, and that revision is a deletion, which some servers do not deliver.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_at_the_compact_revision_is_delivered_or_reported_as_compacted() {
    let (etcd, direct) = fresh().await;
    let proxy = Proxy::to(etcd.port()).await;
    let store = connect(proxy.endpoint()).await;
    let first = direct.put(&key("a"), "0".into()).await.unwrap();
    let mut watch = store.watch(everything_from(first)).await.unwrap();
    changes_until(&mut watch, first).await;
    proxy.set(Network::Reset);
    let cut = direct.remove(&key("a"), first).await.unwrap();
    direct.put(&key("b"), "1".into()).await.unwrap();
    direct.compact(cut).await.unwrap();
    proxy.set(Network::Up);
    match next(&mut watch).await {
        Ok(batch) => assert_eq!((batch.events[0].revision, batch.events[0].key()), (cut, &key("a"))),
        Err(error) => assert_eq!(error, StoreError::Compacted { oldest: cut }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_consumer_gets_everything_and_does_not_block_others() {
    let (_etcd, store) = fresh().await;
    let from = store.status().await.unwrap().revision.next();
    let mut slow = store.watch(everything_from(from)).await.unwrap();
    let value = bytes::Bytes::from(vec![1; 64 * 1024]);
    let mut last = from;
    // Far more than fits into the queue and the connection's windows.
    for n in 0..300 {
        last = store.put(&key(format!("k{n}")), value.clone()).await.unwrap();
    }
    store.get(&key("k0")).await.unwrap().unwrap();
    // The watch has been closed at the server by now, or will be; in both cases it continues.
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(revisions(&changes_until(&mut slow, last).await), all_between(from, last));
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_notifications_come_promptly_if_the_server_supports_it() {
    let (_etcd, store) = fresh().await;
    if !store.status().await.unwrap().prompt_progress {
        restow_testkit::skip("etcd before 3.4.25 sends no prompt progress marks; it runs on the newer etcd");
        return;
    }
    let request = WatchRequest::from_now(KeyRange::prefix("nothing/")).with_progress(Duration::from_millis(50));
    let mut watch = store.watch(request).await.unwrap();
    let revision = store.put(&key("elsewhere"), "1".into()).await.unwrap();
    let begun = Instant::now();
    loop {
        let batch = next(&mut watch).await.unwrap();
        assert!(batch.events.is_empty() && batch.revision <= revision && begun.elapsed() < TIMEOUT);
        if batch.revision == revision {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_an_unreachable_cluster_fails_by_its_deadline() {
    let mut etcd = start().await;
    let config = EtcdConfig { request_timeout: Duration::from_secs(1), ..config(etcd.endpoint()) };
    let store = EtcdStore::connect(config).await.unwrap();
    etcd.kill();
    let begun = Instant::now();
    let error = store.watch(everything_from(Revision::new(1))).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
}
