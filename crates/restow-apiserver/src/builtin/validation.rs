//! What is checked of the specifications of the most used built-in kinds, with Kubernetes' words.
//!
//! It is not all that Kubernetes checks: what is here is what people run into, and what clients rely on not being able
//! to change.

mod limits;
mod others;
mod pod_changes;
mod pods;
mod services;
mod signing_requests;
#[cfg(test)]
mod tests;
mod workloads;

use crate::admission;
use crate::builtin::storage_version;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::names::config_key_problems;
use restow_apimachinery::object::Object;
use serde_json::Value;

/// Everything that is wrong with an object.
pub(super) fn problems(object: &Object) -> Vec<FieldError> {
    match (object.api_version(), object.kind()) {
        ("v1", "Pod") => {
            let problems = pods::spec_problems(object.get("spec"), "spec", &[]).into_iter();
            problems.chain(pods::gated_problem(object)).collect()
        }
        ("v1", "PodTemplate") => pods::template_problems(object.get("template"), "template", &[]),
        ("v1", "Service") => services::problems(object),
        ("v1", "LimitRange") => limits::problems(object),
        ("v1", "ConfigMap") => {
            let mut problems = map_keys(object, &["data", "binaryData"]);
            problems.extend(keys_in_both(object));
            // Kubernetes means the whole object, which is written like this.
            problems.extend(too_much(text_bytes(object, "data") + binary_bytes(object, "binaryData"), "[]"));
            problems
        }
        ("v1", "Secret") => {
            let mut problems = map_keys(object, &["data"]);
            problems.extend(too_much(binary_bytes(object, "data"), "data"));
            problems.extend(secret_keys(object));
            problems
        }
        ("apps/v1", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("v1", "ReplicationController")
        | ("batch/v1", "Job" | "CronJob") => workloads::problems(object),
        ("certificates.k8s.io/v1", "CertificateSigningRequest") => signing_requests::problems(object),
        (version, _) if version.starts_with("admissionregistration.k8s.io/") => admission::validation::problems(object),
        ("internal.apiserver.k8s.io/v1alpha1", "StorageVersion") => storage_version::problems(object),
        _ => others::problems(object),
    }
}

/// Fields of kinds that cannot change, without further ado.
const FIXED: [(&str, &str, &[&[&str]]); 15] = [
    ("v1", "ResourceQuota", &[&["spec", "scopes"]]),
    ("v1", "Secret", &[&["type"]]),
    ("apps/v1", "ControllerRevision", &[&["data"]]),
    ("apps/v1", "DaemonSet", &[&["spec", "selector"]]),
    ("apps/v1", "Deployment", &[&["spec", "selector"]]),
    ("apps/v1", "ReplicaSet", &[&["spec", "selector"]]),
    ("networking.k8s.io/v1", "IPAddress", &[&["spec", "parentRef"]]),
    ("networking.k8s.io/v1", "IngressClass", &[&["spec", "controller"]]),
    ("resource.k8s.io/v1", "ResourceClaim", &[&["spec"]]),
    ("resource.k8s.io/v1", "ResourceClaimTemplate", &[&["spec"]]),
    (
        "resource.k8s.io/v1",
        "ResourceSlice",
        &[&["spec", "driver"], &["spec", "pool", "name"], &["spec", "nodeName"], &["spec", "allNodes"]],
    ),
    ("scheduling.k8s.io/v1", "PriorityClass", &[&["preemptionPolicy"]]),
    ("storage.k8s.io/v1", "CSIStorageCapacity", &[&["nodeTopology"], &["storageClassName"]]),
    ("storage.k8s.io/v1", "VolumeAttachment", &[&["spec"]]),
    (
        "batch/v1",
        "Job",
        &[&["spec", "selector"], &["spec", "completionMode"], &["spec", "podFailurePolicy"], &["spec", "template"]],
    ),
];

/// Everything that is wrong with putting an object in the place of `old`.
pub(super) fn change_problems(object: &Object, old: &Object) -> Vec<FieldError> {
    let kind = (object.api_version(), object.kind());
    let fixed = FIXED.iter().find(|(version, name, _)| (*version, *name) == kind);
    let mut problems = fixed.map(|(_, _, paths)| immutable(object, old, paths)).unwrap_or_default();
    problems.extend(match kind {
        ("v1", "Pod") => pod_changes::problems(object, old),
        ("v1", "Service") => services::change_problems(object, old),
        ("v1", "ConfigMap") => frozen(object, old, &["data", "binaryData"]),
        ("v1", "Secret") => frozen(object, old, &["data"]),
        ("apps/v1", "StatefulSet") => workloads::stateful_set_changes(object, old),
        ("batch/v1", "Job") => workloads::completion_changes(object, old),
        ("certificates.k8s.io/v1", "CertificateSigningRequest") => signing_requests::change_problems(object, old),
        ("rbac.authorization.k8s.io/v1", "RoleBinding" | "ClusterRoleBinding") => role_reference(object, old),
        ("scheduling.k8s.io/v1", "PriorityClass") => {
            forbidden_changes(object, old, &[("value", "may not be changed in an update.")])
        }
        ("storage.k8s.io/v1", "StorageClass") => storage_class(object, old),
        ("storage.k8s.io/v1", "VolumeAttributesClass") => forbidden_changes(
            object,
            old,
            &[
                ("driverName", "updates to driverName are forbidden."),
                ("parameters", "updates to parameters are forbidden."),
            ],
        ),
        ("v1", "PersistentVolumeClaim") => others::claim_changes(object, old),
        ("v1", "PersistentVolume") => others::volume_changes(object, old),
        _ => Vec::new(),
    });
    problems
}

/// Fields at the top that cannot change, and what is said then.
fn forbidden_changes(object: &Object, old: &Object, fields: &[(&str, &str)]) -> Vec<FieldError> {
    let changed = fields.iter().filter(|(field, _)| object.get(field) != old.get(field));
    changed.map(|(field, why)| FieldError::forbidden(*field, *why)).collect()
}

/// Fields that cannot change.
fn immutable(object: &Object, old: &Object, paths: &[&[&str]]) -> Vec<FieldError> {
    let changed = paths.iter().filter(|path| object.at(path) != old.at(path));
    changed.map(|path| FieldError::immutable(path.join("."), object.at(path).unwrap_or(&Value::Null))).collect()
}

/// A map that says of itself that it cannot change stays as it is, and goes on saying so.
fn frozen(object: &Object, old: &Object, fields: &[&str]) -> Vec<FieldError> {
    let is_immutable = |object: &Object| object.get("immutable") == Some(&Value::Bool(true));
    if !is_immutable(old) {
        return Vec::new();
    }
    let detail = "field is immutable when `immutable` is set";
    let mut problems = Vec::new();
    if !is_immutable(object) {
        problems.push(FieldError::forbidden("immutable", detail));
    }
    let changed = fields.iter().filter(|field| object.get(field) != old.get(field));
    problems.extend(changed.map(|field| FieldError::forbidden(*field, detail)));
    problems
}

/// The keys of a configuration are names of files.
fn map_keys(object: &Object, fields: &[&str]) -> Vec<FieldError> {
    let mut problems = Vec::new();
    for field in fields {
        for (key, _) in object.get(field).and_then(Value::as_object).into_iter().flatten() {
            let (path, value) = (format!("{field}[{key}]"), key.as_str().into());
            let found = config_key_problems(key).into_iter();
            problems.extend(found.map(|detail| FieldError::invalid(&path, &value, detail)));
        }
    }
    problems
}

/// A key of a configuration holds a text or bytes, not both.
fn keys_in_both(object: &Object) -> Vec<FieldError> {
    let keys = object.get("data").and_then(Value::as_object).into_iter().flatten().map(|(key, _)| key);
    let twice = keys.filter(|key| object.at(&["binaryData", key]).is_some());
    let problem = "duplicate of key present in binaryData";
    twice.map(|key| FieldError::invalid(format!("data[{key}]"), &key.as_str().into(), problem)).collect()
}

/// The most that a configuration or a secret may hold: it is not meant to be a file system.
const MOST_DATA_BYTES: usize = 1 << 20;

fn too_much(bytes: usize, field: &str) -> Option<FieldError> {
    let detail = format!("may not be more than {MOST_DATA_BYTES} bytes");
    (bytes > MOST_DATA_BYTES).then(|| FieldError { field: field.into(), rule: FieldRule::TooLong, detail })
}

/// What the texts of a map take.
fn text_bytes(object: &Object, field: &str) -> usize {
    texts(object, field).map(str::len).sum()
}

/// What the bytes of a map take, which are written in base64.
fn binary_bytes(object: &Object, field: &str) -> usize {
    texts(object, field).map(|text| text.trim_end_matches('=').len() * 3 / 4).sum()
}

fn texts<'a>(object: &'a Object, field: &str) -> impl Iterator<Item = &'a str> {
    object.get(field).and_then(Value::as_object).into_iter().flatten().filter_map(|(_, value)| value.as_str())
}

