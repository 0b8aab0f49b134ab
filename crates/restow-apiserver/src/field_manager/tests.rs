//! What a write does to the entries of managedFields of other versions.

use super::*;
use crate::resource::conversion::{ConversionError, Converter, RenameVersion};
use crate::resource::strategy::Plain;
use crate::resource::{Names, Scope};
use async_trait::async_trait;
use restow_api::{GroupResource, GroupVersion};

/// A conversion webhook that is down.
struct Down;

#[async_trait]
impl Converter for Down {
    async fn convert(&self, _: Vec<Object>, target: &GroupVersion) -> Result<Vec<Object>, ConversionError> {
        Err(ConversionError { object: "a".to_owned(), target: target.to_string(), reason: "timeout".to_owned() })
    }
}

fn widgets(converter: Arc<dyn Converter>) -> Resource {
    let versions = ["example.com/v1", "example.com/v2"].map(|version| version.parse().unwrap());
    Resource {
        group_resource: GroupResource::new("example.com", "widgets").unwrap(),
        names: Names { kind: "Widget".into(), ..Names::default() },
        scope: Scope::Cluster,
        verbs: Vec::new(),
        served: versions.to_vec(),
        subresources: Vec::new(),
        selectable_fields: Vec::new(),
        storage: None,
        strategy: Arc::new(Plain),
        converter,
        origin: Origin::Custom,
        custom: None,
    }
}

/// The managers after `writer` has set the color of an object in v1, where `earlier` owns its size in this version.
async fn managers_after_a_write(converter: Arc<dyn Converter>, version: &str, size: u64) -> Vec<String> {
    let entry = json!({"manager": "earlier", "operation": "Apply", "apiVersion": version, "fieldsType": "FieldsV1",
                       "fieldsV1": {"f:size": {}}});
    let object = |size: u64, color: Value| {
        let object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "size": size, "color": color,
                            "metadata": {"name": "a", "managedFields": [entry]}});
        Object::from_value(object).unwrap()
    };
    let (old, mut new) = (object(1, json!("red")), object(size, json!("blue")));
    let writer =
        FieldWriter { manager: "writer", subresource: "", api_version: "example.com/v1", now: "2026-01-01T00:00:00Z" };
    record_change(&widgets(converter), &writer, &old, &mut new, Given::Object).await.unwrap();
    let entries = new.at(&["metadata", "managedFields"]).unwrap().as_array().unwrap().clone();
    let mut managers: Vec<String> = entries.iter().map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect();
    managers.sort();
    managers
}

#[tokio::test]
async fn a_conversion_that_fails_costs_no_manager_its_fields() {
    for converter in [Arc::new(RenameVersion) as Arc<dyn Converter>, Arc::new(Down)] {
        assert_eq!(managers_after_a_write(converter, "example.com/v2", 1).await, ["earlier", "writer"]);
    }
}

#[tokio::test]
async fn entries_of_versions_that_do_not_exist_and_of_changed_fields_are_dropped() {
    let rename = || Arc::new(RenameVersion);
    assert_eq!(managers_after_a_write(rename(), "example.com/v3", 1).await, ["writer"]);
    assert_eq!(managers_after_a_write(rename(), "example.com/v2", 2).await, ["writer"]);
}
