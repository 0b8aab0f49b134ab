//! Random policies, changed object by object, compared with an implementation that evaluates all objects each time.

use crate::rbac::{RbacKind, Rules, uncovered};
use crate::{Attributes, Authorizer, Decision, ResourceAttributes, User};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};
use std::collections::BTreeMap;

type Objects = BTreeMap<(RbacKind, String, String), Value>;

#[derive(Clone, Debug)]
struct Change {
    kind: RbacKind,
    namespace: String,
    name: String,
    value: Option<Value>,
}

fn strings(object: &Value, field: &str) -> Vec<String> {
    let items = object[field].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| item.as_str().unwrap().to_string()).collect()
}

fn any_of(list: &[String], text: &str) -> bool {
    list.contains(&"*".to_string()) || list.contains(&text.to_string())
}

fn rule_allows(rule: &Value, attributes: &Attributes) -> bool {
    match attributes {
        Attributes::Path { verb, path } => {
            any_of(&strings(rule, "verbs"), verb)
                && strings(rule, "nonResourceURLs").iter().any(|pattern| match pattern.strip_suffix('*') {
                    Some(start) => path.starts_with(start),
                    None => pattern == path,
                })
        }
        Attributes::Resource(asked) => {
            let names = strings(rule, "resourceNames");
            any_of(&strings(rule, "verbs"), &asked.verb)
                && any_of(&strings(rule, "apiGroups"), &asked.group)
                && (names.is_empty() || names.contains(&asked.name))
                && strings(rule, "resources").iter().any(|resource| match asked.subresource.as_str() {
                    "" => resource == "*" || *resource == asked.resource,
                    sub => {
                        resource == "*"
                            || *resource == format!("{}/{sub}", asked.resource)
                            || *resource == format!("*/{sub}")
                    }
                })
        }
    }
}

fn subject_is(subject: &Value, namespace: &str, user: &User) -> bool {
    let name = subject["name"].as_str().unwrap();
    match subject["kind"].as_str().unwrap() {
        "User" => name == user.name,
        "Group" => user.groups.iter().any(|group| group == name),
        "ServiceAccount" => {
            let own = subject["namespace"].as_str().unwrap_or(namespace);
            !own.is_empty() && user.name == format!("system:serviceaccount:{own}:{name}")
        }
        _ => false,
    }
}

/// The bindings that allow the request, as `Kind/name`.
fn reference(objects: &Objects, user: &User, attributes: &Attributes) -> Vec<String> {
    let mut allowing = Vec::new();
    for ((kind, namespace, name), binding) in objects {
        let applies = match kind {
            RbacKind::ClusterRoleBinding => true,
            RbacKind::RoleBinding => namespace == attributes.namespace(),
            _ => false,
        };
        let subjects = binding["subjects"].as_array().cloned().unwrap_or_default();
        if !applies || !subjects.iter().any(|subject| subject_is(subject, namespace, user)) {
            continue;
        }
        let role_kind = RbacKind::parse(binding["roleRef"]["kind"].as_str().unwrap()).unwrap();
        let role_namespace = if role_kind == RbacKind::Role { namespace.clone() } else { String::new() };
        let key = (role_kind, role_namespace, binding["roleRef"]["name"].as_str().unwrap().to_string());
        let rules = objects.get(&key).and_then(|role| role["rules"].as_array().cloned()).unwrap_or_default();
        if rules.iter().any(|rule| rule_allows(rule, attributes)) {
            let suffix = if namespace.is_empty() { String::new() } else { format!("/{namespace}") };
            allowing.push(format!("{kind} \"{name}{suffix}\""));
        }
    }
    allowing
}

fn some_of(items: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    subsequence(items, 0..=items.len().min(3))
}

fn rule() -> impl Strategy<Value = Value> {
    let resources = &["pods", "pods/log", "*/log", "*", "deployments", "pods/*"];
    (
        some_of(&["get", "list", "*"]),
        some_of(&["", "apps", "*"]),
        some_of(resources),
        prop_oneof![3 => Just(vec![]), 1 => some_of(&["x", "y"])],
        prop_oneof![3 => Just(vec![]), 1 => some_of(&["/a", "/a/*", "/a*", "*"])],
    )
        .prop_map(|(verbs, groups, resources, names, paths)| {
            json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names,
                "nonResourceURLs": paths})
        })
}

/// A narrow rule, so that other rules often cover it.
fn single_rule() -> impl Strategy<Value = Value> {
    let resource = (select(vec!["get", "list"]), select(vec!["", "apps"]), select(vec!["pods", "pods/log", "*/log"]));
    let names = prop_oneof![Just(vec![]), Just(vec!["x"])];
    (resource, names).prop_map(|((verb, group, resource), names)| {
        json!({"verbs": [verb], "apiGroups": [group], "resources": [resource], "resourceNames": names})
    })
}

