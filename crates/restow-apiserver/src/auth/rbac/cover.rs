//! Whether some rules allow all that others allow. Everything is broken down into single permissions, each of which one
//! rule covers or none does.

use crate::auth::rbac::policy_rule::{PolicyRule, has, path_covers};
use std::collections::BTreeMap;

/// The single permissions among `wanted` that no rule in `held` covers.
pub fn uncovered(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let single = wanted.iter().flat_map(break_down);
    single.filter(|permission| !held.iter().any(|rule| covers(rule, permission))).collect()
}

/// Joins single permissions on the same thing into one rule with all their verbs, for people to read.
pub(crate) fn join_verbs(permissions: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut joined: BTreeMap<PolicyRule, Vec<String>> = BTreeMap::new();
    let mut rest = Vec::new();
    for permission in permissions {
        if permission.resources.is_empty() {
            rest.push(permission);
            continue;
        }
        let verbs = permission.verbs.clone();
        joined.entry(PolicyRule { verbs: Vec::new(), ..permission }).or_default().extend(verbs);
    }
    rest.extend(joined.into_iter().map(|(thing, verbs)| PolicyRule { verbs, ..thing }));
    rest
}

/// The single permissions that the rule gives.
fn break_down(rule: &PolicyRule) -> Vec<PolicyRule> {
    let one = |text: &String| vec![text.clone()];
    let names: Vec<Vec<String>> = match rule.resource_names.is_empty() {
        true => vec![Vec::new()],
        false => rule.resource_names.iter().map(one).collect(),
    };
    let mut permissions = Vec::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                permissions.extend(names.iter().map(|name| PolicyRule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names: name.clone(),
                    non_resource_urls: Vec::new(),
                }));
            }
        }
    }
    for path in &rule.non_resource_urls {
        let on_path = |verb| PolicyRule { verbs: one(verb), non_resource_urls: one(path), ..PolicyRule::default() };
        permissions.extend(rule.verbs.iter().map(on_path));
    }
    permissions
}

fn covers(rule: &PolicyRule, permission: &PolicyRule) -> bool {
    let names = match permission.resource_names.is_empty() {
        true => rule.resource_names.is_empty(),
        false => permission.resource_names.iter().all(|name| rule.has_name(name)),
    };
    names
        && permission.verbs.iter().all(|verb| rule.has_verb(verb))
        && permission.api_groups.iter().all(|group| rule.has_group(group))
        && permission.resources.iter().all(|resource| resource_covered(&rule.resources, resource))
        && permission
            .non_resource_urls
            .iter()
            .all(|path| rule.non_resource_urls.iter().any(|own| path_covers(own, path)))
}

fn resource_covered(held: &[String], wanted: &str) -> bool {
    let of_everything = wanted.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
    has(held, "*") || has(held, wanted) || of_everything.is_some_and(|pattern| has(held, &pattern))
}
