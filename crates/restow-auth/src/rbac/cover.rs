//! Whether some rules cover others: allow everything that they allow. A rule that no other rule covers as a whole is broken
//! down into single permissions, and each is covered by one rule or by none.
//!
//! A rule of a few kilobytes can stand for billions of permissions, so the number of comparisons is limited. What was not
//! compared counts as not covered.

use crate::rbac::policy_rule::{PolicyRule, has, path_covers};
use std::cell::Cell;
use std::collections::BTreeMap;

/// The maximum number of string comparisons; they take some milliseconds.
const MAX_COMPARISONS: usize = 5_000_000;
/// The maximum number of single permissions of a rule that is broken down.
const MAX_PERMISSIONS: usize = 100_000;
/// Each further block of so many bytes in a string costs as much as one comparison.
const BLOCK_BYTES: usize = 32;

/// The permissions that are not covered.
pub(super) struct Missing {
    /// Single permissions; a whole rule if it has too many of them.
    pub rules: Vec<PolicyRule>,
    /// Whether there are more than the limit.
    pub more: bool,
}

/// The single permissions in `wanted` that no rule in `held` covers. A rule with too many permissions to compare is covered
/// only if one rule covers it as a whole.
pub fn uncovered(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    missing(&held.iter().collect::<Vec<_>>(), wanted, usize::MAX).rules
}

/// Like [`uncovered`], but returns at most `limit` rules.
pub(super) fn missing(held: &[&PolicyRule], wanted: &[PolicyRule], limit: usize) -> Missing {
    let work = Work { left: Cell::new(MAX_COMPARISONS) };
    let mut rules = Vec::new();
    for rule in wanted {
        if held.iter().any(|own| work.covers(own, rule)) {
            continue;
        }
        let before = rules.len();
        let few = permissions_in(rule) <= MAX_PERMISSIONS;
        if few {
            work.break_down(held, rule, limit, &mut rules);
        }
        if !few || work.is_exhausted() {
            rules.truncate(before);
            rules.push(rule.clone());
        }
        if rules.len() > limit {
            rules.truncate(limit);
            return Missing { rules, more: true };
        }
    }
    Missing { rules, more: false }
}

/// The number of single permissions of a rule.
fn permissions_in(rule: &PolicyRule) -> usize {
    let things = [rule.api_groups.len(), rule.resources.len(), rule.resource_names.len().max(1)];
    let things = things.into_iter().fold(1usize, usize::saturating_mul);
    things.saturating_add(rule.non_resource_urls.len()).saturating_mul(rule.verbs.len())
}

/// The comparisons that one check may still make. When none is left, nothing counts as covered.
struct Work {
    left: Cell<usize>,
}

impl Work {
    fn is_exhausted(&self) -> bool {
        self.left.get() == 0
    }

    /// Takes the cost of comparing a text with `count` others. Returns whether enough was left.
    fn spend(&self, count: usize, text: &str) -> bool {
        let cost = count.saturating_mul(1 + text.len() / BLOCK_BYTES).saturating_add(1);
        let left = self.left.get();
        self.left.set(left.saturating_sub(cost));
        left > cost
    }

    /// Whether a list has `*` or the string.
    fn has(&self, list: &[String], text: &str) -> bool {
        self.spend(list.len(), text) && (has(list, "*") || has(list, text))
    }

    fn has_resource(&self, held: &[String], wanted: &str) -> bool {
        let any_resource = wanted.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
        self.has(held, wanted) || any_resource.is_some_and(|pattern| self.has(held, &pattern))
    }

    fn has_path(&self, rule: &PolicyRule, path: &str) -> bool {
        self.spend(rule.non_resource_urls.len(), path)
            && rule.non_resource_urls.iter().any(|own| path_covers(own, path))
    }

    fn has_name(&self, rule: &PolicyRule, name: &str) -> bool {
        rule.resource_names.is_empty() || self.spend(rule.resource_names.len(), name) && rule.has_name(name)
    }

    /// Whether one rule allows everything that another allows.
    fn covers(&self, rule: &PolicyRule, wanted: &PolicyRule) -> bool {
        let names = match wanted.resource_names.is_empty() {
            true => rule.resource_names.is_empty(),
            false => wanted.resource_names.iter().all(|name| self.has_name(rule, name)),
        };
        names
            && wanted.verbs.iter().all(|verb| self.has(&rule.verbs, verb))
            && wanted.api_groups.iter().all(|group| self.has(&rule.api_groups, group))
            && wanted.resources.iter().all(|resource| self.has_resource(&rule.resources, resource))
            && wanted.non_resource_urls.iter().all(|path| self.has_path(rule, path))
    }

