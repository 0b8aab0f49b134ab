//! Kinds that make pods from a template.

use super::{not_negative, pods};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use restow_apimachinery::selector::{LabelSelector, selector_text};
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
    if object.kind() == "ReplicationController" && object.at(&["spec", "template"]).is_none_or(Value::is_null) {
        let mut problems = Vec::new();
        if object.at(&["spec", "selector"]).and_then(Value::as_object).is_none_or(serde_json::Map::is_empty) {
            problems.push(FieldError::required("spec.selector", ""));
        }
        problems.push(FieldError::required("spec.template", ""));
        problems.extend(not_negative(object, &["spec", "replicas"]));
        return problems;
    }
    let mut problems = Vec::new();
    let history = if object.kind() == "StatefulSet" { "" } else { "revisionHistoryLimit" };
    let numbers: [&[&str]; 5] = [
        &["spec", "replicas"],
        &["spec", "minReadySeconds"],
        &["spec", history],
        &["spec", "parallelism"],
        &["spec", "completions"],
    ];
    problems.extend(numbers.iter().filter_map(|path| not_negative(object, path)));
    if object.kind() == "CronJob" {
        let template = object.at(&["spec", "jobTemplate", "spec", "template"]);
        problems.extend(schedule_problem(object.text(&["spec", "schedule"])));
        problems.extend(pods::template_problems(template, "spec.jobTemplate.spec.template", &[]));
        problems.extend(restart_problem(object, &["spec", "jobTemplate", "spec", "template", "spec", "restartPolicy"]));
        problems.extend(zone_problem(object));
        return problems;
    }
    problems.extend(selector_problems(object));
    let template = object.at(&["spec", "template"]);
    let claims = object.at(&["spec", "volumeClaimTemplates"]).and_then(Value::as_array).into_iter().flatten();
    let claims: Vec<&str> = claims.filter_map(|claim| claim["metadata"]["name"].as_str()).collect();
    problems.extend(pods::template_problems(template, "spec.template", &claims));
    problems.extend(restart_problem(object, &["spec", "template", "spec", "restartPolicy"]));
    problems
}

fn selector_problems(object: &Object) -> Vec<FieldError> {
    let labels = object.at(&["spec", "template", "metadata", "labels"]);
    let labels = labels.unwrap_or(&Value::Null);
    let selector = object.at(&["spec", "selector"]).filter(|selector| !selector.is_null());
    let text = match (object.kind(), selector) {
        ("Job", _) => return job_selector_problems(object),
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
            // Kubernetes calls a replica set so as well.
            let kind = object.kind().to_lowercase().replace("replicaset", "deployment");
            let detail = format!("empty selector is invalid for {kind}");
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

/// Only whoever takes care of it chooses the pods of a job.
fn job_selector_problems(object: &Object) -> Vec<FieldError> {
    let selector = object.at(&["spec", "selector"]).unwrap_or(&Value::Null);
    let generated = serde_json::json!({"matchLabels": {"batch.kubernetes.io/controller-uid": object.uid()}});
    let older = serde_json::json!({"matchLabels": {"controller-uid": object.uid()}});
    let by_hand = object.at(&["spec", "manualSelector"]) == Some(&Value::Bool(true));
    match by_hand || object.uid().is_empty() || [generated, older].contains(selector) {
        true => Vec::new(),
        false => vec![FieldError::invalid("spec.selector", selector, "`selector` not auto-generated")],
    }
}

/// A schedule has five fields, or is one of those that have names.
fn schedule_problem(schedule: &str) -> Option<FieldError> {
    let field = "spec.schedule";
    if schedule.is_empty() {
        return Some(FieldError::required(field, ""));
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if schedule.starts_with('@') || fields.len() == 5 {
        return None;
    }
    let detail = format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" "));
    Some(FieldError::invalid(field, &schedule.into(), detail))
}

/// What is kept running is always restarted; what ends never is.
fn restart_problem(object: &Object, path: &[&str]) -> Option<FieldError> {
    let ends = matches!(object.kind(), "Job" | "CronJob");
    let supported: &[&str] = if ends { &["OnFailure", "Never"] } else { &["Always"] };
    let (policy, field) = (object.at(path)?, path.join("."));
    if ends && policy == "Always" {
        return Some(FieldError::required(field, "valid values: \"OnFailure\", \"Never\""));
    }
    pods::choice(policy, &field, supported)
}

/// A time zone has a name of letters, digits and a few signs.
fn zone_problem(object: &Object) -> Option<FieldError> {
    let (field, zone) = ("spec.timeZone", object.at(&["spec", "timeZone"])?);
    let known = |letter: char| letter.is_ascii_alphanumeric() || "_+-/".contains(letter);
    match zone.as_str()? {
        "" => Some(FieldError::invalid(field, zone, "timeZone must be nil or non-empty string")),
        name if name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.chars().all(known) => None,
        name => Some(FieldError::invalid(field, zone, format!("unknown time zone {name}"))),
    }
}

/// How many pods of a job must end stays, unless each has a number of its own and all work at once.
pub(super) fn completion_changes(object: &Object, old: &Object) -> Vec<FieldError> {
    let path = ["spec", "completions"];
    let value = object.at(&path).unwrap_or(&Value::Null);
    if object.at(&path) == old.at(&path) {
        return Vec::new();
    }
    let indexed = object.text(&["spec", "completionMode"]) == "Indexed";
    match indexed && !value.is_null() && object.at(&path) == object.at(&["spec", "parallelism"]) {
        true => Vec::new(),
        false if indexed => {
            let detail = "can only be modified in tandem with spec.parallelism";
            vec![FieldError::invalid("spec.completions", value, detail)]
        }
        false => vec![FieldError::immutable("spec.completions", value)],
    }
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
