//! Kinds of which little is checked.

use super::{not_negative, unsupported};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use serde_json::Value;

/// The classes whose names begin as only theirs may.
const SYSTEM_CLASSES: [&str; 2] = ["system-cluster-critical", "system-node-critical"];
const SUBJECTS: [&str; 3] = ["ServiceAccount", "User", "Group"];
const FAMILIES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];

pub(super) fn problems(object: &Object) -> Vec<FieldError> {
    match (object.api_version(), object.kind()) {
        ("v1", "Event") => event_problems(object),
        ("coordination.k8s.io/v1", "Lease") => {
            let transitions = not_negative(object, &["spec", "leaseTransitions"]);
            positive(object, &["spec", "leaseDurationSeconds"]).into_iter().chain(transitions).collect()
        }
        ("rbac.authorization.k8s.io/v1", "Role" | "ClusterRole") => rule_problems(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding" | "ClusterRoleBinding") => binding_problems(object),
        ("scheduling.k8s.io/v1", "PriorityClass") => class_problems(object),
        ("networking.k8s.io/v1", "Ingress") => ingress_problems(object),
        ("discovery.k8s.io/v1", "EndpointSlice") => slice_problems(object),
        _ => Vec::new(),
    }
}

fn items<'a>(object: &'a Object, path: &[&str]) -> &'a [Value] {
    object.at(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_none_or(Vec::is_empty)
}

/// What a claim asks for stays; a claim that is bound may ask for more room.
pub(super) fn claim_changes(object: &Object, old: &Object) -> Vec<FieldError> {
    let fixed = |object: &Object| {
        let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        // Whoever binds a claim names its volume, once.
        if old.text(&["spec", "volumeName"]).is_empty() {
            spec.remove("volumeName");
        }
        if old.text(&["status", "phase"]) == "Bound" {
            spec.remove("resources");
        }
        spec.remove("volumeAttributesClassName");
        spec
    };
    if fixed(object) == fixed(old) {
        return Vec::new();
    }
    let detail =
        "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
    vec![FieldError::forbidden("spec", detail)]
}

/// What a volume is stays, and where it is.
pub(super) fn volume_changes(object: &Object, old: &Object) -> Vec<FieldError> {
    /// All that is said of a volume beside what it is.
    const OPEN: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    ];
    let source = |object: &Object| {
        let mut spec = object.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        spec.retain(|name, _| !OPEN.contains(&name.as_str()));
        spec
    };
    let mut problems = Vec::new();
    if source(object) != source(old) {
        let field = "spec.persistentvolumesource";
        problems.push(FieldError::forbidden(field, format!("{field} is immutable after creation")));
    }
    let place = |object: &'_ Object| object.at(&["spec", "nodeAffinity"]).cloned().unwrap_or_default();
    if !place(old).is_null() && place(object) != place(old) {
        let detail = "field is immutable, except for updating from beta label to GA";
        problems.push(FieldError::invalid("nodeAffinity", &place(object), detail));
    }
    if object.at(&["spec", "volumeMode"]) != old.at(&["spec", "volumeMode"]) {
        let mode = object.at(&["spec", "volumeMode"]).unwrap_or(&Value::Null);
        problems.push(FieldError::immutable("volumeMode", mode));
    }
    problems
}

fn event_problems(object: &Object) -> Vec<FieldError> {
    let (involved, own) = (object.text(&["involvedObject", "namespace"]), object.namespace());
    // Events about what has no namespace lie in one that every cluster has.
    let allowed = involved == own || involved.is_empty() && ["default", "kube-system"].contains(&own);
    match allowed {
        true => Vec::new(),
        false => {
            let detail = "does not match event.namespace";
            vec![FieldError::invalid("involvedObject.namespace", &involved.into(), detail)]
        }
    }
}

fn positive(object: &Object, path: &[&str]) -> Option<FieldError> {
    let value = object.at(path)?;
    (value.as_i64()? <= 0).then(|| FieldError::invalid(path.join("."), value, "must be greater than 0"))
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
            // A role binding is about accounts of its own namespace unless it says otherwise.
            "ServiceAccount" if text("namespace").is_empty() && object.kind() == "ClusterRoleBinding" => {
                problems.push(FieldError::required(format!("subjects[{index}].namespace"), ""));
            }
            known if SUBJECTS.contains(&known) => {}
            other => problems.push(unsupported(format!("subjects[{index}].kind"), other, &SUBJECTS)),
        }
    }
    problems
}

fn class_problems(object: &Object) -> Vec<FieldError> {
    let name = object.name();
    if !name.starts_with("system-") || SYSTEM_CLASSES.contains(&name) {
        return Vec::new();
    }
    let detail = format!(
        "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a known system \
         priority class"
    );
    vec![FieldError::forbidden("metadata.name", detail)]
}

fn ingress_problems(object: &Object) -> Vec<FieldError> {
    let empty = items(object, &["spec", "rules"]).is_empty() && object.at(&["spec", "defaultBackend"]).is_none();
    match empty {
        true => {
            let detail = "either `defaultBackend` or `rules` must be specified";
            vec![FieldError::invalid("spec", &Value::Null, detail)]
        }
        false => Vec::new(),
    }
}

fn slice_problems(object: &Object) -> Vec<FieldError> {
    match object.text(&["addressType"]) {
        "" => vec![FieldError::required("addressType", "")],
        known if FAMILIES.contains(&known) => Vec::new(),
        other => vec![unsupported("addressType", other, &FAMILIES)],
    }
}
