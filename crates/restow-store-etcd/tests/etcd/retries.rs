//! Which failures are retried, which are final, and which leave the outcome unknown.

use crate::fake::{Fake, Reply};
use crate::support::key;
use restow_store::{StoreError, StoreExt};
use restow_store_etcd::{EtcdConfig, EtcdStore};
use std::time::Duration;

/// A store on a server whose first `Txn` (`Range` after the first, which is from connecting) is answered by `reply`.
async fn failing(method: &'static str, reply: fn() -> Reply) -> (Fake, EtcdStore) {
    let first = if method == "Txn" { 1 } else { 2 };
    let script = move |called: &str, before: usize| {
        if called == method && before <= first && before > 0 { reply() } else { Reply::Success }
    };
    let fake = Fake::start("3.5.30", script).await;
    let mut config = EtcdConfig::new([fake.endpoint()]);
    config.request_timeout = Duration::from_secs(20);
    let store = EtcdStore::connect(config).await.unwrap();
    assert_eq!(fake.calls(), 1, "connecting makes one call");
    (fake, store)
}

async fn put_after(reply: fn() -> Reply) -> (Result<u64, StoreError>, usize) {
    let (fake, store) = failing("Txn", reply).await;
    let result = store.put(&key("a"), "1".into()).await.map(|revision| revision.get());
    (result, fake.calls() - 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_certainly_not_applied_is_retried() {
    let check = async |reply: fn() -> Reply| assert_eq!(put_after(reply).await, (Ok(5), 2));
    check(|| Reply::status(14, "etcdserver: no leader")).await;
    check(|| Reply::status(8, "etcdserver: too many requests")).await;
    check(|| Reply::status(9, "etcdserver: not capable")).await;
    check(|| Reply::status(14, "etcdserver: rpc not supported for learner")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_may_have_been_applied_has_an_unknown_outcome_and_is_not_retried() {
    let check = async |reply: fn() -> Reply| {
        let (result, calls) = put_after(reply).await;
        assert!(matches!(result, Err(StoreError::OutcomeUnknown(_))), "{result:?}");
        assert_eq!(calls, 1);
    };
    check(|| Reply::status(14, "etcdserver: request timed out")).await;
    check(|| Reply::status(14, "etcdserver: request timed out, possibly due to previous leader failure")).await;
    check(|| Reply::status(14, "etcdserver: leader changed")).await;
    check(|| Reply::status(14, "etcdserver: server stopped")).await;
    check(|| Reply::status(4, "context deadline exceeded")).await;
    check(|| Reply::status(2, "something that nobody has thought of")).await;
    check(|| Reply::Close).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_is_final() {
    let (result, calls) = put_after(|| Reply::status(7, "etcdserver: permission denied")).await;
    assert!(matches!(result, Err(StoreError::Denied(_))) && calls == 1, "{result:?}");
    let (result, calls) = put_after(|| Reply::status(3, "etcdserver: request is too large")).await;
    assert!(matches!(result, Err(StoreError::TooLarge { size: 1, .. })) && calls == 1, "{result:?}");
    let (result, calls) = put_after(|| Reply::status(15, "etcdserver: corrupt cluster")).await;
    assert!(matches!(result, Err(StoreError::Corrupted(_))) && calls == 1, "{result:?}");
    let (result, calls) = put_after(|| Reply::status(16, "etcdserver: invalid auth token")).await;
    assert!(matches!(result, Err(StoreError::Denied(_))) && calls == 1, "without credentials: {result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_always_retried() {
    for reply in [
        || Reply::status(14, "etcdserver: request timed out"),
        || Reply::status(14, "etcdserver: leader changed"),
        || Reply::status(14, "etcdserver: no leader"),
        || Reply::Close,
    ] {
        let (fake, store) = failing("Range", reply).await;
        assert_eq!(store.get(&key("a")).await, Ok(None));
        assert_eq!(fake.calls(), 4, "one to connect, two that fail, one that works");
    }
}

/// etcd returns NOSPACE when it refuses a write, and also when it applies the write that exceeds its quota.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_finds_the_server_full_is_refused_only_if_it_was_not_applied() {
    let no_space = || Reply::status(8, "etcdserver: mvcc: database space exceeded");
    let (result, calls) = put_after(no_space).await;
    assert!(matches!(result, Err(StoreError::Full(_))) && calls == 2, "{result:?}");

    // At revision 6 the key "a" is there, with this revision.
    let applied = b"\x0a\x04\x08\x01\x18\x06\x12\x0c\x0a\x01a\x10\x06\x18\x06\x20\x01\x2a\x011\x20\x01";
    let script = move |called: &str, before: usize| match (called, before) {
        ("Txn", _) => no_space(),
        ("Range", 2) => Reply::Message(applied),
        _ => Reply::Success,
    };
    let fake = Fake::start("3.5.30", script).await;
    let store = EtcdStore::connect(EtcdConfig::new([fake.endpoint()])).await.unwrap();
    let result = store.put(&key("a"), "1".into()).await;
    assert!(matches!(result, Err(StoreError::OutcomeUnknown(_))), "{result:?}");
    assert_eq!(fake.calls(), 3);
}
