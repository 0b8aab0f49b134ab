//! PersistentVolumes: the initial status, and which updates are allowed.

use crate::resource::object_meta;
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

pub(super) struct PersistentVolume;

impl Strategy for PersistentVolume {
    fn initial_status(&self, _object: &Object) -> Option<Value> {
        Some(json!({"phase": "Pending", "lastPhaseTransitionTime": object_meta::now()}))
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        change_problems(object, baseline)
    }
}

/// The source, the node affinity and the mode do not change.
fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
    /// All fields except the source.
    const OPEN: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    ];
    let source = |object: &Object| {
        let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        spec.retain(|name, _| !OPEN.contains(&name.as_str()));
        spec
    };
    let mut problems = Vec::new();
    if source(object) != source(old) {
        let field = "spec.persistentvolumesource";
        problems.push(FieldError::forbidden(field, format!("{field} is immutable after creation")));
    }
    let place = |object: &'_ Object| object.at(&["spec", "nodeAffinity"]).cloned().unwrap_or_default();
    if !place(old).is_null() && place(object) != place(old) {
        let detail = "field is immutable, except for updating from beta label to GA";
        problems.push(FieldError::invalid("nodeAffinity", &place(object), detail));
    }
    if object.at(&["spec", "volumeMode"]) != old.at(&["spec", "volumeMode"]) {
        let mode = object.at(&["spec", "volumeMode"]).unwrap_or(&Value::Null);
        problems.push(FieldError::immutable("volumeMode", mode));
    }
    problems
}
