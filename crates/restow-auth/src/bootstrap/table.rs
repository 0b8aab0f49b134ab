//! Builds the objects of the default policy from its table.

use crate::bootstrap::{AUTOUPDATE_ANNOTATION, BOOTSTRAPPING_LABEL};
use crate::rbac::{GROUP, PolicyRule, RbacKind};
use restow_tables::default_policy::{Entry, Object, RoleKind, Rule, Subject, Verb, controller_role};
use serde_json::{Map, Value, json};

const AGGREGATE_LABEL_PREFIX: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// The objects of all rows, in their order. The binding of a controller follows its role.
pub(super) fn objects(entries: Vec<Entry<'_>>) -> Vec<Value> {
    entries.into_iter().flat_map(|entry| objects_of(entry.object)).collect()
}

fn objects_of(row: Object<'_>) -> Vec<Value> {
    match row {
        Object::ClusterRole { name, part_of, gathers, rules } => vec![cluster_role(name, &part_of, &gathers, rules)],
        Object::Controller { name, rules } => {
            let role_name = controller_role(name);
            let subject = [Subject::ServiceAccount { namespace: "kube-system", name }];
            vec![
                role(RbacKind::ClusterRole, "", &role_name, rules),
                binding(RbacKind::ClusterRoleBinding, "", &role_name, (RoleKind::ClusterRole, &role_name), &subject),
            ]
        }
        Object::Role { namespace, name, rules } => vec![role(RbacKind::Role, namespace, name, rules)],
        Object::ClusterRoleBinding { name, role, subjects } => {
            vec![binding(RbacKind::ClusterRoleBinding, "", name, (RoleKind::ClusterRole, role), &subjects)]
        }
        Object::RoleBinding { namespace, name, role_kind, role, subjects } => {
            vec![binding(RbacKind::RoleBinding, namespace, name, (role_kind, role), &subjects)]
        }
    }
}

fn cluster_role(name: &str, part_of: &[&str], gathers: &[&str], rules: Vec<Rule<'_>>) -> Value {
    let label = |aggregate: &&str| format!("{AGGREGATE_LABEL_PREFIX}{aggregate}");
    // As in Kubernetes, an aggregate without rules of its own has `rules: null`, not an empty list.
    let has_rules = !rules.is_empty();
    let mut object = role(RbacKind::ClusterRole, "", name, rules);
    if !has_rules {
        object["rules"] = Value::Null;
    }
    part_of.iter().for_each(|aggregate| object["metadata"]["labels"][label(aggregate)] = json!("true"));
    if !gathers.is_empty() {
        let selectors: Vec<Value> =
            gathers.iter().map(|aggregate| json!({"matchLabels": {label(aggregate): "true"}})).collect();
        object["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
    }
    object
}

fn role(kind: RbacKind, namespace: &str, name: &str, rules: Vec<Rule<'_>>) -> Value {
    let mut role = object(kind, namespace, name);
    role["rules"] = rules.into_iter().map(|rule| json!(policy_rule(rule))).collect();
    role
}

fn policy_rule(rule: Rule<'_>) -> PolicyRule {
    let strings = |names: Vec<&str>| names.into_iter().map(String::from).collect();
    let verb_names = |verbs: Vec<Verb>| verbs.into_iter().map(|verb| verb.word().into()).collect();
    match rule {
        Rule::Resources { groups, resources, verbs, names } => PolicyRule {
            verbs: verb_names(verbs),
            api_groups: strings(groups),
            resources: strings(resources),
            resource_names: strings(names),
            ..PolicyRule::default()
        },
        Rule::Paths { paths, verbs } => {
            PolicyRule { verbs: verb_names(verbs), non_resource_urls: strings(paths), ..PolicyRule::default() }
        }
    }
}

fn subject_value(subject: &Subject<'_>) -> Value {
    match subject {
        Subject::Group(name) => json!({"kind": "Group", "name": name, "apiGroup": GROUP}),
        Subject::User(name) => json!({"kind": "User", "name": name, "apiGroup": GROUP}),
        Subject::ServiceAccount { namespace, name } => {
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
    }
}

fn binding(kind: RbacKind, namespace: &str, name: &str, role: (RoleKind, &str), subjects: &[Subject<'_>]) -> Value {
    let role_kind = match role.0 {
        RoleKind::Role => RbacKind::Role,
        RoleKind::ClusterRole => RbacKind::ClusterRole,
    };
    let mut binding = object(kind, namespace, name);
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": role_kind.as_str(), "name": role.1});
    if !subjects.is_empty() {
        binding["subjects"] = subjects.iter().map(subject_value).collect();
    }
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
