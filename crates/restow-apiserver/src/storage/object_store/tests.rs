//! What an object store remembers of its own writes. How objects are stored and read is tested in `tests/objects.rs`.

use super::*;
use crate::builtin::{self, RuntimeConfig};
use crate::release::Release;
use restow_store::conformance::ModelStore;
use serde_json::{Value, json};

const KEY: &str = "/core/configmaps/default/a";

/// Writes an object, and replaces an existing one.
struct Put(Object);

#[async_trait]
impl ObjectDecision for Put {
    async fn decide(&mut self, _before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        Ok(ObjectChange::Write(self.0.clone()))
    }
}

/// Writes a config map with this text, and returns its revision.
async fn put(objects: &ObjectStore, text: &str) -> Revision {
    let resources = builtin::resources(Release::NEWEST, &RuntimeConfig::default());
    let resource = resources.into_iter().find(|resource| resource.names.kind == "ConfigMap").unwrap();
    let version: GroupVersion = "v1".parse().unwrap();
    let place = ObjectRef { resource: &resource, version: &version, namespace: "default", name: "a" };
    let metadata = json!({"name": "a", "namespace": "default"});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}});
    match objects.change(place, &mut Put(Object::from_value(object).unwrap())).await.unwrap() {
        Changed::Created(written) | Changed::Updated(written) => written.revision,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_object_is_written_after_the_store_was_reset_and_has_another_one_at_the_same_revision() {
    let store = Arc::new(ModelStore::default());
    let (here, there) = (ObjectStore::new(store.clone()), ObjectStore::new(store.clone()));
    let backup = store.back_up();
    let lost = put(&here, "a").await;
    store.restore(backup);
    here.clear_recent_writes();
    assert_eq!(put(&there, "b").await, lost);
    put(&here, "a").await;
    let entry = store.get(&Key::try_from(KEY).unwrap()).await.unwrap().unwrap();
    let stored: Value = serde_json::from_slice(&entry.value).unwrap();
    assert_eq!(stored["data"]["text"], "a", "what this server wrote before is lost");
}
