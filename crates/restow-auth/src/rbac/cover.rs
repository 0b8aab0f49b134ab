//! Whether some rules allow all that others allow. Everything is broken down into single permissions, each of which one
//! rule covers or none does.
//!
//! A few kilobytes can name billions of permissions, so the work is counted word by word and ends where it is too much: what
//! could not be looked at is not covered.

use crate::rbac::policy_rule::{PolicyRule, has, path_covers};
use std::cell::Cell;
use std::collections::BTreeMap;

/// The most comparisons of words: some milliseconds.
const MAX_WORDS_COMPARED: usize = 5_000_000;
/// The most single permissions of a rule that no other covers as a whole.
const MAX_PERMISSIONS: usize = 100_000;
/// How many bytes of a word are compared in about the time that one word takes.
const WORD_BYTES: usize = 32;

/// What is not covered.
pub(super) struct Missing {
    /// Single permissions, and whole rules where those were too many.
    pub rules: Vec<PolicyRule>,
    /// Whether there is more than was asked for.
    pub more: bool,
}

/// The single permissions among `wanted` that no rule in `held` covers. Of rules that come to more permissions than can be
/// looked at, what no rule covers whole is not covered.
pub fn uncovered(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    missing(&held.iter().collect::<Vec<_>>(), wanted, usize::MAX).rules
}

/// The same, but no more of them than so many.
pub(super) fn missing(held: &[&PolicyRule], wanted: &[PolicyRule], most: usize) -> Missing {
    let work = Work { left: Cell::new(MAX_WORDS_COMPARED) };
    let mut rules = Vec::new();
    for rule in wanted {
        if held.iter().any(|own| work.covers(own, rule)) {
            continue;
        }
        let before = rules.len();
        let few = permissions_in(rule) <= MAX_PERMISSIONS;
        if few {
            work.break_down(held, rule, most, &mut rules);
        }
        if !few || work.is_spent() {
            rules.truncate(before);
            rules.push(rule.clone());
        }
        if rules.len() > most {
            rules.truncate(most);
            return Missing { rules, more: true };
        }
    }
    Missing { rules, more: false }
}

/// How many single permissions a rule gives.
fn permissions_in(rule: &PolicyRule) -> usize {
    let things = [rule.api_groups.len(), rule.resources.len(), rule.resource_names.len().max(1)];
    let things = things.into_iter().fold(1usize, usize::saturating_mul);
    things.saturating_add(rule.non_resource_urls.len()).saturating_mul(rule.verbs.len())
}

/// The work of one check. When it is spent, nothing is covered any more.
struct Work {
    left: Cell<usize>,
}

impl Work {
    fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    /// Whether there is enough left to compare a word with so many others.
    fn spend(&self, words: usize, word: &str) -> bool {
        let cost = words.saturating_mul(1 + word.len() / WORD_BYTES).saturating_add(1);
        let left = self.left.get();
        self.left.set(left.saturating_sub(cost));
        left > cost
    }

    /// Whether a list holds everything, or the text.
    fn has(&self, list: &[String], text: &str) -> bool {
        self.spend(list.len(), text) && (has(list, "*") || has(list, text))
    }

    fn has_resource(&self, held: &[String], wanted: &str) -> bool {
        let of_everything = wanted.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
        self.has(held, wanted) || of_everything.is_some_and(|pattern| self.has(held, &pattern))
    }

    fn has_path(&self, rule: &PolicyRule, path: &str) -> bool {
        self.spend(rule.non_resource_urls.len(), path)
            && rule.non_resource_urls.iter().any(|own| path_covers(own, path))
    }

    fn has_name(&self, rule: &PolicyRule, name: &str) -> bool {
        rule.resource_names.is_empty() || self.spend(rule.resource_names.len(), name) && rule.has_name(name)
    }

    /// Whether one rule allows all that another allows.
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

    /// Finds the single permissions of a rule that nothing covers. Rules that are about something else are left out early.
    fn break_down(&self, held: &[&PolicyRule], rule: &PolicyRule, most: usize, found: &mut Vec<PolicyRule>) {
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
                    self.names_missing(&of_verb, rule, &thing, most, found);
                    if self.is_spent() || found.len() > most {
                        return;
                    }
                }
            }
        }
        for path in &rule.non_resource_urls {
            let on_path = narrowed(held, |own| self.has_path(own, path));
            let verbs = rule.verbs.iter().filter(|verb| !on_path.iter().any(|own| self.has(&own.verbs, verb)));
            found.extend(verbs.take(most.saturating_add(1)).map(|verb| PolicyRule {
                verbs: vec![verb.clone()],
                non_resource_urls: vec![path.clone()],
                ..PolicyRule::default()
            }));
            if self.is_spent() || found.len() > most {
                return;
            }
        }
    }

    /// Finds the names in a rule for which none of the rules, which allow the rest, allows a thing.
    fn names_missing(
        &self,
        held: &[&PolicyRule],
        rule: &PolicyRule,
        thing: &PolicyRule,
        most: usize,
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
            if !self.spend(0, "") || found.len() > most {
                return;
            }
        }
    }
}

fn narrowed<'a>(rules: &[&'a PolicyRule], fits: impl Fn(&PolicyRule) -> bool) -> Vec<&'a PolicyRule> {
    rules.iter().copied().filter(|rule| fits(rule)).collect()
}

/// Joins single permissions on the same thing into one rule with all their verbs, for people to read.
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
    fn the_default_roles_are_compared_to_the_end() {
        let read = |role: &serde_json::Value| -> Vec<PolicyRule> {
            let rules = role["rules"].as_array().into_iter().flatten();
            rules.map(|rule| restow_apimachinery::typed::read(rule).unwrap()).collect()
        };
        let roles: Vec<Vec<PolicyRule>> = crate::bootstrap::bootstrap_objects().iter().map(read).collect();
        // Whoever holds them holds them verb by verb, behind all others.
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
    fn no_more_is_found_than_was_asked_for() {
        let words: Vec<String> = (0..100).map(|number| format!("w{number}")).collect();
        let wanted = [PolicyRule { resources: words.clone(), resource_names: words, ..rule(&["get"], &[""], &[]) }];
        let found = missing(&[], &wanted, 10);
        assert_eq!((found.rules.len(), found.more), (10, true));
        assert_eq!(uncovered(&[], &wanted).len(), 10_000);
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
