//! Jobs: the generated selector, defaults, checks, which updates are allowed, and what a deletion leaves behind.
//! What is shared is in `workloads.rs`.

use crate::builtin::checks::by_type::{count, values};
use crate::builtin::checks::{Fields, below, text_at};
use crate::builtin::kinds::workloads::{self, inherit_labels};
use crate::builtin::validation::unsupported;
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::object::Object;
use serde_json::{Value, json};
use std::collections::HashSet;

pub(super) struct Job;

impl Strategy for Job {
    fn prepare_create(&self, object: &mut Object) {
        generate_selector(object);
    }

    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        workloads::problems(object, selector_problems(object))
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        completion_changes(object, baseline)
    }

    fn unsupported_field_label(&self, field: &str) -> String {
        format!("field label {field:?} not supported for Job")
    }

    /// By default, the pods of a deleted job are orphaned.
    fn orphans_dependents(&self) -> bool {
        true
    }

    fn deletion_warning(&self) -> Option<&'static str> {
        Some(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or \
             set propagationPolicy=Orphan to suppress this warning",
        )
    }
}

/// Sets the labels and the selector with the uid of the job, unless `manualSelector` is set.
fn generate_selector(object: &mut Object) {
    let (name, uid) = (object.name().to_string(), object.uid().to_string());
    let mut spec = object.get("spec").cloned().unwrap_or_default();
    if spec["manualSelector"] == true {
        return;
    }
    for (key, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("job-name", &name),
    ] {
        spec["template"]["metadata"]["labels"][key] = value.as_str().into();
    }
    spec["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"] = uid.into();
    let labels = spec["template"]["metadata"]["labels"].clone();
    object.set("spec", Some(spec));
    // A job without labels gets the labels of its template.
    if object.metadata().and_then(|fields| fields.get("labels")).is_none_or(|own| own == &json!({})) {
        object.metadata_mut().insert("labels".into(), labels);
    }
}

/// The selector is generated, unless `manualSelector` is set.
fn selector_problems(object: &Object) -> Vec<FieldError> {
    let selector = object.at(&["spec", "selector"]).unwrap_or(&Value::Null);
    let generated = serde_json::json!({"matchLabels": {"batch.kubernetes.io/controller-uid": object.uid()}});
    let older = serde_json::json!({"matchLabels": {"controller-uid": object.uid()}});
    let by_hand = object.at(&["spec", "manualSelector"]) == Some(&Value::Bool(true));
    match by_hand || object.uid().is_empty() || [generated, older].contains(selector) {
        true => Vec::new(),
        false => vec![FieldError::invalid("spec.selector", selector, "`selector` not auto-generated")],
    }
}

/// `completions` changes only for indexed jobs, together with `parallelism`.
fn completion_changes(object: &Object, old: &Object) -> Vec<FieldError> {
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

/// Defaults of `completions`, `parallelism`, `podReplacementPolicy` and labels.
pub(crate) fn default(fields: &mut Fields) {
    let labels = fields.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels")).cloned();
    if let Some(spec) = fields.get_mut("spec").and_then(Value::as_object_mut) {
        // Both unset means one; a work queue sets `parallelism` and not `completions`.
        let is_open = |spec: &Fields, name: &str| spec.get(name).is_none_or(Value::is_null);
        if is_open(spec, "parallelism") && is_open(spec, "completions") {
            spec.insert("completions".into(), 1.into());
        }
        if is_open(spec, "parallelism") {
            spec.insert("parallelism".into(), 1.into());
        }
        if spec.get("podReplacementPolicy").is_none_or(Value::is_null) {
            let fails = spec.get("podFailurePolicy").is_some_and(|policy| !policy.is_null());
            let policy = if fails { "Failed" } else { "TerminatingOrFailed" };
            spec.insert("podReplacementPolicy".into(), policy.into());
        }
    }
    if let Some(labels) = labels.filter(|labels| labels.as_object().is_some_and(|map| !map.is_empty())) {
        inherit_labels(fields, labels);
    }
}

pub(crate) fn check_spec(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let Some(policy) = fields.get("podReplacementPolicy").and_then(Value::as_str) else { return };
    // With a pod failure policy, pods are replaced only when they have failed.
    let known: &[&str] = match count(fields, &["podFailurePolicy"]) {
        0 => &["Failed", "TerminatingOrFailed"],
        _ => &["Failed"],
    };
    if !known.contains(&policy) {
        found.push(unsupported(below(path, "podReplacementPolicy"), policy, known));
    }
}

pub(crate) fn check_exit_codes(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let (at, codes) = (below(path, "values"), values(fields));
    if codes.is_empty() {
        let value = fields.get("values").unwrap_or(&Value::Null);
        found.push(FieldError::invalid(at, value, "at least one value is required"));
        return;
    }
    let mut seen = HashSet::new();
    for (index, code) in codes.iter().enumerate() {
        if text_at(fields, &["operator"]) == "In" && code.as_i64() == Some(0) {
            found.push(FieldError::invalid(format!("{at}[{index}]"), code, "must not be 0 for the In operator"));
        }
        if !seen.insert(code.to_string()) {
            let rule = FieldRule::Duplicate(code.to_string());
            found.push(FieldError { field: format!("{at}[{index}]"), rule, detail: String::new() });
        }
    }
    if !codes.iter().map(Value::as_i64).is_sorted() {
        found.push(FieldError::invalid(at, &codes.into(), "must be ordered"));
    }
}
