//! Roles and bindings of both scopes: validation, the immutable role reference, and conversion of subjects.
//!
//! Escalation checks are in `auth.rs`.

use crate::builtin::convert::version_of;
use crate::builtin::validation::{items, unsupported};
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::{Map, Value, json};

const RBAC: &str = "rbac.authorization.k8s.io";
const SUBJECTS: [&str; 3] = ["ServiceAccount", "User", "Group"];

/// Role and ClusterRole.
pub(super) struct Role;

impl Strategy for Role {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        rule_problems(object)
    }
}

/// RoleBinding and ClusterRoleBinding.
pub(super) struct RoleBinding;

impl Strategy for RoleBinding {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        binding_problems(object)
    }

    fn validate_change(&self, object: &Object, baseline: &Object) -> Vec<FieldError> {
        role_reference(object, baseline)
    }
}

fn rule_problems(object: &Object) -> Vec<FieldError> {
    let mut problems = Vec::new();
    for (index, rule) in items(object, &["rules"]).iter().enumerate() {
        let mut missing = |field: &str, detail: &str| {
            problems.push(FieldError::required(format!("rules[{index}].{field}"), detail));
        };
        let for_paths = !is_empty(&rule["nonResourceURLs"]);
        if !for_paths && is_empty(&rule["apiGroups"]) {
            missing("apiGroups", "resource rules must supply at least one api group");
        }
        if !for_paths && is_empty(&rule["resources"]) {
            missing("resources", "resource rules must supply at least one resource");
        }
        if is_empty(&rule["verbs"]) {
            missing("verbs", "");
        }
    }
    problems
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_none_or(Vec::is_empty)
}

fn binding_problems(object: &Object) -> Vec<FieldError> {
    let supported: &[&str] = if object.kind() == "RoleBinding" { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    let kind = object.text(&["roleRef", "kind"]);
    let mut problems = Vec::new();
    if !supported.contains(&kind) {
        problems.push(unsupported("roleRef.kind", kind, supported));
    }
    if object.text(&["roleRef", "name"]).is_empty() {
        problems.push(FieldError::required("roleRef.name", ""));
    }
    for (index, subject) in items(object, &["subjects"]).iter().enumerate() {
        let text = |field: &str| subject[field].as_str().unwrap_or_default();
        if text("name").is_empty() {
            problems.push(FieldError::required(format!("subjects[{index}].name"), ""));
        }
        match text("kind") {
            // The namespace of a RoleBinding is the default for service accounts.
            "ServiceAccount" if text("namespace").is_empty() && object.kind() == "ClusterRoleBinding" => {
                problems.push(FieldError::required(format!("subjects[{index}].namespace"), ""));
            }
            known if SUBJECTS.contains(&known) => {}
            other => problems.push(unsupported(format!("subjects[{index}].kind"), other, &SUBJECTS)),
        }
    }
    problems
}

fn role_reference(object: &Object, old: &Object) -> Vec<FieldError> {
    match object.get("roleRef") == old.get("roleRef") {
        true => Vec::new(),
        false => {
            let reference = |name: &str| object.text(&["roleRef", name]);
            let value = json!({
                "APIGroup": reference("apiGroup"), "Kind": reference("kind"), "Name": reference("name"),
            });
            vec![FieldError::immutable("roleRef", &value)]
        }
    }
}

pub(crate) fn convert_binding(object: &mut Object, source: &str, target: &str) -> Result<(), String> {
    let old = |version: &str| version_of(version) == "v1alpha1";
    if old(source) == old(target) {
        return Ok(());
    }
    let subjects = object.fields_mut().get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten().filter_map(Value::as_object_mut) {
        match old(target) {
            true => subject_with_version(subject),
            false => subject_with_group(subject),
        }
    }
    Ok(())
}

fn subject_with_version(subject: &mut Map<String, Value>) {
    let group = subject.remove("apiGroup").and_then(|group| group.as_str().map(str::to_string)).unwrap_or_default();
    let kind = subject.get("kind").and_then(Value::as_str).unwrap_or_default();
    let version = match (kind, group.as_str()) {
        ("ServiceAccount", "") => "v1".to_string(),
        ("User" | "Group", RBAC) => format!("{RBAC}/v1alpha1"),
        (_, group) => format!("{group}/"),
    };
    subject.insert("apiVersion".into(), version.into());
}

fn subject_with_group(subject: &mut Map<String, Value>) {
    let version = subject.remove("apiVersion").unwrap_or_default();
    let named = version.as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
    let kind = subject.get("kind").and_then(Value::as_str).unwrap_or_default();
    let group = match kind {
        "ServiceAccount" => "",
        "User" | "Group" => RBAC,
        _ => named,
    };
    // In v1alpha1 the user `*` meant all authenticated users.
    if kind == "User" && subject.get("name").is_some_and(|name| name == "*") {
        subject.insert("kind".into(), "Group".into());
        subject.insert("name".into(), "system:authenticated".into());
    }
    if !group.is_empty() {
        subject.insert("apiGroup".into(), group.into());
    }
}
