//! Corrupt objects in the store: errors name them, they block no other object, and a user with the permission can delete them.

use crate::request_limits::things;
use futures::{AsyncBufReadExt, TryStreamExt};
use restow_store::{Key, Store, StoreExt};
use restow_store_embedded::{EmbeddedConfig, EmbeddedStore};
use restow_testkit::{ApiClient, Cluster, On, Server, etcd_store};
use serde_json::{Value, json};

const IGNORE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
const MAPS: &str = "/api/v1/namespaces/mine/configmaps";
const THINGS: &str = "/apis/example.com/v1/namespaces/mine/things";

/// Damaged values: a single brace, a truncated object, random bytes, and an object that is nested too deeply.
fn damaged() -> Vec<(&'static str, Vec<u8>)> {
    let opening = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"mine"}"#;
    let deep = format!("{opening},\"data\":{}1{}}}", "{\"a\":".repeat(200), "}".repeat(200));
    vec![
        ("brace", b"{".to_vec()),
        ("broken", opening.into()),
        ("bytes", b"k8s\0\xff\xfe".to_vec()),
        ("deep", deep.into_bytes()),
    ]
}

async fn damage(store: &dyn Store, folder: &str, objects: &[(&str, Vec<u8>)]) {
    for (name, value) in objects {
        let key = Key::try_from(format!("{folder}{name}")).unwrap();
        store.put(&key, value.clone().into()).await.unwrap();
    }
}

async fn prepared(admin: &ApiClient) {
    admin.create_namespace("mine", "mallory", "edit").await;
    admin.create_namespace("other", "other", "edit").await;
    for namespace in ["mine", "other"] {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sound"}});
        assert_eq!(admin.post(&format!("/api/v1/namespaces/{namespace}/configmaps"), map).await.0, 201);
    }
}

/// All errors for damaged objects, and their deletion.
async fn are_named_and_deleted(admin: &ApiClient) {
    let (mallory, other) = (admin.acting_as("mallory"), admin.acting_as("other"));
    let key = |name: &str| format!("/core/configmaps/mine/{name}");
    for (name, _) in damaged() {
        let (code, status) = mallory.get(&format!("{MAPS}/{name}")).await;
        assert_eq!((code, &status["reason"]), (500, &json!("InternalError")), "{name}: {status}");
        let named = format!("StorageError: corrupt object, Code: 7, Key: {}, ", key(name));
        assert!(status["message"].as_str().unwrap().contains(&named), "{status}");
        assert_eq!(mallory.delete(&format!("{MAPS}/{name}"), json!({})).await.0, 500);
        assert_eq!(mallory.patch(&format!("{MAPS}/{name}"), "merge", b"{}".to_vec()).await.0, 500);
    }
    for query in ["", "?limit=10", "?labelSelector=a!%3Db"] {
        // A long list may be cut off once before the error is reported.
        let (code, status) = mallory.get(&format!("{MAPS}{query}")).await;
        assert_eq!((code, &status["reason"]), (500, &json!("StoreReadError")), "{query}: {status}");
        let causes = status["details"]["causes"].as_array().unwrap();
        let fields: Vec<&str> = causes.iter().filter_map(|cause| cause["field"].as_str()).collect();
        assert_eq!(fields, damaged().iter().map(|(name, _)| key(name)).collect::<Vec<_>>(), "{status}");
        assert!(status["message"].as_str().unwrap().ends_with("(and 3 more)"), "{status}");
    }
    assert_eq!(other.get("/api/v1/namespaces/other/configmaps").await.0, 200);
    are_refused(admin, &mallory).await;
    let mut watch = watch(admin, MAPS).await;
    for (name, _) in damaged() {
        let path = format!("{MAPS}/{name}");
        let (code, status) = admin.delete(&path, json!({IGNORE: true, "dryRun": ["All"]})).await;
        assert_eq!((code, &status["status"]), (200, &json!("Success")), "{status}");
        assert_eq!(admin.get(&path).await.0, 500, "a dry run removes nothing");
        let (code, status) = admin.delete(&format!("{path}?{IGNORE}=true"), Value::Null).await;
        assert_eq!((code, &status["details"]), (200, &json!({"name": name, "kind": "ConfigMap"})), "{status}");
        assert_eq!(admin.get(&path).await.0, 404);
        assert_eq!(admin.delete(&path, json!({IGNORE: true})).await.0, 404);
    }
    let left = mallory.get(MAPS).await.1["items"].as_array().unwrap().clone();
    let mut left: Vec<&str> = left.iter().filter_map(|map| map["metadata"]["name"].as_str()).collect();
    // Where the server knows its own CA, it publishes it in every namespace.
    left.retain(|name| *name != "kube-root-ca.crt");
    assert_eq!(left, ["sound"]);
    // A watch gets an ERROR event for the deleted undecodable object, and ends; the client lists again.
    let event = watch.try_next().await.unwrap().unwrap();
    let event: Value = serde_json::from_str(&event).unwrap();
    assert_eq!((&event["type"], &event["object"]["reason"]), (&json!("ERROR"), &json!("StoreReadError")), "{event}");
    assert_eq!(watch.try_next().await.unwrap(), None);
}

