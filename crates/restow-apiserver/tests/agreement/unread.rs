//! Nothing is deleted because something else could not be read: owners of unknown kinds, owners that are damaged, objects of
//! kinds that are not served.

use crate::fixture::*;
use restow_store::{Key, Store, StoreExt, Txn};
use serde_json::{Value, json};
use std::sync::Arc;

fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

async fn put(store: &Arc<dyn Store>, name: &str, value: impl Into<bytes::Bytes>) {
    store.put(&key(name), value.into()).await.unwrap();
}

async fn exists(store: &Arc<dyn Store>, name: &str) -> bool {
    store.get(&key(name)).await.unwrap().is_some()
}

/// A config map with an owner.
async fn put_owned(store: &Arc<dyn Store>, name: &str, api_version: &str, kind: &str) {
    let owner = json!({"apiVersion": api_version, "kind": kind, "name": "owner", "uid": "the-owner"});
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "uid": name, "ownerReferences": [owner]},
    });
    put(store, &format!("/core/configmaps/default/{name}"), object.to_string()).await;
}

async fn gone(store: &Arc<dyn Store>, name: &str) {
    eventually(name, || async { !exists(store, name).await }).await;
}

#[tokio::test]
async fn an_object_whose_owner_cannot_be_decoded_is_not_collected() {
    let store = store();
    let _server = start(&store, "a", "1.31", "").await;
    // It exists, but cannot be decoded.
    put(&store, "/apps/deployments/default/owner", &b"k8s\0\n\x13\n\x07apps/v1\x12\x08Deploy"[..]).await;
    put_owned(&store, "of-a-damaged-one", "apps/v1", "Deployment").await;
    put_owned(&store, "of-an-unknown-kind", "example.com/v1", "Widget").await;
    put_owned(&store, "of-an-unknown-version", "apps/v1beta9", "Deployment").await;
    // These must be collected, which shows that the collector has processed the others: twice, since failures are
    // retried later.
    for control in ["first", "second"] {
        put_owned(&store, control, "v1", "Secret").await;
        gone(&store, &format!("/core/configmaps/default/{control}")).await;
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    }
    for kept in ["of-a-damaged-one", "of-an-unknown-kind", "of-an-unknown-version"] {
        assert!(exists(&store, &format!("/core/configmaps/default/{kept}")).await, "{kept} was deleted");
    }
    // When the owner is known to be deleted, its dependent is deleted.
    store.txn(Txn::new().delete(&key("/apps/deployments/default/owner"))).await.unwrap();
    gone(&store, "/core/configmaps/default/of-a-damaged-one").await;
}

fn terminating(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "uid": name, "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Terminating"},
    })
}

#[tokio::test]
async fn a_namespace_is_kept_while_objects_in_it_are_stored() {
    let store = store();
    let _server = start(&store, "a", "1.31", "").await;
    let widget = r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w","namespace":"full"}}"#;
    put(&store, "/example.com/widgets/full/w", widget).await;
    put(&store, "/core/namespaces/full", terminating("full").to_string()).await;
    // It is processed later.
    put(&store, "/core/namespaces/none", terminating("none").to_string()).await;
    gone(&store, "/core/namespaces/none").await;
    assert!(exists(&store, "/core/namespaces/full").await, "a widget, which is not served, lies in it");
    store.txn(Txn::new().delete(&key("/example.com/widgets/full/w"))).await.unwrap();
    gone(&store, "/core/namespaces/full").await;
}

/// A config map that owns others.
fn owner(name: &str) -> Value {
    let metadata = json!({"name": name, "namespace": "default", "uid": name});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

/// The same when it is deleted, and waits until its dependents have lost it.
fn orphaning(name: &str) -> Value {
    let mut object = owner(name);
    object["metadata"]["finalizers"] = json!(["orphan"]);
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    object
}

#[tokio::test]
async fn an_owner_waits_for_dependents_whose_resource_is_not_served() {
    let store = store();
    let _server = start(&store, "a", "1.31", "").await;
    let dependent = |owner: &str, api_version: &str, kind: &str| {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": owner});
        let metadata = json!({"name": "d", "namespace": "default", "uid": "d", "ownerReferences": [owner]});
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}).to_string()
    };
    for name in ["unserved", "served"] {
        put(&store, &format!("/core/configmaps/default/{name}"), owner(name).to_string()).await;
    }
    put(&store, "/example.com/widgets/default/d", dependent("unserved", "example.com/v1", "Widget")).await;
    put(&store, "/core/secrets/default/d", dependent("served", "v1", "Secret")).await;
    for name in ["unserved", "served"] {
        put(&store, &format!("/core/configmaps/default/{name}"), orphaning(name).to_string()).await;
    }
    gone(&store, "/core/configmaps/default/served").await;
    assert!(exists(&store, "/core/secrets/default/d").await, "it was to be kept");
    assert!(exists(&store, "/core/configmaps/default/unserved").await, "the widget still has the reference");
    store.txn(Txn::new().delete(&key("/example.com/widgets/default/d"))).await.unwrap();
    gone(&store, "/core/configmaps/default/unserved").await;
}
