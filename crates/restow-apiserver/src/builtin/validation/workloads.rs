//! Kinds that make pods from a template.

use super::{not_negative, pods};
use crate::field::FieldError;
use crate::object::Object;
use crate::selector::{LabelSelector, selector_text};
use serde_json::Value;

/// What may change in the specification of a stateful set.
const CHANGEABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub(super) fn problems(object: &Object) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let numbers: [&[&str]; 5] = [
        &["spec", "replicas"],
        &["spec", "minReadySeconds"],
        &["spec", "revisionHistoryLimit"],
        &["spec", "parallelism"],
        &["spec", "completions"],
    ];
    problems.extend(numbers.iter().filter_map(|path| not_negative(object, path)));
    if object.kind() == "CronJob" {
        let template = object.at(&["spec", "jobTemplate", "spec", "template"]);
        if object.text(&["spec", "schedule"]).is_empty() {
            problems.push(FieldError::required("spec.schedule", ""));
        }
        problems.extend(pods::template_problems(template, "spec.jobTemplate.spec.template"));
        return problems;
    }
    problems.extend(selector_problems(object));
    let template = object.at(&["spec", "template"]);
    problems.extend(pods::template_problems(template, "spec.template"));
    problems.extend(restart_problem(object));
    problems
}

fn selector_problems(object: &Object) -> Vec<FieldError> {
    let labels = object.at(&["spec", "template", "metadata", "labels"]);
    let labels = labels.unwrap_or(&Value::Null);
    let selector = object.at(&["spec", "selector"]).filter(|selector| !selector.is_null());
    let text = match (object.kind(), selector) {
        ("Job", _) => return Vec::new(),
        (_, None) => {
            let mismatch = "`selector` does not match template `labels`";
            return vec![
                FieldError::required("spec.selector", ""),
                FieldError::invalid("spec.template.metadata.labels", labels, mismatch),
            ];
        }
        ("ReplicationController", Some(selector)) => selector_text(&serde_json::json!({"matchLabels": selector})),
        (_, Some(selector)) => selector_text(selector),
    };
    let empty = text.is_empty();
    let matches = LabelSelector::parse(&text).is_ok_and(|selector| {
        let labels = Object::from_value(serde_json::json!({"metadata": {"labels": labels}})).unwrap_or_default();
        selector.matches(&labels)
    });
    match () {
        () if empty => {
            let value = selector.unwrap_or(&Value::Null);
            let detail = format!("empty selector is invalid for {}", object.kind().to_lowercase());
            vec![FieldError::invalid("spec.selector", value, detail)]
        }
        () if matches => Vec::new(),
        () => vec![FieldError::invalid(
            "spec.template.metadata.labels",
            labels,
            "`selector` does not match template `labels`",
        )],
    }
}

/// What is kept running is always restarted; what ends never is.
fn restart_problem(object: &Object) -> Option<FieldError> {
    let supported: &[&str] = if object.kind() == "Job" { &["OnFailure", "Never"] } else { &["Always"] };
    let policy = object.at(&["spec", "template", "spec", "restartPolicy"])?;
    let field = "spec.template.spec.restartPolicy";
    if object.kind() == "Job" && policy == "Always" {
        return Some(FieldError::required(field, "valid values: \"OnFailure\", \"Never\""));
    }
    pods::choice(policy, field, supported)
}

pub(super) fn stateful_set_changes(object: &Object, old: &Object) -> Vec<FieldError> {
    let fixed = |object: &Object| {
        let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        spec.retain(|name, _| !CHANGEABLE.contains(&name.as_str()));
        spec
    };
    if object.at(&["spec", "serviceName"]) != old.at(&["spec", "serviceName"]) {
        return super::immutable(object, old, &[&["spec", "serviceName"]]);
    }
    if fixed(object) == fixed(old) {
        return Vec::new();
    }
    vec![FieldError::forbidden(
        "spec",
        "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
         'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
    )]
}
