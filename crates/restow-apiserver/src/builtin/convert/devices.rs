//! Resource claims and slices: requests and devices that are flat in some versions and nested in others.

use super::version_of;
use restow_apimachinery::object::Object;
use serde_json::{Map, Value, json};

/// The fields of a flat request for one device.
const EXACT: [&str; 8] = [
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
];

/// The version has flat requests and nested devices.
fn is_early(version: &str) -> bool {
    matches!(version, "v1alpha3" | "v1beta1")
}

fn check(source: &str, target: &str) -> Result<(), String> {
    match [source, target].iter().any(|version| version_of(version) == "v1alpha2") {
        true => Err("v1alpha2 was replaced without a conversion; delete the object and create it anew".into()),
        false => Ok(()),
    }
}

pub(super) fn claim(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    check(source, target)?;
    let (from, to) = (is_early(version_of(source)), is_early(version_of(target)));
    let spec = object.fields_mut().get_mut("spec");
    // A template contains the specification of a claim.
    let spec = spec.and_then(|spec| if spec.get("devices").is_some() { Some(spec) } else { spec.get_mut("spec") });
    let requests = spec.and_then(|spec| spec.pointer_mut("/devices/requests")).and_then(Value::as_array_mut);
    for request in requests.into_iter().flatten().filter_map(Value::as_object_mut) {
        match (from, to) {
            (true, false) => nest_request(request),
            (false, true) => flatten(request, "exactly"),
            _ => {}
        }
    }
    Ok(())
}

fn nest_request(request: &mut Map<String, Value>) {
    let said = |name: &str, value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => name != "count" || number.as_i64() != Some(0),
        _ => true,
    };
    let mut exactly = Map::new();
    for name in EXACT {
        if let Some(value) = request.remove(name).filter(|value| said(name, value)) {
            exactly.insert(name.into(), value);
        }
    }
    if !exactly.is_empty() {
        request.insert("exactly".into(), exactly.into());
    }
}

pub(super) fn slice(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    check(source, target)?;
    let (source, target) = (version_of(source), version_of(target));
    let spec = object.fields_mut().get_mut("spec");
    let devices = spec.and_then(|spec| spec.get_mut("devices")).and_then(Value::as_array_mut);
    for device in devices.into_iter().flatten().filter_map(Value::as_object_mut) {
        if is_early(source) {
            flatten(device, "basic");
        }
        if source == "v1alpha3" {
            capacities(device, |quantity| json!({"value": quantity}));
        }
        if target == "v1alpha3" {
            capacities(device, |capacity| capacity["value"].clone());
        }
        if is_early(target) {
            let name = device.remove("name").unwrap_or_default();
            let basic = std::mem::take(device);
            device.insert("name".into(), name);
            device.insert("basic".into(), basic.into());
        }
    }
    Ok(())
}

fn capacities(device: &mut Map<String, Value>, change: impl Fn(&Value) -> Value) {
    if let Some(map) = device.get_mut("capacity").and_then(Value::as_object_mut) {
        map.values_mut().for_each(|value| *value = change(value));
    }
}

/// Moves the fields of a nested object up to the level of its field.
fn flatten(fields: &mut Map<String, Value>, nested: &str) {
    if let Some(Value::Object(inner)) = fields.remove(nested) {
        fields.extend(inner);
    }
}
