//! Which updates of a pod are allowed: its images, a shorter deadline, more tolerations, and, while it has scheduling
//! gates, a narrower choice of nodes.

use crate::builtin::validation::list;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::go_syntax::quote;
use restow_apimachinery::object::Object;
use serde_json::{Map, Value};
use std::collections::HashSet;

/// The annotation of mirror pods, which only the kubelet sets.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The maximum active deadline.
const LONGEST: i64 = i32::MAX as i64;

/// All validation errors of replacing the pod `old`.
pub(super) fn problems(object: &Object, old: &Object) -> Vec<FieldError> {
    let mut problems: Vec<FieldError> = mirror_changes(object, old).into_iter().collect();
    let spec = |object: &Object| without_nulls(object.get("spec").cloned().unwrap_or_default());
    let (mut now, before) = (spec(object), spec(old));
    for field in ["containers", "initContainers"] {
        if list(&now[field]).len() != list(&before[field]).len() {
            let detail = "pod updates may not add or remove containers";
            problems.push(FieldError::forbidden(format!("spec.{field}"), detail));
            return problems;
        }
    }
    if let Some(problem) = deadline_changes(object, old) {
        problems.push(problem);
    }
    problems.extend(toleration_changes(&now, &before));
    problems.extend(added_gates(&now, &before));
    problems.extend(ephemeral_changes(&mut now, &before));
    let class = ["status", "qosClass"];
    if !old.text(&class).is_empty() && object.text(&class) != old.text(&class) {
        problems.push(FieldError::immutable("status.qosClass", &object.text(&class).into()));
    }
    if !list(&before["schedulingGates"]).is_empty() {
        problems.extend(selector_changes(&mut now, &before));
        problems.extend(affinity_changes(&mut now, &before));
    }
    restore_checked_fields(&mut now, &before);
    if without_nulls(now) != before {
        problems.push(FieldError::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
             `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
             `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ));
    }
    problems
}

/// Restores fields that may change and are checked separately.
fn restore_checked_fields(now: &mut Value, before: &Value) {
    for name in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        now[name] = before[name].clone();
    }
    let grace = "terminationGracePeriodSeconds";
    if before[grace].as_i64().is_some_and(|seconds| seconds < 0) && now[grace].as_i64() == Some(1) {
        now[grace] = before[grace].clone();
    }
    for field in ["containers", "initContainers"] {
        let containers = now.get_mut(field).and_then(Value::as_array_mut);
        for (container, old) in containers.into_iter().flatten().zip(list(&before[field])) {
            container["image"] = old["image"].clone();
        }
    }
}

/// The active deadline may be set, and become shorter.
fn deadline_changes(object: &Object, old: &Object) -> Option<FieldError> {
    let path = ["spec", "activeDeadlineSeconds"];
    let value = object.at(&path).unwrap_or(&Value::Null);
    let detail = match (value.as_i64(), old.at(&path).and_then(Value::as_i64)) {
        (None, Some(_)) => "must not update from a positive integer to nil value",
        (Some(now), _) if !(0..=LONGEST).contains(&now) => "must be between 0 and 2147483647, inclusive",
        (Some(now), Some(before)) if now > before => "must be less than or equal to previous value",
        _ => return None,
    };
    Some(FieldError::invalid(path.join("."), value, detail))
}

/// Tolerations may be added; of existing ones only `tolerationSeconds` may change.
fn toleration_changes(now: &Value, before: &Value) -> Option<FieldError> {
    let all = |spec: &Value| {
        let mut all = list(&spec["tolerations"]).to_vec();
        for toleration in all.iter_mut().filter_map(Value::as_object_mut) {
            toleration.remove("tolerationSeconds");
        }
        all
    };
    let now: HashSet<String> = all(now).iter().map(Value::to_string).collect();
    let kept = all(before).iter().all(|toleration| now.contains(&toleration.to_string()));
    let detail = "existing toleration can not be modified except its tolerationSeconds";
    (!kept).then(|| FieldError::forbidden("spec.tolerations", detail))
}

