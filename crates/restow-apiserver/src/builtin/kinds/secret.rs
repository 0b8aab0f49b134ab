//! Secrets: `stringData`, and the keys that a type requires. Other rules are those of ConfigMaps.

use crate::builtin::kinds::config_map::{binary_bytes, frozen, map_keys, too_much};
use crate::resource::strategy::Strategy;
use base64::Engine;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::{Map, Value, json};

type Fields = Map<String, Value>;

pub(super) struct Secret;

impl Strategy for Secret {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let mut problems = map_keys(object, &["data"]);
        problems.extend(too_much(binary_bytes(object, "data"), "data"));
        problems.extend(secret_keys(object));
        problems
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        frozen(object, baseline, &["data"])
    }
}

/// The keys that a type requires.
fn secret_keys(object: &Object) -> Vec<FieldError> {
    let needed: &[&str] = match object.text(&["type"]) {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        _ => &[],
    };
    let missing = needed.iter().filter(|key| object.at(&["data", key]).is_none());
    missing.map(|key| FieldError::required(format!("data[{key}]"), "")).collect()
}

/// Moves `stringData` to `data`.
pub(crate) fn default(fields: &mut Fields) {
    let Some(Value::Object(texts)) = fields.remove("stringData") else { return };
    let data = fields.entry("data").or_insert_with(|| json!({}));
    if let Some(data) = data.as_object_mut() {
        for (name, text) in texts {
            let bytes = text.as_str().unwrap_or_default().as_bytes();
            data.insert(name, base64::prelude::BASE64_STANDARD.encode(bytes).into());
        }
    }
}
