//! Aggregated ClusterRoles: their rules are those of all ClusterRoles that their selectors choose. The rules are written
//! into the aggregate, where everyone can see them; until then they allow nothing. This module computes what to write.

use crate::rbac::objects::RoleObject;
use crate::rbac::{PolicyRule, Rules};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Rules {
    /// The rules that the ClusterRole should have, given the labels of the others: none when it does not exist or is
    /// no aggregate, an error when one of its selectors is invalid.
    pub fn aggregated_rules(&self, name: &str) -> Option<Result<Vec<PolicyRule>, String>> {
        let aggregate = self.cluster_roles.get(name)?.aggregation_rule.as_ref()?;
        let others: BTreeMap<&String, &Arc<RoleObject>> =
            self.cluster_roles.iter().filter(|(other, _)| *other != name).collect();
        let mut gathered: Vec<PolicyRule> = Vec::new();
        for selector in &aggregate.cluster_role_selectors {
            for role in others.values() {
                match selector.matches(&role.metadata.labels) {
                    Ok(true) => add_missing(&mut gathered, role.rules.as_slice()),
                    Ok(false) => {}
                    Err(problem) => return Some(Err(problem)),
                }
            }
        }
        Some(Ok(gathered))
    }

    /// The aggregates that are out of date, each with the rules to write. Aggregates of aggregates are followed
    /// through, so that writing these once is enough.
    pub fn stale_aggregates(&self) -> BTreeMap<String, Vec<PolicyRule>> {
        let mut settled = self.clone();
        let mut stale = BTreeMap::new();
        let mut names: Vec<&String> = self.cluster_roles.keys().collect();
        names.sort();
        names.retain(|name| self.cluster_roles[*name].aggregation_rule.is_some());
        // Each round settles at least one aggregate; those that gather each other in a circle need an end.
        for _ in 0..=names.len() {
            let mut changed = false;
            for name in &names {
                let Some(Ok(wanted)) = settled.aggregated_rules(name) else { continue };
                changed |= settled.replace_rules(name, &wanted);
                if self.cluster_roles[*name].rules.as_slice() == wanted {
                    stale.remove(*name);
                } else {
                    stale.insert((*name).clone(), wanted);
                }
            }
            if !changed {
                break;
            }
        }
        stale
    }

    /// Gives the ClusterRole other rules; says whether they differ.
    fn replace_rules(&mut self, name: &str, rules: &[PolicyRule]) -> bool {
        let Some(role) = self.cluster_roles.get_mut(name) else { return false };
        if role.rules.as_slice() == rules {
            return false;
        }
        let changed = RoleObject { rules: rules.to_vec().into(), ..role.as_ref().clone() };
        *role = Arc::new(changed);
        true
    }
}

fn add_missing(gathered: &mut Vec<PolicyRule>, rules: &[PolicyRule]) {
    for rule in rules {
        if !gathered.contains(rule) {
            gathered.push(rule.clone());
        }
    }
}
