//! Reads the table of the default policy. Its form is described at its top.

use crate::bootstrap::{AUTOUPDATE_ANNOTATION, BOOTSTRAPPING_LABEL};
use crate::rbac::{GROUP, PolicyRule, RbacKind};
use serde_json::{Map, Value, json};
use thiserror::Error;

const AGGREGATE_LABEL_PREFIX: &str = "rbac.authorization.k8s.io/aggregate-to-";
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "delete", "deletecollection", "patch", "update"];

/// A line that is not understood.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {0} of the policy is not understood")]
pub(super) struct UnknownLine(usize);

/// The objects in the table, in its order.
pub(super) fn read(table: &str) -> Result<Vec<Value>, UnknownLine> {
    let mut objects: Vec<Value> = Vec::new();
    // A controller's binding follows all of its role's rules.
    let mut pending: Option<Value> = None;
    for (index, line) in table.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() || line.starts_with('#') {
            continue;
        }
        let unknown = || UnknownLine(index + 1);
        if line.starts_with(' ') {
            objects.last_mut().and_then(|object| add_detail(object, &words)).ok_or_else(unknown)?;
            continue;
        }
        objects.extend(pending.take());
        let (object, binding) = head(&words).ok_or_else(unknown)?;
        objects.push(object);
        pending = binding;
    }
    objects.extend(pending);
    Ok(objects)
}

/// The object that a line opens; for a controller, its binding too.
fn head(words: &[&str]) -> Option<(Value, Option<Value>)> {
    Some(match *words {
        ["clusterrole", name, ref options @ ..] => {
            let mut role = object(RbacKind::ClusterRole, "", name);
            role["rules"] = Value::Null;
            add_options(&mut role, options)?;
            (role, None)
        }
        ["controller", name] => {
            let role_name = format!("system:controller:{name}");
            let mut role = object(RbacKind::ClusterRole, "", &role_name);
            role["rules"] = json!([]);
            let mut binding = binding(RbacKind::ClusterRoleBinding, "", &role_name, "ClusterRole", &role_name);
            add_subject(&mut binding, json!({"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}))?;
            (role, Some(binding))
        }
        ["role", namespace, name] => {
            let mut role = object(RbacKind::Role, namespace, name);
            role["rules"] = json!([]);
            (role, None)
        }
        ["clusterrolebinding", name, "clusterrole", role] => {
            (binding(RbacKind::ClusterRoleBinding, "", name, "ClusterRole", role), None)
        }
        ["rolebinding", namespace, name, "role", role] => {
            (binding(RbacKind::RoleBinding, namespace, name, "Role", role), None)
        }
        ["rolebinding", namespace, name, "clusterrole", role] => {
            (binding(RbacKind::RoleBinding, namespace, name, "ClusterRole", role), None)
        }
        _ => return None,
    })
}

/// Adds a rule to a role, or a subject to a binding.
fn add_detail(object: &mut Value, words: &[&str]) -> Option<()> {
    if object.get("roleRef").is_some() {
        return add_subject(object, subject(words)?);
    }
    let rule = rule(words)?.to_value();
    let rules = object.get_mut("rules")?;
    if rules.is_null() {
        *rules = json!([]);
    }
    rules.as_array_mut()?.push(rule);
    Some(())
}

fn add_options(role: &mut Value, options: &[&str]) -> Option<()> {
    for option in options.chunks(2) {
        let [keyword, names] = *option else { return None };
        let labels = names.split(',').map(|name| format!("{AGGREGATE_LABEL_PREFIX}{name}"));
        match keyword {
            "part-of" => labels.for_each(|label| role["metadata"]["labels"][label] = json!("true")),
            "gathers" => {
                let selectors: Vec<Value> = labels.map(|label| json!({"matchLabels": {label: "true"}})).collect();
                role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
            }
            _ => return None,
        }
    }
    Some(())
}

fn add_subject(binding: &mut Value, subject: Value) -> Option<()> {
    let subjects = binding.as_object_mut()?.entry("subjects").or_insert_with(|| json!([]));
    subjects.as_array_mut()?.push(subject);
    Some(())
}

fn rule(words: &[&str]) -> Option<PolicyRule> {
    let list = |text: &str| text.split(',').map(String::from).collect::<Vec<_>>();
    match *words {
        ["records-events"] => rule(&["core,events.k8s.io", "events", "create,patch,update"]),
        ["path", paths, verb_list] => {
            Some(PolicyRule { verbs: verbs(verb_list), non_resource_urls: list(paths), ..PolicyRule::default() })
        }
        [groups, resources, verb_list] => Some(PolicyRule {
            verbs: verbs(verb_list),
            api_groups: groups.split(',').map(|group| if group == "core" { "" } else { group }.into()).collect(),
            resources: list(resources),
            ..PolicyRule::default()
        }),
        [groups, resources, verb_list, "named", names] => {
            Some(PolicyRule { resource_names: list(names), ..rule(&[groups, resources, verb_list])? })
        }
        _ => None,
    }
}

fn verbs(list: &str) -> Vec<String> {
    let mut verbs: Vec<String> = Vec::new();
    for verb in list.split(',') {
        match verb {
            "read" => verbs.extend(READ.map(String::from)),
            "write" => verbs.extend(WRITE.map(String::from)),
            other => verbs.push(other.into()),
        }
    }
    verbs.sort();
    verbs
}

fn subject(words: &[&str]) -> Option<Value> {
    match *words {
        ["group", name] => Some(json!({"kind": "Group", "name": name, "apiGroup": GROUP})),
        ["user", name] => Some(json!({"kind": "User", "name": name, "apiGroup": GROUP})),
        ["serviceaccount", full_name] => {
            let (namespace, name) = full_name.split_once('/')?;
            Some(json!({"kind": "ServiceAccount", "name": name, "namespace": namespace}))
        }
        _ => None,
    }
}

fn binding(kind: RbacKind, namespace: &str, name: &str, role_kind: &str, role: &str) -> Value {
    let mut binding = object(kind, namespace, name);
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": role_kind, "name": role});
    binding
}

fn object(kind: RbacKind, namespace: &str, name: &str) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".into(), json!(name));
    if !namespace.is_empty() {
        metadata.insert("namespace".into(), json!(namespace));
    }
    metadata.insert("labels".into(), json!({BOOTSTRAPPING_LABEL: "rbac-defaults"}));
    metadata.insert("annotations".into(), json!({AUTOUPDATE_ANNOTATION: "true"}));
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind.as_str(), "metadata": metadata})
}
