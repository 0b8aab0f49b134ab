//! Leases for keys with a time to live: they are shared, replaced when they have expired, and renewed after a slow write.

use crate::gateway::{admin, fields};
use crate::support::{fresh, key};
use restow_local_etcd::LocalEtcd;
use restow_store::{Store, StoreExt, Txn};
use std::time::Duration;

async fn leases(etcd: &LocalEtcd) -> Vec<String> {
    fields(&admin(etcd, None, "lease/leases", "{}").await, "ID")
}

fn put_for(name: &str, seconds: u64) -> Txn {
    Txn::new().put_for(&key(name), "x", Duration::from_secs(seconds))
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_with_the_same_time_to_live_share_leases_of_a_thousand_keys() {
    let (etcd, store) = fresh().await;
    for chunk in 0..10 {
        let many = (0..100)
            .fold(Txn::new(), |txn, n| txn.put_for(&key(format!("{chunk}/{n}")), "x", Duration::from_secs(3600)));
        store.txn(many).await.unwrap();
    }
    assert_eq!(leases(&etcd).await.len(), 1);
    store.txn(put_for("one more", 3600)).await.unwrap();
    assert_eq!(leases(&etcd).await.len(), 2);
    store.txn(put_for("another time", 1800)).await.unwrap();
    assert_eq!(leases(&etcd).await.len(), 3);
    store.put(&key("for ever"), "x".into()).await.unwrap();
    assert_eq!(leases(&etcd).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_revoked_is_replaced() {
    let (etcd, store) = fresh().await;
    store.txn(put_for("a", 3600)).await.unwrap();
    let lease = leases(&etcd).await.pop().unwrap();
    admin(&etcd, None, "lease/revoke", &format!(r#"{{"ID":{lease}}}"#)).await;
    assert_eq!(store.get(&key("a")).await.unwrap(), None);
    store.txn(put_for("b", 3600)).await.unwrap();
    assert!(store.get(&key("b")).await.unwrap().is_some());
    assert_ne!(leases(&etcd).await, [lease]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_write_gets_its_full_time_to_live() {
    let (etcd, store) = fresh().await;
    // The lease is granted for 63 s, counted from now.
    store.txn(put_for("a", 60)).await.unwrap();
    let lease = leases(&etcd).await.pop().unwrap();
    etcd.pause().unwrap();
    let slow = tokio::spawn(async move { store.txn(put_for("b", 60)).await });
    // By the time that this is written, less than 60 s of the lease are left.
    tokio::time::sleep(Duration::from_millis(3300)).await;
    etcd.resume().unwrap();
    slow.await.unwrap().unwrap();
    assert_eq!(leases(&etcd).await, std::slice::from_ref(&lease), "the lease was shared");
    let answer = admin(&etcd, None, "lease/timetolive", &format!(r#"{{"ID":{lease}}}"#)).await;
    let left: u64 = fields(&answer, "TTL")[0].parse().unwrap();
    assert!(left >= 60, "only {left} s are left");
}
