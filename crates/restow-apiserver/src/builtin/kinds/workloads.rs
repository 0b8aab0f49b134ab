//! Rules that all kinds with a pod template share: Deployment, ReplicaSet, DaemonSet, StatefulSet,
//! ReplicationController, Job and CronJob. The rules of a single kind are in its own file.

use crate::builtin::checks::{Fields, text_at};
use crate::builtin::kinds::pod::spec;
use crate::builtin::validation::{choice, not_negative, unsupported};
use crate::resource::strategy::{ScaleFields, ScaleSelector, Strategy};
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::object::Object;
use restow_apimachinery::selector::{LabelSelector, selector_text};
use serde_json::{Map, Value, json};

/// A ReplicaSet has only the shared rules.
pub(super) struct ReplicaSet;

impl Strategy for ReplicaSet {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        problems(object, selector_problems(object))
    }

    fn scale(&self, _api_version: &str) -> Option<ScaleFields> {
        Some(scale(ScaleSelector::Selector(vec!["spec".into(), "selector".into()])))
    }
}

/// All validation errors of an object with a template; `selector` are the errors of its selector.
pub(super) fn problems(object: &Object, selector: Vec<FieldError>) -> Vec<FieldError> {
    let mut problems = number_problems(object);
    problems.extend(selector);
    let template = object.at(&["spec", "template"]);
    let claims = object.at(&["spec", "volumeClaimTemplates"]).and_then(Value::as_array).into_iter().flatten();
    let claims: Vec<&str> = claims.filter_map(|claim| claim["metadata"]["name"].as_str()).collect();
    problems.extend(spec::template_problems(template, "spec.template", &claims));
    problems.extend(restart_problem(object, &["spec", "template", "spec", "restartPolicy"]));
    problems
}

pub(super) fn number_problems(object: &Object) -> Vec<FieldError> {
    let history = if object.kind() == "StatefulSet" { "" } else { "revisionHistoryLimit" };
    let numbers: [&[&str]; 5] = [
        &["spec", "replicas"],
        &["spec", "minReadySeconds"],
        &["spec", history],
        &["spec", "parallelism"],
        &["spec", "completions"],
    ];
    numbers.iter().filter_map(|path| not_negative(object, path)).collect()
}

/// The validation errors of a label selector, which must select the pods of the template.
pub(super) fn selector_problems(object: &Object) -> Vec<FieldError> {
    match object.at(&["spec", "selector"]).filter(|selector| !selector.is_null()) {
        Some(selector) => selection_problems(object, selector, &selector_text(selector)),
        None => vec![FieldError::required("spec.selector", ""), mismatch(object)],
    }
}

/// The validation errors of a selector that is shown as `text`.
pub(super) fn selection_problems(object: &Object, selector: &Value, text: &str) -> Vec<FieldError> {
    let labels = object.at(&["spec", "template", "metadata", "labels"]);
    let matches = LabelSelector::parse(text).is_ok_and(|selector| {
        let labels = Object::from_value(json!({"metadata": {"labels": labels}})).unwrap_or_default();
        selector.matches(&labels)
    });
    match () {
        () if text.is_empty() => {
            // Kubernetes names "deployment" for a ReplicaSet too.
            let kind = object.kind().to_lowercase().replace("replicaset", "deployment");
            let detail = format!("empty selector is invalid for {kind}");
            vec![FieldError::invalid("spec.selector", selector, detail)]
        }
        () if matches => Vec::new(),
        () => vec![mismatch(object)],
    }
}

fn mismatch(object: &Object) -> FieldError {
    let labels = object.at(&["spec", "template", "metadata", "labels"]).unwrap_or(&Value::Null);
    let detail = "`selector` does not match template `labels`";
    FieldError::invalid("spec.template.metadata.labels", labels, detail)
}

/// The restart policy: OnFailure or Never for jobs, Always for the rest.
pub(crate) fn restart_problem(object: &Object, path: &[&str]) -> Option<FieldError> {
    let ends = matches!(object.kind(), "Job" | "CronJob");
    let supported: &[&str] = if ends { &["OnFailure", "Never"] } else { &["Always"] };
    let (policy, field) = (object.at(path)?, path.join("."));
    if ends && policy == "Always" {
        return Some(FieldError::required(field, "valid values: \"OnFailure\", \"Never\""));
    }
    choice(policy, &field, supported)
}

/// The fields of the `scale` subresource.
pub(super) fn scale(selector: ScaleSelector) -> ScaleFields {
    let path = |steps: &[&str]| steps.iter().map(|step| step.to_string()).collect::<Vec<_>>();
    let (replicas, status_replicas) = (path(&["spec", "replicas"]), path(&["status", "replicas"]));
    ScaleFields { replicas, status_replicas, selector }
}

/// Copies the labels of the template to an object without labels.
pub(crate) fn inherit_labels(fields: &mut Fields, labels: Value) {
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut)
        && metadata.get("labels").and_then(Value::as_object).is_none_or(Map::is_empty)
    {
        metadata.insert("labels".into(), labels);
    }
}

/// An update strategy as Kubernetes shows it in errors, with the names of its internal fields.
pub(crate) fn shown_strategy(fields: &Fields, inner: &[(&str, &str)]) -> Value {
    let update = fields.get("rollingUpdate").and_then(Value::as_object).map(|update| {
        let inner =
            inner.iter().map(|(shown, name)| (shown.to_string(), update.get(*name).cloned().unwrap_or_default()));
        Value::Object(inner.collect())
    });
    json!({"Type": text_at(fields, &["type"]), "RollingUpdate": update})
}

/// Checks the type of an update strategy.
pub(crate) fn check_strategy(
    fields: &Fields,
    path: &str,
    known: &[&str],
    inner: &[(&str, &str)],
    found: &mut Vec<FieldError>,
) {
    let kind = text_at(fields, &["type"]);
    if !kind.is_empty() && !known.contains(&kind) {
        let mut problem = unsupported(path, kind, known);
        problem.rule = FieldRule::NotSupported(shown_strategy(fields, inner).to_string());
        found.push(problem);
    }
}
