//! Deployments: checks of the rollout, and the conversion of `rollbackTo`. What is shared is in `workloads.rs`.

use crate::builtin::checks::by_type::{count, number};
use crate::builtin::checks::{Fields, below, text_at};
use crate::builtin::convert::version_of;
use crate::builtin::kinds::workloads::{self, check_strategy};
use crate::resource::strategy::{ScaleFields, ScaleSelector, Strategy};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// The annotation in which versions after v1beta1 keep `rollbackTo`.
const ROLLBACK: &str = "deprecated.deployment.rollback.to";

pub(super) struct Deployment;

impl Strategy for Deployment {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        workloads::problems(object, workloads::selector_problems(object))
    }

    fn scale(&self, _api_version: &str) -> Option<ScaleFields> {
        Some(workloads::scale(ScaleSelector::Selector(vec!["spec".into(), "selector".into()])))
    }
}

pub(crate) fn check_spec(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let Some(deadline) = number(fields, "progressDeadlineSeconds") else { return };
    if deadline <= number(fields, "minReadySeconds").unwrap_or_default() {
        let at = below(path, "progressDeadlineSeconds");
        found.push(FieldError::invalid(at, &deadline.into(), "must be greater than minReadySeconds"));
    }
}

pub(crate) fn check_rollout(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let known = ["Recreate", "RollingUpdate"];
    check_strategy(fields, path, &known, &[("MaxUnavailable", "maxUnavailable"), ("MaxSurge", "maxSurge")], found);
    let detail = "may not be specified when strategy `type` is 'Recreate'";
    if text_at(fields, &["type"]) == "Recreate" && count(fields, &["rollingUpdate"]) > 0 {
        found.push(FieldError::forbidden(below(path, "rollingUpdate"), detail));
    }
}

pub(crate) fn convert(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let spec = |object: &mut Object| object.fields_mut().get_mut("spec").and_then(Value::as_object_mut).cloned();
    if version_of(source) == "v1beta1" {
        let Some(mut fields) = spec(object) else { return Ok(()) };
        if let Some(rollback) = fields.remove("rollbackTo").filter(|rollback| !rollback.is_null()) {
            let revision = rollback["revision"].as_i64().unwrap_or_default().to_string();
            object.metadata_mut().entry("annotations").or_insert_with(|| json!({}))[ROLLBACK] = revision.into();
            object.set("spec", Some(fields.into()));
        }
    } else if version_of(target) == "v1beta1"
        && let Some(revision) = object.annotation(ROLLBACK).and_then(|text| text.parse::<i64>().ok())
        && let Some(mut fields) = spec(object)
    {
        fields.insert("rollbackTo".into(), json!({"revision": revision}));
        object.set("spec", Some(fields.into()));
        if let Some(annotations) = object.metadata_mut().get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(ROLLBACK);
        }
    }
    Ok(())
}
