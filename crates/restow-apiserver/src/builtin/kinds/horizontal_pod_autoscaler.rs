//! HorizontalPodAutoscalers: defaults and checks. The conversion between v1 and v2 is in
//! `horizontal_pod_autoscaler/conversion.rs`.

pub(crate) mod conversion;

use crate::builtin::checks::by_type::{count, number};
use crate::builtin::checks::{Fields, below, text_at};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::types::Amount;
use serde_json::{Value, json};

/// The annotation in which v1 keeps the metrics of v2.
const MEASURES: &str = "/metadata/annotations/autoscaling.alpha.kubernetes.io~1metrics";

/// Without metrics, the target is 80 percent of CPU.
pub(crate) fn default_cpu_target(fields: &mut Fields) {
    let measured = Value::Object(fields.clone()).pointer(MEASURES).is_some();
    if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut).filter(|_| !measured) {
        let target = spec.entry("targetCPUUtilizationPercentage").or_insert(Value::Null);
        if target.is_null() {
            *target = 80.into();
        }
    }
}

/// Sets defaults of incomplete scaling rules.
pub(crate) fn default_behavior(fields: &mut Fields) {
    let half = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let up = json!({"selectPolicy": "Max", "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, half]});
    let down = json!({"selectPolicy": "Max", "policies": [half]});
    for (name, usual) in [("scaleUp", up), ("scaleDown", down)] {
        let rules = fields.entry(name).or_insert_with(|| json!({}));
        if rules.is_null() {
            *rules = json!({});
        }
        for (field, value) in usual.as_object().into_iter().flatten() {
            if rules[field].is_null() || rules[field] == json!([]) {
                rules[field] = value.clone();
            }
        }
    }
}

pub(crate) fn check_spec(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let most = number(fields, "maxReplicas").unwrap_or_default();
    let at = below(path, "maxReplicas");
    match most {
        0 => found.push(FieldError::required(&at, "")),
        1.. => {}
        _ => found.push(FieldError::invalid(&at, &most.into(), "must be greater than or equal to 1")),
    }
    let target = text_at(fields, &["scaleTargetRef", "apiVersion"]);
    // The only scalable kind without a group.
    let core = text_at(fields, &["scaleTargetRef", "kind"]) == "ReplicationController";
    if !target.contains('/') && !core {
        let detail = "apiVersion must specify API group";
        found.push(FieldError::invalid(below(path, "scaleTargetRef.apiVersion"), &target.into(), detail));
    }
    if most < number(fields, "minReplicas").unwrap_or(1) {
        found.push(FieldError::invalid(at, &most.into(), "must be greater than or equal to `minReplicas`"));
    }
}

pub(crate) fn check_metric_target(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let kind = text_at(fields, &["type"]);
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let detail = "must be either Utilization, Value, or AverageValue";
        found.push(FieldError::invalid(below(path, "type"), &kind.into(), detail));
    }
    for name in ["value", "averageValue"] {
        let value = fields.get(name).unwrap_or(&Value::Null);
        if Amount::read(value).is_some_and(|amount| amount <= Amount::default()) {
            found.push(FieldError::invalid(below(path, name), value, "must be positive"));
        }
    }
}

pub(crate) fn check_resource_metric(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let target = fields.get("target").and_then(Value::as_object);
    let at = below(path, "target.averageUtilization");
    match target.map_or(0, |target| count(target, &["averageUtilization", "averageValue"])) {
        0 => found.push(FieldError::required(at, "must set either a target raw value or a target utilization")),
        1 => {}
        _ => found.push(FieldError::forbidden(at, "may not set both a target raw value and a target utilization")),
    }
}
