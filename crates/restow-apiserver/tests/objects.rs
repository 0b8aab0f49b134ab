//! How objects are stored and read: in which version, and with which fields, a client gets what was stored in another one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use async_trait::async_trait;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use restow_api::{GroupResource, GroupVersion};
use restow_apimachinery::object::Object;
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::error::ApiError;
use restow_apiserver::release::Release;
use restow_apiserver::resource::conversion::{ConversionError, Converter, RenameVersion};
use restow_apiserver::resource::registry::Registry;
use restow_apiserver::resource::strategy::Plain;
use restow_apiserver::resource::{Names, Origin, Resource, Scope, Storage, Verb};
use restow_apiserver::{ApiServer, Changed, ObjectChange, ObjectDecision, ObjectRef, ObjectStore, ServerConfig, call};
use restow_auth::User;
use restow_store::conformance::ModelStore;
use restow_store::{Entry, Key, Store, StoreExt};
use restow_testkit::eventually;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const KEY: &str = "/example.com/widgets/default/a";

fn version(text: &str) -> GroupVersion {
    text.parse().unwrap()
}

/// Widgets in two versions, stored in the first.
fn widgets(converter: Arc<dyn Converter>) -> Resource {
    let location = GroupResource::new("example.com", "widgets").unwrap();
    let versions = vec![version("example.com/v1"), version("example.com/v2")];
    Resource {
        group_resource: location.clone(),
        names: Names { kind: "Widget".into(), ..Names::default() },
        scope: Scope::Namespaced,
        verbs: Verb::ALL.to_vec(),
        served: versions.clone(),
        subresources: Vec::new(),
        selectable_fields: Vec::new(),
        storage: Some(Arc::new(Storage::new(location, versions[0].clone(), versions))),
        strategy: Arc::new(Plain),
        converter,
        origin: Origin::Custom,
        custom: None,
    }
}

fn widget(version: &str, size: u64) -> Value {
    json!({"apiVersion": version, "kind": "Widget", "metadata": {"name": "a", "namespace": "default"}, "size": size})
}

/// Writes an object, and replaces an existing one.
struct Put(Object);

#[async_trait]
impl ObjectDecision for Put {
    async fn decide(&mut self, _before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        Ok(ObjectChange::Write(self.0.clone()))
    }
}

async fn put(objects: &ObjectStore, resource: &Resource, size: u64) -> Changed {
    let version = version("example.com/v1");
    let place = ObjectRef { resource, version: &version, namespace: "default", name: "a" };
    let object = Object::from_value(widget("example.com/v1", size)).unwrap();
    objects.change(place, &mut Put(object)).await.unwrap()
}

async fn stored(store: &Arc<dyn Store>, key: &str) -> Option<Entry> {
    store.get(&Key::try_from(key.to_owned()).unwrap()).await.unwrap()
}

async fn stored_size(store: &Arc<dyn Store>) -> Value {
    let entry = stored(store, KEY).await.unwrap();
    serde_json::from_slice::<Value>(&entry.value).unwrap()["size"].take()
}

#[tokio::test]
async fn an_object_that_another_server_has_changed_is_written_again() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::default());
    let (here, there) = (ObjectStore::new(store.clone()), ObjectStore::new(store.clone()));
    let resource = widgets(Arc::new(RenameVersion));
    assert!(matches!(put(&here, &resource, 1).await, Changed::Created(_)));
    put(&there, &resource, 2).await;
    let Changed::Updated(written) = put(&here, &resource, 1).await else { panic!("it exists") };
    assert_eq!(stored_size(&store).await, 1, "this server remembers what it wrote, which is not there any more");
    let entry = stored(&store, KEY).await.unwrap();
    assert_eq!(written.revision, entry.mod_revision);
    put(&here, &resource, 1).await;
    put(&there, &resource, 1).await;
    assert_eq!(stored(&store, KEY).await.unwrap().mod_revision, entry.mod_revision, "the same bytes are not written");
}

#[tokio::test]
async fn all_objects_of_a_list_are_converted_to_the_requested_version() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::default());
    let resource = widgets(Arc::new(RenameVersion));
    let mut entries = Vec::new();
    for (name, stored_in) in [("a", "example.com/v1"), ("b", "example.com/v2")] {
        let key = Key::try_from(format!("/example.com/widgets/default/{name}")).unwrap();
        store.put(&key, widget(stored_in, 1).to_string().into()).await.unwrap();
        entries.push(store.get(&key).await.unwrap().unwrap());
    }
    for entries in [&entries[..1], &entries[1..], &entries[..]] {
        for wanted in ["example.com/v1", "example.com/v2"] {
            let found = resource.decode_all(entries, &version(wanted)).await.unwrap();
            let versions: Vec<&str> = found.iter().map(Object::api_version).collect();
            assert_eq!(versions, vec![wanted; entries.len()]);
            assert_eq!(resource.decode(&entries[0], &version(wanted)).await.unwrap().api_version(), wanted);
        }
    }
}

/// A conversion that fails.
struct Failing {
    calls_webhook: bool,
}

#[async_trait]
impl Converter for Failing {
    async fn convert(&self, _objects: Vec<Object>, target: &GroupVersion) -> Result<Vec<Object>, ConversionError> {
        let (object, target, reason) = ("a".to_owned(), target.to_string(), "no".to_owned());
        Err(ConversionError { object, target, reason })
    }

