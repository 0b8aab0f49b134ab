//! ConfigMaps: keys, size and `immutable`. Secrets share these rules.

use crate::resource::strategy::Strategy;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::names::config_key_problems;
use restow_apimachinery::object::Object;
use serde_json::Value;

pub(super) struct ConfigMap;

impl Strategy for ConfigMap {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let mut problems = map_keys(object, &["data", "binaryData"]);
        problems.extend(keys_in_both(object));
        // Kubernetes reports the error on the whole object.
        problems.extend(too_much(text_bytes(object, "data") + binary_bytes(object, "binaryData"), "[]"));
        problems
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        frozen(object, baseline, &["data", "binaryData"])
    }
}

/// An object with `immutable: true` does not change, and stays immutable.
pub(crate) fn frozen(object: &Object, old: &Object, fields: &[&str]) -> Vec<FieldError> {
    let is_immutable = |object: &Object| object.get("immutable") == Some(&Value::Bool(true));
    if !is_immutable(old) {
        return Vec::new();
    }
    let detail = "field is immutable when `immutable` is set";
    let mut problems = Vec::new();
    if !is_immutable(object) {
        problems.push(FieldError::forbidden("immutable", detail));
    }
    let changed = fields.iter().filter(|field| object.get(field) != old.get(field));
    problems.extend(changed.map(|field| FieldError::forbidden(*field, detail)));
    problems
}

/// Keys are valid file names.
pub(crate) fn map_keys(object: &Object, fields: &[&str]) -> Vec<FieldError> {
    let mut problems = Vec::new();
    for field in fields {
        for (key, _) in object.get(field).and_then(Value::as_object).into_iter().flatten() {
            let (path, value) = (format!("{field}[{key}]"), key.as_str().into());
            let found = config_key_problems(key).into_iter();
            problems.extend(found.map(|detail| FieldError::invalid(&path, &value, detail)));
        }
    }
    problems
}

/// A key is in `data` or in `binaryData`, not in both.
fn keys_in_both(object: &Object) -> Vec<FieldError> {
    let keys = object.get("data").and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key);
    let twice = keys.filter(|key| object.at(&["binaryData", key]).is_some());
    let problem = "duplicate of key present in binaryData";
    twice.map(|key| FieldError::invalid(format!("data[{key}]"), &key.as_str().into(), problem)).collect()
}

/// The maximum size of the data of a ConfigMap or Secret.
const MAX_DATA_BYTES: usize = 1 << 20;

pub(crate) fn too_much(bytes: usize, field: &str) -> Option<FieldError> {
    let detail = format!("may not be more than {MAX_DATA_BYTES} bytes");
    (bytes > MAX_DATA_BYTES).then(|| FieldError { field: field.into(), rule: FieldRule::TooLong, detail })
}

/// The size of a map of texts.
fn text_bytes(object: &Object, field: &str) -> usize {
    texts(object, field).map(str::len).sum()
}

/// The decoded size of a map of base64 values.
pub(crate) fn binary_bytes(object: &Object, field: &str) -> usize {
    texts(object, field).map(|text| text.trim_end_matches('=').len() * 3 / 4).sum()
}

fn texts<'a>(object: &'a Object, field: &str) -> impl Iterator<Item = &'a str> {
    object.get(field).and_then(Value::as_object).into_iter().flatten().filter_map(|(_, value)| value.as_str())
}
