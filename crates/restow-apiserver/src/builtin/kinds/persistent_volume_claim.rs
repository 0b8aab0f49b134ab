//! PersistentVolumeClaims: the initial status, the requested storage, and which updates are allowed.

use crate::builtin::checks::{Fields, below};
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::Amount;
use serde_json::{Value, json};

pub(super) struct PersistentVolumeClaim;

impl Strategy for PersistentVolumeClaim {
    fn initial_status(&self, _object: &Object) -> Option<Value> {
        Some(json!({"phase": "Pending"}))
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        change_problems(object, baseline)
    }
}

/// The specification does not change; a bound claim may request more storage.
fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
    let fixed = |object: &Object| {
        let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        // Binding a claim sets its volume once.
        if old.text(&["spec", "volumeName"]).is_empty() {
            spec.remove("volumeName");
        }
        if old.text(&["status", "phase"]) == "Bound" {
            spec.remove("resources");
        }
        spec.remove("volumeAttributesClassName");
        spec
    };
    if fixed(object) == fixed(old) {
        return Vec::new();
    }
    let detail =
        "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
    vec![FieldError::forbidden("spec", detail)]
}

pub(crate) fn check_spec(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let asked = fields.get("resources").and_then(|resources| resources.pointer("/requests/storage"));
    match asked {
        None => found.push(FieldError::required(below(path, "resources[storage]"), "")),
        Some(asked) if Amount::read(asked).is_some_and(|amount| amount <= Amount::default()) => {
            let at = below(path, "resources[storage]");
            found.push(FieldError::invalid(at, asked, "must be greater than zero"));
        }
        Some(_) => {}
    }
}