    fn calls_webhook(&self) -> bool {
        self.calls_webhook
    }
}

#[tokio::test]
async fn an_object_that_cannot_be_converted_is_corrupt_unless_a_webhook_is_to_blame() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::default());
    put(&ObjectStore::new(store.clone()), &widgets(Arc::new(RenameVersion)), 1).await;
    let entry = stored(&store, KEY).await.unwrap();
    for calls_webhook in [false, true] {
        let resource = widgets(Arc::new(Failing { calls_webhook }));
        let failure = resource.decode(&entry, &version("example.com/v2")).await.unwrap_err();
        assert_eq!(matches!(failure, ApiError::Corrupt(_)), !calls_webhook, "{failure:?}");
        assert!(resource.decode(&entry, &version("example.com/v1")).await.is_ok(), "it is stored in this version");
    }
}

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

async fn server(store: &Arc<dyn Store>) -> Arc<ApiServer> {
    let resources = builtin::resources(Release::NEWEST, &RuntimeConfig::default());
    let config = ServerConfig::new(store.clone(), Registry::new(resources), "127.0.0.1:6443".parse().unwrap());
    let server = ApiServer::new(config).await.unwrap();
    server.ready().await.unwrap();
    server
}

/// Sends a request of an administrator, and returns the code and the answer.
async fn ask(server: &ApiServer, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let groups = vec!["system:masters".into()];
    let admin = User { name: "admin".into(), uid: String::new(), groups, extra: BTreeMap::new() };
    let body = Full::new(Bytes::from(if body.is_null() { String::new() } else { body.to_string() }));
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body);
    let response = call(server, request.unwrap(), admin).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// A CRD of which only the second version, which is not stored, has the field `extra`.
fn crd() -> Value {
    let schema = |properties: Value| json!({"openAPIV3Schema": {"type": "object", "properties": properties}});
    let (size, text) = (json!({"type": "integer"}), json!({"type": "string"}));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": schema(json!({"size": size}))},
                {"name": "v2", "served": true, "storage": false, "schema": schema(json!({"size": size, "extra": text}))},
            ],
        },
    })
}

fn widgets_path(version: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/widgets")
}

#[tokio::test]
async fn a_response_lacks_the_fields_that_the_stored_version_does_not_have() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::default());
    let server = server(&store).await;
    assert_eq!(ask(&server, "POST", CRDS, &crd()).await.0, 201);
    eventually("the resource is served in both versions", || async {
        let served = [
            ask(&server, "GET", &widgets_path("v1"), &Value::Null).await.0,
            ask(&server, "GET", &widgets_path("v2"), &Value::Null).await.0,
        ];
        served == [200, 200]
    })
    .await;
    let mut object = widget("example.com/v2", 1);
    object["extra"] = json!("text");
    let (code, created) = ask(&server, "POST", &widgets_path("v2"), &object).await;
    assert_eq!(
        (code, &created["apiVersion"], &created["size"]),
        (201, &json!("example.com/v2"), &json!(1)),
        "{created}"
    );
    assert_eq!(created.get("extra"), None, "it was not stored");
    let bytes = stored(&store, KEY).await.unwrap().value;
    let raw: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!((&raw["apiVersion"], raw.get("extra")), (&json!("example.com/v1"), None), "{raw}");
    for wanted in ["v1", "v2"] {
        let (code, list) = ask(&server, "GET", &widgets_path(wanted), &Value::Null).await;
        let item = &list["items"][0];
        assert_eq!((code, &item["apiVersion"]), (200, &json!(format!("example.com/{wanted}"))), "{list}");
    }
    // What an earlier release of the CRD has left in the store is not shown.
    let mut left = raw.clone();
    left["extra"] = json!("left");
    store.put(&Key::try_from(KEY.to_owned()).unwrap(), left.to_string().into()).await.unwrap();
    let (_, read) = ask(&server, "GET", &format!("{}/a", widgets_path("v1")), &Value::Null).await;
    assert_eq!((&read["size"], read.get("extra")), (&json!(1), None), "{read}");
}

#[tokio::test]
async fn an_object_that_cannot_be_decoded_is_deleted_on_request_and_not_by_a_dry_run() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::default());
    let server = server(&store).await;
    let (path, key) = ("/api/v1/namespaces/default/configmaps", "/core/configmaps/default/broken");
    let map = json!({"metadata": {"name": "broken"}});
    assert_eq!(ask(&server, "POST", path, &map).await.0, 201);
    assert!(stored(&store, key).await.is_some());
    let unsafely = "ignoreStoreReadErrorWithClusterBreakingPotential=true";
    let (code, _) = ask(&server, "DELETE", &format!("{path}/broken?{unsafely}"), &Value::Null).await;
    assert_eq!(code, 409, "it can be decoded");
    store.put(&Key::try_from(key.to_owned()).unwrap(), "nonsense".into()).await.unwrap();
    for (dry_run, remains) in [("&dryRun=All", true), ("", false)] {
        let (code, answer) = ask(&server, "DELETE", &format!("{path}/broken?{unsafely}{dry_run}"), &Value::Null).await;
        assert_eq!(code, 200, "{answer}");
        assert_eq!(stored(&store, key).await.is_some(), remains);
    }
}
