//! What a write does to the entries of managedFields of other versions.

use super::*;
use crate::resource::conversion::{ConversionError, Converter, RenameVersion};
use async_trait::async_trait;
use restow_api::GroupVersion;

/// A conversion webhook that is down.
struct Down;

#[async_trait]
impl Converter for Down {
    async fn convert(&self, _: Vec<Object>, target: &GroupVersion) -> Result<Vec<Object>, ConversionError> {
        Err(ConversionError { object: "a".to_owned(), target: target.to_string(), reason: "timeout".to_owned() })
    }
}

fn widgets(converter: impl Converter + 'static) -> Resource {
    Resource::builder("example.com", "widgets", "Widget").served(["v1", "v2"]).converter(converter).build().unwrap()
}

const WRITER: FieldWriter<'static> =
    FieldWriter { manager: "writer", subresource: "", api_version: "example.com/v1", now: "2026-01-01T00:00:00Z" };

/// A widget in v1, of which `manager` has applied the size, in this version.
fn widget(manager: &str, version: &str, size: u64, color: &str) -> Object {
    let entry = json!({"manager": manager, "operation": "Apply", "apiVersion": version, "fieldsType": "FieldsV1",
                       "fieldsV1": {"f:size": {}}});
    let object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "size": size, "color": color,
                        "metadata": {"name": "a", "managedFields": [entry]}});
    Object::from_value(object).unwrap()
}

/// The managers after a write has set the color, where `earlier` owns the size in this version.
async fn managers_after_a_write(resource: &Resource, version: &str, size: u64) -> Vec<String> {
    let (old, mut new) = (widget("earlier", version, 1, "red"), widget("earlier", version, size, "blue"));
    record_change(resource, &WRITER, &old, &mut new, Given::Object).await.unwrap();
    let entries = new.at(&["metadata", "managedFields"]).unwrap().as_array().unwrap().clone();
    let mut managers: Vec<String> = entries.iter().map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect();
    managers.sort();
    managers
}

#[tokio::test]
async fn a_conversion_that_fails_costs_no_manager_its_fields() {
    for resource in [widgets(RenameVersion), widgets(Down)] {
        assert_eq!(managers_after_a_write(&resource, "example.com/v2", 1).await, ["earlier", "writer"]);
    }
}

#[tokio::test]
async fn entries_of_versions_that_do_not_exist_and_of_changed_fields_are_dropped() {
    let resource = widgets(RenameVersion);
    assert_eq!(managers_after_a_write(&resource, "example.com/v3", 1).await, ["writer"]);
    assert_eq!(managers_after_a_write(&resource, "example.com/v2", 2).await, ["writer"]);
}

/// An apply of another size.
fn application(resource: &Resource) -> Application<'_> {
    let configuration = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "size": 2});
    Application::new(resource, WRITER, Object::from_value(configuration).unwrap())
}

#[tokio::test]
async fn an_apply_fails_if_its_conflicts_are_unknown() {
    let (live, wanted) = (widget("other", "example.com/v2", 1, "red"), widget("other", "example.com/v2", 2, "red"));
    let (_, conflicts) = application(&widgets(RenameVersion)).entries(&live, &wanted).await.unwrap();
    assert_eq!(conflicts.iter().map(|conflict| conflict.manager.as_str()).collect::<Vec<_>>(), ["\"other\""]);
    let failure = application(&widgets(Down)).entries(&live, &wanted).await.unwrap_err();
    assert!(failure.to_string().contains("timeout"), "{failure}");
}

#[tokio::test]
async fn an_apply_fails_if_the_fields_that_it_applied_before_are_unknown() {
    async fn without_size(resource: &Resource, live: &Object) -> Result<Object, ApiError> {
        let configuration = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}});
        Application::new(resource, WRITER, Object::from_value(configuration).unwrap()).merged(live).await
    }
    for (version, expected) in [("example.com/v2", None), ("example.com/v3", Some(json!(1)))] {
        let merged = without_size(&widgets(RenameVersion), &widget("writer", version, 1, "red")).await.unwrap();
        assert_eq!(merged.get("size"), expected.as_ref(), "{version}");
    }
    let failed = without_size(&widgets(Down), &widget("writer", "example.com/v2", 1, "red")).await;
    assert!(failed.unwrap_err().to_string().contains("timeout"));
}