/// What a secret of a known type must have.
fn secret_keys(object: &Object) -> Vec<FieldError> {
    let needed: &[&str] = match object.text(&["type"]) {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        _ => &[],
    };
    let missing = needed.iter().filter(|key| object.at(&["data", key]).is_none());
    missing.map(|key| FieldError::required(format!("data[{key}]"), "")).collect()
}

fn role_reference(object: &Object, old: &Object) -> Vec<FieldError> {
    match object.get("roleRef") == old.get("roleRef") {
        true => Vec::new(),
        false => {
            let reference = |name: &str| object.text(&["roleRef", name]);
            let value = serde_json::json!({
                "APIGroup": reference("apiGroup"), "Kind": reference("kind"), "Name": reference("name"),
            });
            vec![FieldError::immutable("roleRef", &value)]
        }
    }
}

fn storage_class(object: &Object, old: &Object) -> Vec<FieldError> {
    let mut problems = forbidden_changes(
        object,
        old,
        &[
            ("parameters", "updates to parameters are forbidden."),
            ("reclaimPolicy", "updates to reclaimPolicy are forbidden."),
        ],
    );
    if object.get("provisioner") != old.get("provisioner") {
        problems.push(FieldError::immutable("provisioner", &Value::Null));
    }
    if object.get("volumeBindingMode") != old.get("volumeBindingMode") {
        problems
            .push(FieldError::immutable("volumeBindingMode", object.get("volumeBindingMode").unwrap_or(&Value::Null)));
    }
    problems
}

/// The value is not one of those that there are.
pub(super) fn unsupported(field: impl Into<String>, value: &str, supported: &[&str]) -> FieldError {
    let supported: Vec<String> = supported.iter().map(|text| format!("{text:?}")).collect();
    FieldError {
        field: field.into(),
        rule: FieldRule::NotSupported(Value::from(value).to_string()),
        detail: format!("supported values: {}", supported.join(", ")),
    }
}

/// The value stands there a second time.
fn duplicate(field: impl Into<String>, value: &Value) -> FieldError {
    FieldError { field: field.into(), rule: FieldRule::Duplicate(value.to_string()), detail: String::new() }
}

/// A number that must not be below zero.
fn not_negative(object: &Object, path: &[&str]) -> Option<FieldError> {
    let value = object.at(path)?;
    (value.as_i64()? < 0).then(|| FieldError::invalid(path.join("."), value, "must be greater than or equal to 0"))
}
