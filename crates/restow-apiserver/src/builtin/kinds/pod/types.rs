//! Defaults and checks of the types in a pod's specification, for pods and for all pod templates.

use crate::builtin::checks::by_type::{amounts_not_negative, count, requirement};
use crate::builtin::checks::{Fields, below, is_unset, text_at};
use crate::builtin::defaults::text;
use crate::builtin::validation::unsupported;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::names::label_value_problems;
use serde_json::{Value, json};

/// The default pull policy is Always for `latest` images, else IfNotPresent.
pub(crate) fn default_pull_policy(fields: &mut Fields) {
    if !text(fields, "imagePullPolicy").is_empty() {
        return;
    }
    let image = text(fields, "image");
    let last = image.rsplit('/').next().unwrap_or(image);
    let moving = !image.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    let policy = if moving { "Always" } else { "IfNotPresent" };
    fields.insert("imagePullPolicy".into(), policy.into());
}

/// Requests default to limits. Templates do not change.
pub(crate) fn default_requests(pod: &mut Fields) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for field in ["initContainers", "containers"] {
        for container in spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else { continue };
            let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { continue };
            let requests = resources.entry("requests").or_insert_with(|| json!({}));
            if let Some(requests) = requests.as_object_mut() {
                for (name, limit) in limits {
                    requests.entry(name).or_insert(limit);
                }
            }
        }
    }
}

/// A volume without a source is an empty directory.
pub(crate) fn default_volume(fields: &mut Fields) {
    if !fields.keys().any(|name| name != "name") {
        fields.insert("emptyDir".into(), json!({}));
    }
}

/// The service account has two fields, of which `serviceAccount` is deprecated; both have the same value.
pub(crate) fn default_service_account(fields: &mut Fields) {
    let (new, old) = ("serviceAccountName", "serviceAccount");
    let known = if text(fields, new).is_empty() { text(fields, old) } else { text(fields, new) };
    if !known.is_empty() {
        let known = Value::from(known);
        fields.insert(old.into(), known.clone());
        fields.insert(new.into(), known);
    }
}

pub(crate) fn check_toleration(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let text = |name: &str| text_at(fields, &[name]);
    let operator = below(path, "operator");
    if text("key").is_empty() && text("operator") != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        found.push(FieldError::invalid(&operator, &text("operator").into(), detail));
    }
    if fields.contains_key("tolerationSeconds") && text("effect") != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        found.push(FieldError::invalid(below(path, "effect"), &text("effect").into(), detail));
    }
    match text("operator") {
        "" | "Equal" => {
            let problems = label_value_problems(text("value")).into_iter();
            found.extend(problems.map(|problem| FieldError::invalid(&operator, &text("value").into(), problem)));
        }
        "Exists" if !text("value").is_empty() => {
            let detail = "value must be empty when `operator` is 'Exists'";
            found.push(FieldError::invalid(&operator, &text("value").into(), detail));
        }
        "Exists" | "Lt" | "Gt" => {}
        other => found.push(unsupported(operator, other, &["Equal", "Exists"])),
    }
}

pub(crate) fn check_node_requirement(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    requirement(fields, path, true, found);
}

pub(crate) fn check_env_source(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let detail = match count(fields, &["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"])
    {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    found.push(FieldError::invalid(path, &"".into(), detail));
}

pub(crate) fn check_env_from(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let detail = match count(fields, &["configMapRef", "secretRef"]) {
        0 => "must specify one of: `configMapRef` or `secretRef`",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    // Kubernetes reports the whole list.
    let list = path.rsplit_once('[').map_or(path, |(list, _)| list);
    found.push(FieldError::invalid(list, &"".into(), detail));
}

pub(crate) fn check_field_selector(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    const KNOWN: [&str; 17] = [
        "metadata.annotations",
        "metadata.labels",
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.hostNetwork",
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.nominatedNodeName",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "",
    ];
    let named = text_at(fields, &["fieldPath"]);
    if !KNOWN.contains(&named) && !named.contains("['") {
        let detail = format!("error converting fieldPath: field label not supported: {named}");
        found.push(FieldError::invalid(below(path, "fieldPath"), &named.into(), detail));
    }
}

pub(crate) fn check_resource_selector(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    const KNOWN: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    let named = text_at(fields, &["resource"]);
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|start| named.starts_with(start));
    if !named.is_empty() && !KNOWN.contains(&named) && !huge {
        found.push(unsupported(below(path, "resource"), named, &KNOWN));
    }
}

pub(crate) fn check_sysctl(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let name = text_at(fields, &["name"]);
    let part = |part: &str| {
        let known = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        part.starts_with(known)
            && part.ends_with(known)
            && part.chars().all(|letter| known(letter) || "-_".contains(letter))
    };
    if !name.is_empty() && (name.len() > 253 || !name.split(['.', '/']).all(part)) {
        let detail = "must have at most 253 characters and match regex \
                      ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
        found.push(FieldError::invalid(below(path, "name"), &name.into(), detail));
    }
}

pub(crate) fn check_container(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    let mounts = fields.get("volumeMounts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (index, mount) in mounts.iter().enumerate() {
        let place = &mount["mountPath"];
        if !is_unset(Some(place)) && mounts[..index].iter().any(|earlier| earlier["mountPath"] == *place) {
            let at = format!("{path}.volumeMounts[{index}].mountPath");
            found.push(FieldError::invalid(at, place, "must be unique"));
        }
    }
}

pub(crate) fn check_resources(fields: &Fields, path: &str, found: &mut Vec<FieldError>) {
    for kind in ["limits", "requests"] {
        amounts_not_negative(fields.get(kind), &below(path, kind), found);
    }
}
