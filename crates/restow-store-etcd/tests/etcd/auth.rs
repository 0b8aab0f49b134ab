//! Authentication with users and passwords.

use crate::gateway::admin;
use crate::support::{changes_until, config, key, next, start};
use restow_local_etcd::LocalEtcd;
use restow_store::{KeyRange, Revision, Store, StoreError, StoreExt, WatchRequest};
use restow_store_etcd::{ConnectError, Credentials, EtcdConfig, EtcdStore};

async fn root_token(etcd: &LocalEtcd) -> String {
    let answer = admin(etcd, None, "auth/authenticate", r#"{"name":"root","password":"secret"}"#).await;
    answer.split(r#""token":""#).nth(1).unwrap().split('"').next().unwrap().to_owned()
}

/// A server with the users root and alice; alice may read and write what begins with "/registry/".
async fn guarded() -> LocalEtcd {
    let etcd = start().await;
    for (call, body) in [
        ("auth/user/add", r#"{"name":"root","password":"secret"}"#),
        ("auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("auth/user/add", r#"{"name":"alice","password":"rabbit"}"#),
        ("auth/role/add", r#"{"name":"registry"}"#),
        // In base64: "/registry/" and "/registry0".
        (
            "auth/role/grant",
            r#"{"name":"registry","perm":{"permType":2,"key":"L3JlZ2lzdHJ5Lw==","range_end":"L3JlZ2lzdHJ5MA=="}}"#,
        ),
        ("auth/user/grant", r#"{"user":"alice","role":"registry"}"#),
        ("auth/enable", "{}"),
    ] {
        if call == "auth/user/grant" && body.contains("root") {
            admin(&etcd, None, "auth/role/add", r#"{"name":"root"}"#).await;
        }
        admin(&etcd, None, call, body).await;
    }
    etcd
}

fn as_user(etcd: &LocalEtcd, user: &str, password: &str) -> EtcdConfig {
    let credentials = Some(Credentials { user: user.into(), password: password.into() });
    EtcdConfig { credentials, prefix: "/registry".into(), ..config(etcd.endpoint()) }
}

async fn change_password(etcd: &LocalEtcd, password: &str) {
    let token = root_token(etcd).await;
    let body = format!(r#"{{"name":"alice","password":"{password}"}}"#);
    admin(etcd, Some(&token), "auth/user/changepw", &body).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_can_access_only_keys_that_its_role_grants() {
    let etcd = guarded().await;
    let denied = |error: ConnectError| assert!(matches!(error, ConnectError::Store(StoreError::Denied(_))), "{error}");
    denied(EtcdStore::connect(as_user(&etcd, "alice", "wrong")).await.unwrap_err());
    denied(EtcdStore::connect(as_user(&etcd, "nobody", "rabbit")).await.unwrap_err());
    denied(EtcdStore::connect(config(etcd.endpoint())).await.unwrap_err());

    let store = EtcdStore::connect(as_user(&etcd, "alice", "rabbit")).await.unwrap();
    let revision = store.put(&key("/a"), "1".into()).await.unwrap();
    assert_eq!(store.status().await.unwrap().revision, revision);
    assert_eq!(store.get(&key("/a")).await.unwrap().unwrap().mod_revision, revision);
    // The role ends with the slash.
    let error = store.get(&key("2/a")).await.unwrap_err();
    assert!(matches!(error, StoreError::Denied(_)), "{error}");
    let elsewhere = store.watch(WatchRequest::from_now(KeyRange::prefix("2"))).await;
    assert!(matches!(elsewhere, Err(StoreError::Denied(_))), "{elsewhere:?}");
    let mut watch = store.watch(WatchRequest::from(KeyRange::prefix("/"), revision)).await.unwrap();
    assert_eq!(changes_until(&mut watch, revision).await, [(revision, "/a".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_has_become_invalid_is_replaced() {
    let mut etcd = guarded().await;
    let store = EtcdStore::connect(as_user(&etcd, "alice", "rabbit")).await.unwrap();
    let first = store.put(&key("/a"), "1".into()).await.unwrap();
    // A change of the password, even to the same one, ends all the user's tokens.
    change_password(&etcd, "rabbit").await;
    store.put(&key("/a"), "2".into()).await.unwrap();
    change_password(&etcd, "rabbit").await;
    assert_eq!(store.get(&key("/a")).await.unwrap().unwrap().value, "2");
    change_password(&etcd, "rabbit").await;
    let mut watch = store.watch(WatchRequest::from(KeyRange::prefix("/"), first)).await.unwrap();
    next(&mut watch).await.unwrap();
    // So does a restart; the watch needs a new token, too.
    etcd.restart().await.unwrap();
    let last: Revision = crate::support::put_with_retries(&store, "/a", "3").await;
    changes_until(&mut watch, last).await;

    change_password(&etcd, "hare").await;
    let error = store.put(&key("/a"), "4".into()).await.unwrap_err();
    assert!(matches!(error, StoreError::Denied(_)), "{error}");
    etcd.restart().await.unwrap();
    let ended = loop {
        match next(&mut watch).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(ended, StoreError::Denied(_)), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_ignored_if_authentication_is_not_enabled() {
    let etcd = start().await;
    let store = EtcdStore::connect(as_user(&etcd, "alice", "rabbit")).await.unwrap();
    store.put(&key("/a"), "1".into()).await.unwrap();
}
