//! The rules of one role, arranged by resource, so that a large role costs no more to ask than a small one.

use crate::rbac::policy_rule::PolicyRule;
use crate::{Attributes, ResourceAttributes};
use serde::Deserialize;
use std::collections::HashMap;

/// The rules of one role.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Vec<PolicyRule>")]
pub struct RoleRules {
    rules: Vec<PolicyRule>,
    /// For each text in a rule's resources, the rules that hold it.
    by_resource: HashMap<String, Vec<usize>>,
    /// The rules about paths.
    with_paths: Vec<usize>,
}

/// A request, with the texts that rules are looked up by.
#[derive(Debug)]
pub enum Question<'a> {
    Resource {
        asked: &'a ResourceAttributes,
        /// The resource, with the subresource: `pods/log`.
        combined: String,
        /// What stands for this subresource of everything: `*/log`.
        of_everything: Option<String>,
    },
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

impl<'a> Question<'a> {
    pub fn new(attributes: &'a Attributes) -> Self {
        match attributes {
            Attributes::Path { verb, path } => Question::Path { verb, path },
            Attributes::Resource(asked) => Question::Resource {
                asked,
                combined: asked.combined_resource(),
                of_everything: (!asked.subresource.is_empty()).then(|| format!("*/{}", asked.subresource)),
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

    /// Whether any rule allows what is asked.
    pub fn allow(&self, question: &Question<'_>) -> bool {
        match question {
            Question::Path { verb, path } => self
                .with_paths
                .iter()
                .map(|&index| &self.rules[index])
                .any(|rule| rule.has_verb(verb) && rule.has_path(path)),
            Question::Resource { asked, combined, of_everything } => {
                let texts = [Some("*"), Some(combined.as_str()), of_everything.as_deref()];
                texts.into_iter().flatten().any(|text| self.rules_on(text).any(|rule| allows(rule, asked)))
            }
        }
    }

    fn rules_on(&self, text: &str) -> impl Iterator<Item = &PolicyRule> {
        self.by_resource.get(text).into_iter().flatten().map(|&index| &self.rules[index])
    }
}

/// Whether the rule, whose resources fit, allows the rest of what is asked.
fn allows(rule: &PolicyRule, asked: &ResourceAttributes) -> bool {
    rule.has_verb(&asked.verb) && rule.has_group(&asked.group) && rule.has_name(&asked.name)
}
