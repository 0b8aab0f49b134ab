//! StatefulSets: volume claim templates, checks, and which updates are allowed. What is shared is in `workloads.rs`.

use crate::builtin::checks::{Fields, below, text_at};
use crate::builtin::kinds::workloads::{self, shown_strategy};
use crate::builtin::validation::immutable;
use crate::resource::strategy::{ScaleFields, ScaleSelector, Strategy};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::{Value, json};

/// The fields of the specification that may change.
const CHANGEABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

pub(super) struct StatefulSet;

impl Strategy for StatefulSet {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        workloads::problems(object, workloads::selector_problems(object))
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        change_problems(object, baseline)
    }

    fn scale(&self, _api_version: &str) -> Option<ScaleFields> {
        Some(workloads::scale(ScaleSelector::Selector(vec!["spec".into(), "selector".into()])))
    }
}

fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
    let fixed = |object: &Object| {
        let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        spec.retain(|name, _| !CHANGEABLE.contains(&name.as_str()));
        spec
    };
    if object.at(&["spec", "serviceName"]) != old.at(&["spec", "serviceName"]) {
        return immutable(object, old, &[&["spec", "serviceName"]]);
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

/// Claim templates get a type and a status, as claims do.
pub(crate) fn default_claims(fields: &mut Fields) {
    let claims = fields.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut);
    for claim in claims.into_iter().flatten().filter_map(Value::as_object_mut) {
        claim.insert("apiVersion".into(), "v1".into());
        claim.insert("kind".into(), "PersistentVolumeClaim".into());
        claim.insert("status".into(), json!({"phase": "Pending"}));
    }
}

pub(crate) fn check_spec(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let policy = text_at(fields, &["podManagementPolicy"]);
    if !matches!(policy, "" | "OrderedReady" | "Parallel") {
        let at = below(path, "podManagementPolicy");
        found.push(FieldError::invalid(at, &policy.into(), "must be 'OrderedReady' or 'Parallel'"));
    }
}

pub(crate) fn check_rollout(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    if !matches!(text_at(fields, &["type"]), "" | "RollingUpdate" | "OnDelete") {
        let value = shown_strategy(fields, &[("Partition", "partition"), ("MaxUnavailable", "maxUnavailable")]);
        found.push(FieldError::invalid(path, &value, "must be 'RollingUpdate' or 'OnDelete'"));
    }
}
