//! Aggregated ClusterRoles: their rules are those of all ClusterRoles that their selectors match. This module computes
//! the rules; the server writes them into the aggregate. Rules that are not written yet allow nothing.

use crate::rbac::objects::RoleObject;
use crate::rbac::{PolicyRule, Rules};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Rules {
    /// The rules that the ClusterRole should have. `None` if it does not exist or is not an aggregate; an error if one of
    /// its selectors is invalid.
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

    /// The aggregates that are out of date, each with the rules to write. Aggregates of aggregates are resolved, so writing
    /// the result once is enough.
    pub fn stale_aggregates(&self) -> BTreeMap<String, Vec<PolicyRule>> {
        let mut resolved = self.clone();
        let mut stale = BTreeMap::new();
        let mut names: Vec<&String> = self.cluster_roles.keys().collect();
        names.sort();
        names.retain(|name| self.cluster_roles[*name].aggregation_rule.is_some());
        // Each round resolves at least one aggregate. The limit ends the loop for aggregates that select each other.
        for _ in 0..=names.len() {
            let mut changed = false;
            for name in &names {
                let Some(Ok(wanted)) = resolved.aggregated_rules(name) else { continue };
                changed |= resolved.replace_rules(name, &wanted);
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

    /// Replaces the rules of the ClusterRole. Returns whether they changed.
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
