//! APIServices: their name is their version and group, and local ones are available from the beginning.

use crate::builtin::checks::{Fields, text_at};
use crate::resource::object_meta;
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

pub(super) struct ApiService;

impl Strategy for ApiService {
    fn initial_status(&self, object: &Object) -> Option<Value> {
        let local = object.at(&["spec", "service"]).is_none_or(Value::is_null);
        local.then(|| {
            json!({"conditions": [{
                "type": "Available", "status": "True", "lastTransitionTime": object_meta::now(), "reason": "Local",
                "message": "Local APIServices are always available",
            }]})
        })
    }
}

pub(crate) fn check(fields: &Fields, _: &str, found: &mut Vec<FieldError>) {
    let text = |path: &[&str]| text_at(fields, path);
    let expected = format!("{}.{}", text(&["spec", "version"]), text(&["spec", "group"]));
    let name = text(&["metadata", "name"]);
    if name != expected {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {expected:?}");
        found.push(FieldError::invalid("metadata.name", &name.into(), detail));
    }
    if text(&["spec", "group"]).is_empty() && text(&["spec", "version"]) != "v1" {
        let detail = "only v1 may have an empty group and it better be legacy kube";
        found.push(FieldError::required("spec.group", detail));
    }
    check_verification(fields, found);
}

/// A local APIService has no certificate to verify, and one is either verified or not.
fn check_verification(fields: &Fields, found: &mut Vec<FieldError>) {
    let spec = fields.get("spec").unwrap_or(&Value::Null);
    let (bundle, skip) = (spec["caBundle"].as_str().unwrap_or_default(), spec["insecureSkipTLSVerify"] == true);
    let local = spec["service"].is_null();
    if local && !bundle.is_empty() {
        let size = bundle.trim_end_matches('=').len() * 3 / 4;
        let detail = "local APIServices may not have a caBundle";
        found.push(FieldError::invalid("spec.caBundle", &format!("{size} bytes").into(), detail));
    }
    let problem = match (local, bundle.is_empty()) {
        (true, _) => "local APIServices may not have insecureSkipTLSVerify",
        (false, false) => "may not be true if caBundle is present",
        (false, true) => return,
    };
    if skip {
        found.push(FieldError::invalid("spec.insecureSkipTLSVerify", &true.into(), problem));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_api_service_has_no_certificate_to_verify() {
        let check = |spec: Value, expected: &[&str]| {
            let mut found = Vec::new();
            let object = json!({"metadata": {"name": "v1.a"}, "spec": spec});
            super::check(object.as_object().unwrap(), "", &mut found);
            let found: Vec<String> = found.iter().map(|error| error.to_string()).collect();
            assert_eq!(found, expected, "{spec}");
        };
        check(json!({"group": "a", "version": "v1"}), &[]);
        check(
            json!({"group": "a", "version": "v1", "caBundle": "YWI="}),
            &["spec.caBundle: Invalid value: \"2 bytes\": local APIServices may not have a caBundle"],
        );
        check(
            json!({"group": "a", "version": "v1", "caBundle": "YWI=", "insecureSkipTLSVerify": true, "service": {}}),
            &["spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present"],
        );
    }
}
