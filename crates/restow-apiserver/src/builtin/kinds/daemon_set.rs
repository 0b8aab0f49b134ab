//! DaemonSets: the template generation, and checks of the rollout. What is shared is in `workloads.rs`.

use crate::builtin::checks::{Fields, below};
use crate::builtin::kinds::workloads::{self, check_strategy};
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// The annotation that counts the changes of the template.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub(super) struct DaemonSet;

impl Strategy for DaemonSet {
    fn prepare_create(&self, object: &mut Object) {
        set_template_generation(object, 1);
    }

    fn prepare_update(&self, object: &mut Object, old: &Object) {
        let template = &["spec", "template"];
        let before = old.annotation(TEMPLATE_GENERATION).and_then(|text| text.parse::<i64>().ok());
        let changed = object.at(template) != old.at(template);
        set_template_generation(object, before.unwrap_or_default() + i64::from(changed));
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        workloads::problems(object, workloads::selector_problems(object))
    }
}

fn set_template_generation(object: &mut Object, count: i64) {
    let annotations = object.metadata_mut().entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(TEMPLATE_GENERATION.into(), count.to_string().into());
    }
}

pub(crate) fn check_rolling_update(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let is_some = |name: &str| match fields.get(name) {
        Some(Value::String(share)) => share != "0%",
        Some(value) => value.as_i64().is_some_and(|number| number != 0),
        None => false,
    };
    match (is_some("maxUnavailable"), is_some("maxSurge")) {
        (false, false) => {
            found.push(FieldError::required(below(path, "maxUnavailable"), "cannot be 0 when maxSurge is 0"));
        }
        (true, true) => {
            let (at, value) = (below(path, "maxSurge"), fields.get("maxSurge").unwrap_or(&Value::Null));
            found.push(FieldError::invalid(at, value, "may not be set when maxUnavailable is non-zero"));
        }
        _ => {}
    }
}

pub(crate) fn check_rollout(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let known = ["RollingUpdate", "OnDelete"];
    check_strategy(fields, path, &known, &[("MaxUnavailable", "maxUnavailable"), ("MaxSurge", "maxSurge")], found);
}
