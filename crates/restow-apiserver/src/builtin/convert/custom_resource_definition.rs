//! CustomResourceDefinition: v1beta1, the storage version, has the fields that all versions share at the top of the
//! spec, and the webhook's fields directly in the conversion.

use super::version_of;
use restow_apimachinery::object::Object;
use serde_json::{Map, Value, json};

/// The fields of each version in v1, and their names at the top of the spec in v1beta1.
const SHARED: [(&str, &str); 4] = [
    ("subresources", "subresources"),
    ("schema", "validation"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

pub(super) fn convert(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let Some(spec) = object.fields_mut().get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    match (version_of(source), version_of(target)) {
        ("v1", "v1beta1") => to_v1beta1(spec),
        ("v1beta1", "v1") => to_v1(spec),
        (from, to) => return Err(format!("there is no conversion from {from} to {to}")),
    }
    Ok(())
}

/// The schemas of a CRD in any version, in a fixed order. All versions have the same type of schema.
pub(super) fn schemas(object: &mut Object) -> Vec<&mut Value> {
    let Some(spec) = object.fields_mut().get_mut("spec").and_then(Value::as_object_mut) else { return Vec::new() };
    let (mut first, mut versions) = (None, None);
    for (name, value) in spec {
        match name.as_str() {
            "validation" => first = Some(value),
            "versions" => versions = value.as_array_mut(),
            _ => {}
        }
    }
    let each = versions.into_iter().flatten().filter_map(|version| version.get_mut("schema"));
    let holders = first.into_iter().chain(each);
    holders.filter_map(|holder| holder.get_mut("openAPIV3Schema")).filter(|schema| schema.is_object()).collect()
}

fn to_v1beta1(spec: &mut Map<String, Value>) {
    if let Some(Value::Array(mut versions)) = spec.remove("versions").filter(is_not_empty) {
        versions.iter_mut().for_each(|version| rename_columns(version, "jsonPath", "JSONPath"));
        spec.insert("version".into(), versions[0]["name"].clone());
        for (each, top) in SHARED {
            let first = versions[0].get(each).cloned();
            if versions.iter().any(|version| version.get(each) != first.as_ref()) {
                continue;
            }
            versions.iter_mut().filter_map(Value::as_object_mut).for_each(|version| drop(version.remove(each)));
            if let Some(value) = first {
                spec.insert(top.into(), value);
            }
        }
        spec.insert("versions".into(), versions.into());
    }
    if let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut)
        && let Some(Value::Object(mut webhook)) = conversion.remove("webhook")
    {
        move_field(&mut webhook, "clientConfig", conversion, "webhookClientConfig");
        move_field(&mut webhook, "conversionReviewVersions", conversion, "conversionReviewVersions");
    }
    // The default differs: without this field, v1beta1 kept unknown fields.
    spec.entry("preserveUnknownFields").or_insert(false.into());
}

fn is_not_empty(versions: &Value) -> bool {
    versions.as_array().is_some_and(|versions| !versions.is_empty())
}

fn to_v1(spec: &mut Map<String, Value>) {
    rename_columns_of(spec.get_mut("additionalPrinterColumns"), "JSONPath", "jsonPath");
    let version = spec.remove("version");
    let mut versions = match spec.remove("versions") {
        Some(Value::Array(versions)) if !versions.is_empty() => versions,
        _ => version.into_iter().map(|name| json!({"name": name, "served": true, "storage": true})).collect(),
    };
    versions.iter_mut().for_each(|version| rename_columns(version, "JSONPath", "jsonPath"));
    for (each, top) in SHARED {
        if let Some(value) = spec.remove(top).filter(|value| !value.is_null()) {
            versions.iter_mut().for_each(|version| version[each] = value.clone());
        }
    }
    spec.insert("versions".into(), versions.into());
    if let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) {
        let mut webhook = Map::new();
        move_field(conversion, "webhookClientConfig", &mut webhook, "clientConfig");
        move_field(conversion, "conversionReviewVersions", &mut webhook, "conversionReviewVersions");
        if !webhook.is_empty() {
            conversion.insert("webhook".into(), webhook.into());
        }
    }
}

fn move_field(from: &mut Map<String, Value>, name: &str, to: &mut Map<String, Value>, new_name: &str) {
    if let Some(value) = from.remove(name).filter(|value| !value.is_null()) {
        to.insert(new_name.into(), value);
    }
}

fn rename_columns(version: &mut Value, from: &str, to: &str) {
    rename_columns_of(version.get_mut("additionalPrinterColumns"), from, to);
}

fn rename_columns_of(columns: Option<&mut Value>, from: &str, to: &str) {
    for column in columns.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(column) = column.as_object_mut()
            && let Some(path) = column.remove(from)
        {
            column.insert(to.into(), path);
        }
    }
}
