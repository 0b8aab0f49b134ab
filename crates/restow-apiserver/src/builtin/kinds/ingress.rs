//! Ingresses: validation, checks of backends, and conversion of v1beta1's flat backends.

use crate::builtin::checks::by_type::count;
use crate::builtin::checks::{Fields, is_unset};
use crate::builtin::convert::version_of;
use crate::builtin::validation::items;
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

pub(super) struct Ingress;

impl Strategy for Ingress {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        problems(object)
    }
}

fn problems(object: &Object) -> Vec<FieldError> {
    let empty = items(object, &["spec", "rules"]).is_empty() && object.at(&["spec", "defaultBackend"]).is_none();
    match empty {
        true => {
            let detail = "either `defaultBackend` or `rules` must be specified";
            vec![FieldError::invalid("spec", &Value::Null, detail)]
        }
        false => Vec::new(),
    }
}

pub(crate) fn check_backend(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    match count(fields, &["service", "resource"]) {
        0 => found.push(FieldError::invalid(path, &"".into(), "resource or service backend is required")),
        1 => {}
        _ => found.push(FieldError::invalid(path, &"".into(), "cannot set both resource and service backends")),
    }
    let Some(service) = fields.get("service").filter(|service| !service.is_null()) else { return };
    let port = |field: &str| !is_unset(service["port"].get(field));
    match (port("name"), port("number")) {
        (false, false) => found.push(FieldError::required(path, "port name or number is required")),
        (true, true) => found.push(FieldError::invalid(path, &"".into(), "cannot set both port name & port number")),
        _ => {}
    }
}

pub(crate) fn convert(object: &mut Object, _source: &str, target: &str) -> Result<(), String> {
    let old = version_of(target) == "v1beta1";
    let Some(spec) = object.fields_mut().get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
    let (from, to) = if old { ("defaultBackend", "backend") } else { ("backend", "defaultBackend") };
    if let Some(mut backend) = spec.remove(from) {
        convert_backend(&mut backend, old);
        spec.insert(to.into(), backend);
    }
    for rule in spec.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
        let paths = rule.pointer_mut("/http/paths").and_then(Value::as_array_mut);
        paths.into_iter().flatten().filter_map(|path| path.get_mut("backend")).for_each(|b| convert_backend(b, old));
    }
    Ok(())
}

fn convert_backend(backend: &mut Value, old: bool) {
    let Some(fields) = backend.as_object_mut() else { return };
    if old {
        let Some(service) = fields.remove("service").filter(|service| !service.is_null()) else { return };
        let port = &service["port"];
        let port = if port["name"].is_string() { port["name"].clone() } else { port["number"].clone() };
        fields.insert("serviceName".into(), service["name"].clone());
        fields.insert("servicePort".into(), port);
        return;
    }
    let name = fields.remove("serviceName").unwrap_or_default();
    let port = match fields.remove("servicePort").unwrap_or_default() {
        Value::String(name) => json!({"name": name}),
        Value::Number(number) if number.as_i64() != Some(0) => json!({"number": number}),
        _ => json!({}),
    };
    if !name.as_str().unwrap_or_default().is_empty() || port != json!({}) {
        fields.insert("service".into(), json!({"name": name, "port": port}));
    }
}
