//! PriorityClasses: names that begin with `system-` are reserved. Admission gives pods their priority: `admission/pods.rs`.

use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;

/// The classes that may have the reserved prefix.
const SYSTEM_CLASSES: [&str; 2] = ["system-cluster-critical", "system-node-critical"];

pub(super) struct PriorityClass;

impl Strategy for PriorityClass {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        problems(object)
    }
}

fn problems(object: &Object) -> Vec<FieldError> {
    let name = object.name();
    if !name.starts_with("system-") || SYSTEM_CLASSES.contains(&name) {
        return Vec::new();
    }
    let detail = format!(
        "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a known system \
         priority class"
    );
    vec![FieldError::forbidden("metadata.name", detail)]
}