/// Scheduling gates may be removed, never added.
fn added_gates(now: &Value, before: &Value) -> Vec<FieldError> {
    let before = list(&before["schedulingGates"]);
    let gates = list(&now["schedulingGates"]).iter().enumerate();
    let added = gates.filter(|(_, gate)| !before.iter().any(|old| old["name"] == gate["name"]));
    let problem = |(index, gate): (usize, &Value)| {
        let name = gate["name"].as_str().unwrap_or_default();
        let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
        FieldError::forbidden(format!("spec.schedulingGates[{index}].name"), detail)
    };
    added.map(problem).collect()
}

/// Existing ephemeral containers may not change or be removed. Adding is checked elsewhere.
fn ephemeral_changes(now: &mut Value, before: &Value) -> Vec<FieldError> {
    let field = "ephemeralContainers";
    let mut problems = Vec::new();
    for old in list(&before[field]) {
        let name = quote(old["name"].as_str().unwrap_or_default());
        let change = match list(&now[field]).iter().find(|container| container["name"] == old["name"]) {
            None => "removed",
            Some(container) if container != old => "changed",
            Some(_) => continue,
        };
        let detail = format!("existing ephemeral containers {name} may not be {change}\n");
        problems.push(FieldError::forbidden(format!("spec.{field}"), detail));
    }
    // The order does not matter; an added item is an ordinary change.
    let known = |container: &Value| list(&before[field]).iter().any(|old| old["name"] == container["name"]);
    if !problems.is_empty() || list(&now[field]).iter().all(known) {
        now[field] = before[field].clone();
    }
    problems
}

/// A gated pod may get more entries in its node selector.
fn selector_changes(now: &mut Value, before: &Value) -> Option<FieldError> {
    let field = "nodeSelector";
    let entries = |spec: &Value| spec[field].as_object().cloned().unwrap_or_default();
    let (selector, old): (Map<String, Value>, _) = (entries(now), entries(before));
    now[field] = before[field].clone();
    let kept = old.iter().all(|(key, value)| selector.get(key) == Some(value));
    let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
    (!kept).then(|| FieldError::invalid("spec.nodeSelector", &selector.into(), detail))
}

/// A gated pod may get more required node affinity: requirements can be added to a term, not removed.
fn affinity_changes(now: &mut Value, before: &Value) -> Vec<FieldError> {
    const TERMS: &str = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let terms = |spec: &Value| list(spec.pointer(TERMS).unwrap_or(&Value::Null)).to_vec();
    let (terms, old) = (terms(now), terms(before));
    let mut affinity = now["affinity"].as_object().cloned().unwrap_or_default();
    affinity.insert("nodeAffinity".into(), before["affinity"]["nodeAffinity"].clone());
    affinity.retain(|_, part| !part.is_null());
    now["affinity"] = match affinity.is_empty() && before["affinity"].is_null() {
        true => Value::Null,
        false => affinity.into(),
    };
    let path = format!("spec{}", TERMS.replace('/', "."));
    if !old.is_empty() && terms.len() != old.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        return vec![FieldError::invalid(path, &terms.into(), detail)];
    }
    let changed = old.iter().zip(&terms).enumerate().filter(|(_, (old, term))| !only_adds(term, old));
    let detail = "only additions are allowed (no mutations or deletions)";
    changed.map(|(index, (_, term))| FieldError::invalid(format!("{path}[{index}]"), term, detail)).collect()
}

/// Whether a term only got more requirements. An empty term, which matches no node, stays empty.
fn only_adds(term: &Value, old: &Value) -> bool {
    let parts = ["matchExpressions", "matchFields"];
    let was_empty = parts.iter().all(|part| list(&old[*part]).is_empty());
    parts.iter().all(|part| match was_empty {
        true => list(&term[*part]).is_empty(),
        false => list(&term[*part]).starts_with(list(&old[*part])),
    })
}

fn mirror_changes(object: &Object, old: &Object) -> Option<FieldError> {
    let detail = match (object.annotation(MIRROR), old.annotation(MIRROR)) {
        (now, before) if now == before => return None,
        (_, Some(_)) => "may not remove or update mirror pod annotation",
        (_, None) => "may not add mirror pod annotation",
    };
    Some(FieldError::forbidden(format!("metadata.annotations[{MIRROR}]"), detail))
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name, without_nulls(value))).collect())
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}