/// Users without permission, decodable objects, and invalid options.
async fn are_refused(admin: &ApiClient, mallory: &ApiClient) {
    let broken = format!("{MAPS}/broken");
    let (code, status) = mallory.delete(&broken, json!({IGNORE: true})).await;
    let message =
        "configmaps \"broken\" is forbidden: not permitted to do \"unsafe-delete-ignore-read-errors\", reason: ";
    assert_eq!((code, &status["message"]), (403, &json!(message)));
    let (code, status) = admin.delete(&format!("{MAPS}/sound"), json!({IGNORE: true})).await;
    assert_eq!((code, &status["reason"]), (409, &json!("Conflict")));
    assert!(status["message"].as_str().unwrap().contains("the object is decodable from storage"), "{status}");
    for other in [
        json!({"propagationPolicy": "Background"}),
        json!({"gracePeriodSeconds": 0}),
        json!({"orphanDependents": true}),
        json!({"preconditions": {"uid": "u"}}),
    ] {
        let mut options = json!({IGNORE: true});
        options.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        let (code, status) = admin.delete(&broken, options).await;
        assert_eq!(code, 422, "{status}");
        assert!(status["message"].as_str().unwrap().contains("cannot be set together with ."), "{status}");
    }
    let (code, status) = admin.delete(MAPS, json!({IGNORE: true})).await;
    assert!(status["message"].as_str().unwrap().contains("is not allowed with DELETECOLLECTION"), "{code} {status}");
    assert_eq!(code, 422);
}

async fn watch(
    admin: &ApiClient,
    path: &str,
) -> impl futures::TryStream<Ok = String, Error = std::io::Error> + Unpin + use<> {
    let (_, listed) = admin.get("/api/v1/namespaces/other/configmaps").await;
    let revision = listed["metadata"]["resourceVersion"].as_str().unwrap();
    let request = http::Request::get(format!("{path}?watch=true&resourceVersion={revision}")).body(Vec::new()).unwrap();
    Box::pin(admin.client().request_stream(request).await.unwrap().lines())
}

#[tokio::test]
async fn corrupt_objects_on_etcd_are_named_and_deleted_with_their_namespace_and_crd() {
    let cluster = Cluster::one(On::Etcd).await;
    let admin = ApiClient::admin(cluster.servers[0].client().await);
    prepared(&admin).await;
    admin.create_crd(&things()).await;
    let store = etcd_store(&cluster.etcd_endpoint(), "/registry").await;
    damage(&store, "/core/configmaps/mine/", &damaged()).await;
    are_named_and_deleted(&admin).await;
    damage(&store, "/core/configmaps/mine/", &[("last", b"{".to_vec())]).await;
    damage(&store, "/example.com/things/mine/", &[("last", b"{".to_vec())]).await;
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "sound"}});
    assert_eq!(admin.post(THINGS, thing).await.0, 201);
    // The other objects are deleted, and only undecodable ones stay.
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com";
    assert_eq!(admin.delete(definition, json!({})).await.0, 200);
    admin.wait_for_code("the sound one is gone", &format!("{THINGS}/sound"), 404).await;
    assert_eq!(admin.get(&format!("{THINGS}/last")).await.0, 500);
    assert_eq!(admin.delete(&format!("{THINGS}/last"), json!({IGNORE: true})).await.0, 200);
    admin.wait_for_code("the definition is gone", definition, 404).await;
    assert_eq!(admin.delete("/api/v1/namespaces/mine", json!({})).await.0, 200);
    admin.wait_for_code("the sound one is gone", &format!("{MAPS}/sound"), 404).await;
    assert_eq!(admin.get("/api/v1/namespaces/mine").await.0, 200);
    assert_eq!(admin.delete(&format!("{MAPS}/last"), json!({IGNORE: true})).await.0, 200);
    admin.wait_for_code("the namespace is gone", "/api/v1/namespaces/mine", 404).await;
}

#[tokio::test]
async fn corrupt_objects_on_the_embedded_store_are_named_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up(folder.path());
    prepared(&ApiClient::admin(server.client().await)).await;
    assert!(server.stop().success());
    let store = EmbeddedStore::open(EmbeddedConfig::new(folder.path().join("data/store"))).unwrap();
    damage(&store, "/core/configmaps/mine/", &damaged()).await;
    drop(store);
    let server = Server::up(folder.path());
    are_named_and_deleted(&ApiClient::admin(server.client().await)).await;
}
