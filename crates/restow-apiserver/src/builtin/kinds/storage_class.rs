//! StorageClasses: which updates are allowed.

use crate::builtin::validation::forbidden_changes;
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::Value;

pub(super) struct StorageClass;

impl Strategy for StorageClass {
    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        change_problems(object, baseline)
    }
}

fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
    let mut problems = forbidden_changes(
        object,
        old,
        &[
            ("parameters", "updates to parameters are forbidden."),
            ("reclaimPolicy", "updates to reclaimPolicy are forbidden."),
        ],
    );
    if object.get("provisioner") != old.get("provisioner") {
        problems.push(FieldError::immutable("provisioner", &Value::Null));
    }
    if object.get("volumeBindingMode") != old.get("volumeBindingMode") {
        problems
            .push(FieldError::immutable("volumeBindingMode", object.get("volumeBindingMode").unwrap_or(&Value::Null)));
    }
    problems
}