    /// Finds the single permissions of a rule that no rule in `held` covers. Rules of other groups, resources and verbs are
    /// dropped early.
    fn break_down(&self, held: &[&PolicyRule], rule: &PolicyRule, limit: usize, found: &mut Vec<PolicyRule>) {
        for group in &rule.api_groups {
            let of_group: Vec<&PolicyRule> = narrowed(held, |own| self.has(&own.api_groups, group));
            for resource in &rule.resources {
                let of_resource = narrowed(&of_group, |own| self.has_resource(&own.resources, resource));
                for verb in &rule.verbs {
                    let of_verb = narrowed(&of_resource, |own| self.has(&own.verbs, verb));
                    let thing = PolicyRule {
                        verbs: vec![verb.clone()],
                        api_groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        ..PolicyRule::default()
                    };
                    self.names_missing(&of_verb, rule, &thing, limit, found);
                    if self.is_exhausted() || found.len() > limit {
                        return;
                    }
                }
            }
        }
        for path in &rule.non_resource_urls {
            let on_path = narrowed(held, |own| self.has_path(own, path));
            let verbs = rule.verbs.iter().filter(|verb| !on_path.iter().any(|own| self.has(&own.verbs, verb)));
            found.extend(verbs.take(limit.saturating_add(1)).map(|verb| PolicyRule {
                verbs: vec![verb.clone()],
                non_resource_urls: vec![path.clone()],
                ..PolicyRule::default()
            }));
            if self.is_exhausted() || found.len() > limit {
                return;
            }
        }
    }

    /// Finds the resource names of a rule that no rule in `held` has. The rules in `held` cover everything but the name.
    fn names_missing(
        &self,
        held: &[&PolicyRule],
        rule: &PolicyRule,
        thing: &PolicyRule,
        limit: usize,
        found: &mut Vec<PolicyRule>,
    ) {
        if rule.resource_names.is_empty() {
            let covered = held.iter().any(|own| own.resource_names.is_empty());
            found.extend((!covered).then(|| thing.clone()));
            return;
        }
        for name in &rule.resource_names {
            if !held.iter().any(|own| self.has_name(own, name)) {
                found.push(PolicyRule { resource_names: vec![name.clone()], ..thing.clone() });
            }
            if !self.spend(0, "") || found.len() > limit {
                return;
            }
        }
    }
}

fn narrowed<'a>(rules: &[&'a PolicyRule], fits: impl Fn(&PolicyRule) -> bool) -> Vec<&'a PolicyRule> {
    rules.iter().copied().filter(|rule| fits(rule)).collect()
}

/// Joins single permissions on the same resource into one rule with all their verbs, for messages.
pub(super) fn join_verbs(permissions: Vec<PolicyRule>) -> Vec<PolicyRule> {
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
    fn rules_with_billions_of_permissions_are_covered_whole_or_not_at_all() {
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
        assert_eq!(uncovered(&many, &many).len(), 100, "too many comparisons");
    }

    #[test]
    fn the_default_roles_stay_within_the_comparison_limit() {
        let read = |role: &serde_json::Value| -> Vec<PolicyRule> {
            let rules = role["rules"].as_array().into_iter().flatten();
            rules.map(|rule| restow_apimachinery::typed::read(rule).unwrap()).collect()
        };
        let roles: Vec<Vec<PolicyRule>> = crate::bootstrap::bootstrap_objects().iter().map(read).collect();
        // The held rules have one verb each: this needs the most comparisons.
        let single = |rule: &PolicyRule| -> Vec<PolicyRule> {
            rule.verbs.iter().map(|verb| PolicyRule { verbs: vec![verb.clone()], ..rule.clone() }).collect()
        };
        let held: Vec<PolicyRule> =
            roles.iter().flatten().filter(|rule| !has(&rule.verbs, "*")).flat_map(single).collect();
        for role in &roles {
            let wanted: Vec<PolicyRule> = role.iter().filter(|rule| !has(&rule.verbs, "*")).cloned().collect();
            assert_eq!(uncovered(&held, &wanted), []);
        }
        let whole = roles.concat();
        assert_eq!(uncovered(&[whole.clone(), vec![rule(&["*"], &["*"], &["*"])]].concat(), &whole), []);
    }

    #[test]
    fn missing_permissions_are_limited() {
        let words: Vec<String> = (0..100).map(|number| format!("w{number}")).collect();
        let wanted = [PolicyRule { resources: words.clone(), resource_names: words, ..rule(&["get"], &[""], &[]) }];
        let found = missing(&[], &wanted, 10);
        assert_eq!((found.rules.len(), found.more), (10, true));
        assert_eq!(uncovered(&[], &wanted).len(), 10_000);
    }

    #[test]
    fn several_rules_together_cover_one_rule() {
        let held = [rule(&["get"], &[""], &["pods"]), rule(&["list"], &[""], &["pods"])];
        assert_eq!(uncovered(&held, &[rule(&["get", "list"], &[""], &["pods"])]), []);
        assert_eq!(
            uncovered(&held, &[rule(&["get", "watch"], &[""], &["pods"])]),
            [rule(&["watch"], &[""], &["pods"])]
        );
    }
}
