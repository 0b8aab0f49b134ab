//! Validation of whole objects of built-in kinds, with Kubernetes' messages: immutable fields, and helpers for the
//! rules of single kinds, which are in `kinds/`.
//!
//! It is a subset of Kubernetes' validation: frequent errors, and fields that clients rely on to be immutable.

#[cfg(test)]
mod tests;

use crate::resource::strategy::Strategy;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::object::Object;
use serde_json::Value;

/// Immutable fields.
const FIXED: [(&str, &str, &[&[&str]]); 15] = [
    ("v1", "ResourceQuota", &[&["spec", "scopes"]]),
    ("v1", "Secret", &[&["type"]]),
    ("apps/v1", "ControllerRevision", &[&["data"]]),
    ("apps/v1", "DaemonSet", &[&["spec", "selector"]]),
    ("apps/v1", "Deployment", &[&["spec", "selector"]]),
    ("apps/v1", "ReplicaSet", &[&["spec", "selector"]]),
    ("networking.k8s.io/v1", "IPAddress", &[&["spec", "parentRef"]]),
    ("networking.k8s.io/v1", "IngressClass", &[&["spec", "controller"]]),
    ("resource.k8s.io/v1", "ResourceClaim", &[&["spec"]]),
    ("resource.k8s.io/v1", "ResourceClaimTemplate", &[&["spec"]]),
    (
        "resource.k8s.io/v1",
        "ResourceSlice",
        &[&["spec", "driver"], &["spec", "pool", "name"], &["spec", "nodeName"], &["spec", "allNodes"]],
    ),
    ("scheduling.k8s.io/v1", "PriorityClass", &[&["preemptionPolicy"]]),
    ("storage.k8s.io/v1", "CSIStorageCapacity", &[&["nodeTopology"], &["storageClassName"]]),
    ("storage.k8s.io/v1", "VolumeAttachment", &[&["spec"]]),
    (
        "batch/v1",
        "Job",
        &[&["spec", "selector"], &["spec", "completionMode"], &["spec", "podFailurePolicy"], &["spec", "template"]],
    ),
];

/// A top-level field and the message when it changes.
type Forbidden = (&'static str, &'static str);

/// Immutable top-level fields with their messages.
const FORBIDDEN: [(&str, &str, &[Forbidden]); 2] = [
    ("scheduling.k8s.io/v1", "PriorityClass", &[("value", "may not be changed in an update.")]),
    (
        "storage.k8s.io/v1",
        "VolumeAttributesClass",
        &[
            ("driverName", "updates to driverName are forbidden."),
            ("parameters", "updates to parameters are forbidden."),
        ],
    ),
];

/// All validation errors of replacing `old` by this object, whose kind has these rules.
pub(super) fn change_problems(rules: &dyn Strategy, object: &Object, old: &Object) -> Vec<FieldError> {
    let kind = (object.api_version(), object.kind());
    let fixed = FIXED.iter().find(|(version, name, _)| (*version, *name) == kind);
    let mut problems = fixed.map(|(_, _, paths)| immutable(object, old, paths)).unwrap_or_default();
    let forbidden = FORBIDDEN.iter().find(|(version, name, _)| (*version, *name) == kind);
    problems.extend(forbidden.map(|(_, _, fields)| forbidden_changes(object, old, fields)).unwrap_or_default());
    problems.extend(rules.validate_change(object, old));
    problems
}

/// The errors for those of these fields that changed.
pub(super) fn forbidden_changes(object: &Object, old: &Object, fields: &[(&str, &str)]) -> Vec<FieldError> {
    let changed = fields.iter().filter(|(field, _)| object.get(field) != old.get(field));
    changed.map(|(field, why)| FieldError::forbidden(*field, *why)).collect()
}

/// The errors for those of these fields that changed.
pub(super) fn immutable(object: &Object, old: &Object, paths: &[&[&str]]) -> Vec<FieldError> {
    let changed = paths.iter().filter(|path| object.at(path) != old.at(path));
    changed.map(|path| FieldError::immutable(path.join("."), object.at(path).unwrap_or(&Value::Null))).collect()
}

/// The error for an unsupported value.
pub(super) fn unsupported(field: impl Into<String>, value: &str, supported: &[&str]) -> FieldError {
    let supported: Vec<String> = supported.iter().map(|text| format!("{text:?}")).collect();
    FieldError {
        field: field.into(),
        rule: FieldRule::NotSupported(Value::from(value).to_string()),
        detail: format!("supported values: {}", supported.join(", ")),
    }
}

/// The error for a duplicate value.
pub(super) fn duplicate(field: impl Into<String>, value: &Value) -> FieldError {
    FieldError { field: field.into(), rule: FieldRule::Duplicate(value.to_string()), detail: String::new() }
}

/// The error for a negative number.
pub(super) fn not_negative(object: &Object, path: &[&str]) -> Option<FieldError> {
    let value = object.at(path)?;
    (value.as_i64()? < 0).then(|| FieldError::invalid(path.join("."), value, "must be greater than or equal to 0"))
}

pub(super) fn port_problem(number: i64, at: &str) -> Option<FieldError> {
    let valid = (1..=65535).contains(&number);
    (!valid).then(|| FieldError::invalid(at, &number.into(), "must be between 1 and 65535, inclusive"))
}

pub(super) fn choice(value: &Value, at: &str, supported: &[&str]) -> Option<FieldError> {
    let text = value.as_str().filter(|text| !text.is_empty())?;
    (!supported.contains(&text)).then(|| unsupported(at, text, supported))
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn items<'a>(object: &'a Object, path: &[&str]) -> &'a [Value] {
    object.at(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
