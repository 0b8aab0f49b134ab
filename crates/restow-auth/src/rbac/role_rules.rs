//! The rules of one role, indexed by resource: evaluating a large role costs no more than a small one.

use crate::rbac::policy_rule::PolicyRule;
use crate::{Attributes, ResourceAttributes};
use serde::Deserialize;
use std::collections::HashMap;

/// The rules of one role.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Vec<PolicyRule>")]
pub struct RoleRules {
    rules: Vec<PolicyRule>,
    /// For each entry of `resources`, the indexes of the rules that have it.
    by_resource: HashMap<String, Vec<usize>>,
    /// The indexes of the rules with nonResourceURLs.
    with_paths: Vec<usize>,
}

/// The attributes of a request, with the keys to look up rules.
#[derive(Debug)]
pub enum RuleLookup<'a> {
    Resource {
        attributes: &'a ResourceAttributes,
        /// The resource with its subresource: `pods/log`.
        combined: String,
        /// The entry that matches this subresource of all resources: `*/log`.
        any_resource: Option<String>,
    },
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

impl<'a> RuleLookup<'a> {
    pub fn new(attributes: &'a Attributes) -> Self {
        match attributes {
            Attributes::Path { verb, path } => RuleLookup::Path { verb, path },
            Attributes::Resource(attributes) => RuleLookup::Resource {
                attributes,
                combined: attributes.combined_resource(),
                any_resource: (!attributes.subresource.is_empty()).then(|| format!("*/{}", attributes.subresource)),
            },
        }
    }
}

impl From<Vec<PolicyRule>> for RoleRules {
    fn from(rules: Vec<PolicyRule>) -> Self {
        let mut by_resource: HashMap<String, Vec<usize>> = HashMap::new();
        let mut with_paths = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            for resource in &rule.resources {
                by_resource.entry(resource.clone()).or_default().push(index);
            }
            if !rule.non_resource_urls.is_empty() {
                with_paths.push(index);
            }
        }
        RoleRules { rules, by_resource, with_paths }
    }
}

impl RoleRules {
    pub fn as_slice(&self) -> &[PolicyRule] {
        &self.rules
    }

    /// Whether a rule allows the request.
    pub fn allow(&self, lookup: &RuleLookup<'_>) -> bool {
        match lookup {
            RuleLookup::Path { verb, path } => self
                .with_paths
                .iter()
                .map(|&index| &self.rules[index])
                .any(|rule| rule.has_verb(verb) && rule.has_path(path)),
            RuleLookup::Resource { attributes, combined, any_resource } => {
                let texts = [Some("*"), Some(combined.as_str()), any_resource.as_deref()];
                texts.into_iter().flatten().any(|text| self.rules_on(text).any(|rule| allows(rule, attributes)))
            }
        }
    }

    fn rules_on(&self, text: &str) -> impl Iterator<Item = &PolicyRule> {
        self.by_resource.get(text).into_iter().flatten().map(|&index| &self.rules[index])
    }
}

/// Whether the rule allows the request, given that its resources match.
fn allows(rule: &PolicyRule, attributes: &ResourceAttributes) -> bool {
    rule.has_verb(&attributes.verb) && rule.has_group(&attributes.group) && rule.has_name(&attributes.name)
}