fn subject() -> impl Strategy<Value = Value> {
    prop_oneof![
        select(vec!["a", "b", "system:serviceaccount:n1:s"]).prop_map(|name| json!({"kind": "User", "name": name})),
        select(vec!["g1", "g2"]).prop_map(|name| json!({"kind": "Group", "name": name})),
        select(vec!["n1", "n2"]).prop_map(|own| json!({"kind": "ServiceAccount", "name": "s", "namespace": own})),
        Just(json!({"kind": "ServiceAccount", "name": "s"})),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let kind = select(RbacKind::ALL.to_vec());
    let rules = prop::collection::vec(rule(), 0..3);
    let subjects = prop::collection::vec(subject(), 0..3);
    let place = (select(vec!["n1", "n2"]), select(vec!["o1", "o2"]), select(vec!["o1", "o2", "none"]), any::<bool>());
    (kind, place, rules, subjects, prop::bool::weighted(0.8)).prop_map(
        |(kind, (namespace, name, role, local), rules, subjects, present)| {
            let namespaced = matches!(kind, RbacKind::Role | RbacKind::RoleBinding);
            let role_kind = if local && kind == RbacKind::RoleBinding { "Role" } else { "ClusterRole" };
            let value = match kind {
                RbacKind::Role | RbacKind::ClusterRole => json!({"rules": rules}),
                _ => json!({"roleRef": {"kind": role_kind, "name": role}, "subjects": subjects}),
            };
            let namespace = if namespaced { namespace.into() } else { String::new() };
            Change { kind, namespace, name: name.into(), value: present.then_some(value) }
        },
    )
}

fn user() -> impl Strategy<Value = User> {
    let names = select(vec!["a", "b", "system:serviceaccount:n1:s", "system:serviceaccount:n2:s"]);
    (names, some_of(&["g1", "g2", "g3"]))
        .prop_map(|(name, groups)| groups.into_iter().fold(User::named(name), |user, group| user.with_group(group)))
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let resource = (
        select(vec!["get", "list", "delete"]),
        select(vec!["", "apps"]),
        select(vec!["pods", "deployments"]),
        select(vec!["", "log"]),
        select(vec!["", "n1", "n2"]),
        select(vec!["", "x", "z"]),
    )
        .prop_map(|(verb, group, resource, subresource, namespace, name)| {
            Attributes::Resource(ResourceAttributes {
                verb: verb.into(),
                group: group.into(),
                version: "v1".into(),
                resource: resource.into(),
                subresource: subresource.into(),
                namespace: namespace.into(),
                name: name.into(),
            })
        });
    let path = (select(vec!["get", "list"]), select(vec!["/a", "/a/b", "/ab", "/b"]));
    prop_oneof![4 => resource, 1 => path.prop_map(|(verb, path)| Attributes::path(verb, path))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_index_decides_like_the_reference(
        changes in prop::collection::vec(change(), 1..24),
        questions in prop::collection::vec((user(), attributes()), 16),
    ) {
        let mut rules = Rules::default();
        let mut objects = Objects::new();
        for Change { kind, namespace, name, value } in changes {
            prop_assert_eq!(rules.set(kind, &namespace, &name, value.as_ref()), Ok(()));
            match value {
                Some(value) => objects.insert((kind, namespace, name), value),
                None => objects.remove(&(kind, namespace, name)),
            };
        }
        for (user, attributes) in questions {
            let allowing = reference(&objects, &user, &attributes);
            match rules.authorize(&user, &attributes) {
                Decision::Allow { reason } => {
                    let named = allowing.iter().any(|by| reason.starts_with(&format!("RBAC: allowed by {by} of ")));
                    prop_assert!(named, "{} is not among {:?}", reason, allowing);
                }
                Decision::NoOpinion { .. } => prop_assert_eq!(allowing, Vec::<String>::new()),
            }
        }
    }

    /// Rules that cover another rule allow everything that it allows.
    #[test]
    fn covering_rules_allow_what_the_covered_rule_allows(
        held in prop::collection::vec(rule(), 1..6),
        wanted in single_rule(),
        asked in prop::collection::vec(attributes(), 32),
    ) {
        let read = |rule: &Value| restow_apimachinery::typed::read(rule).unwrap();
        let owned: Vec<_> = held.iter().map(read).collect();
        if uncovered(&owned, &[read(&wanted)]).is_empty() {
            for asked in asked.iter().filter(|asked| rule_allows(&wanted, asked)) {
                prop_assert!(held.iter().any(|rule| rule_allows(rule, asked)), "{:?}", asked);
            }
        }
    }
}
