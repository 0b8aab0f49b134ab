//! Whether some rules allow all that others allow. Everything is broken down into single permissions, each of which one
//! rule covers or none does.

use crate::auth::rbac::policy_rule::{PolicyRule, has, path_covers};
use std::collections::BTreeMap;

/// The most comparisons of single permissions with rules. A few kilobytes can name billions of permissions.
const MAX_COMPARISONS: usize = 1_000_000;
/// The most comparisons of the words of rules with each other.
const MAX_WORDS_COMPARED: usize = 50_000_000;

/// The single permissions among `wanted` that no rule in `held` covers. Of rules that come to more permissions than can be
/// looked at, what no rule covers whole is not covered.
pub fn uncovered(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    if words_in(held).saturating_mul(words_in(wanted)) > MAX_WORDS_COMPARED {
        return wanted.to_vec();
    }
    let is_covered = |permission: &PolicyRule| held.iter().any(|rule| covers(rule, permission));
    let wanted: Vec<&PolicyRule> = wanted.iter().filter(|rule| !is_covered(rule)).collect();
    let permissions = wanted.iter().fold(0usize, |sum, rule| sum.saturating_add(permissions_in(rule)));
    if permissions.saturating_mul(held.len().max(1)) > MAX_COMPARISONS {
        return wanted.into_iter().cloned().collect();
    }
    wanted.into_iter().flat_map(break_down).filter(|permission| !is_covered(permission)).collect()
}

/// How many words rules consist of.
fn words_in(rules: &[PolicyRule]) -> usize {
    let words = |rule: &PolicyRule| {
        [&rule.verbs, &rule.api_groups, &rule.resources, &rule.resource_names, &rule.non_resource_urls]
            .into_iter()
            .map(Vec::len)
            .sum::<usize>()
    };
    rules.iter().map(words).sum()
}

/// How many single permissions a rule gives.
fn permissions_in(rule: &PolicyRule) -> usize {
    let things = [rule.api_groups.len(), rule.resources.len(), rule.resource_names.len().max(1)];
    let things = things.into_iter().fold(1usize, usize::saturating_mul);
    things.saturating_add(rule.non_resource_urls.len()).saturating_mul(rule.verbs.len())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> PolicyRule {
        let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        PolicyRule {
            verbs: texts(verbs),
            api_groups: texts(groups),
            resources: texts(resources),
            ..PolicyRule::default()
        }
    }

    #[test]
    fn rules_that_come_to_billions_of_permissions_are_covered_whole_or_not_at_all() {
        let words: Vec<String> = (0..2_000).map(|number| format!("w{number}")).collect();
        let wanted = [PolicyRule {
            verbs: words.clone(),
            api_groups: words.clone(),
            resources: words.clone(),
            resource_names: words,
            ..PolicyRule::default()
        }];
        assert_eq!(uncovered(&[rule(&["*"], &["*"], &["*"])], &wanted), []);
        assert_eq!(uncovered(&[rule(&["get"], &["*"], &["*"])], &wanted), wanted);
        let many = vec![wanted.to_vec(); 100].concat();
        assert_eq!(uncovered(&many, &many).len(), 100, "too many words to compare");
    }

    #[test]
    fn several_rules_cover_one_together() {
        let held = [rule(&["get"], &[""], &["pods"]), rule(&["list"], &[""], &["pods"])];
        assert_eq!(uncovered(&held, &[rule(&["get", "list"], &[""], &["pods"])]), []);
        assert_eq!(
            uncovered(&held, &[rule(&["get", "watch"], &[""], &["pods"])]),
            [rule(&["watch"], &[""], &["pods"])]
        );
    }
}
