//! One rule of a role: verbs, and the resources or paths that they are allowed on.

use crate::json::{WrongType, texts};
use restow_apimachinery::go_syntax::quote_all;
use serde_json::{Map, Value, json};

/// What one rule allows. `*` in a list stands for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyRule {
    /// The verbs.
    pub verbs: Vec<String>,
    /// The API groups.
    pub api_groups: Vec<String>,
    /// The resources: `pods`, `pods/log`, `*/scale`.
    pub resources: Vec<String>,
    /// The objects' names; all when empty.
    pub resource_names: Vec<String>,
    /// Paths that are not resources; a trailing `*` stands for any ending.
    pub non_resource_urls: Vec<String>,
}

impl PolicyRule {
    /// Reads a rule from an object.
    pub fn read(value: &Value) -> Result<Self, WrongType> {
        Ok(PolicyRule {
            verbs: texts(value, "verbs")?,
            api_groups: texts(value, "apiGroups")?,
            resources: texts(value, "resources")?,
            resource_names: texts(value, "resourceNames")?,
            non_resource_urls: texts(value, "nonResourceURLs")?,
        })
    }

    /// The rule as the API writes it.
    pub fn to_value(&self) -> Value {
        let mut object = Map::new();
        object.insert("verbs".into(), json!(self.verbs));
        let optional = [
            ("apiGroups", &self.api_groups),
            ("resources", &self.resources),
            ("resourceNames", &self.resource_names),
            ("nonResourceURLs", &self.non_resource_urls),
        ];
        for (field, list) in optional {
            if !list.is_empty() {
                object.insert(field.into(), json!(list));
            }
        }
        Value::Object(object)
    }

    /// Whether the rule allows the verb on something.
    pub fn has_verb(&self, verb: &str) -> bool {
        has(&self.verbs, "*") || has(&self.verbs, verb)
    }

    /// Whether the rule is about the API group.
    pub fn has_group(&self, group: &str) -> bool {
        has(&self.api_groups, "*") || has(&self.api_groups, group)
    }

    /// Whether the rule is about objects of that name, given that the rest fits.
    pub fn has_name(&self, name: &str) -> bool {
        self.resource_names.is_empty() || has(&self.resource_names, name)
    }

    /// Whether the rule is about the path.
    pub fn has_path(&self, path: &str) -> bool {
        self.non_resource_urls.iter().any(|pattern| path_covers(pattern, path))
    }

    /// The rule on one line, as messages about escalation show it.
    pub fn describe(&self) -> String {
        let lists = [
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.non_resource_urls),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ];
        let shown = lists.iter().filter(|(_, list)| !list.is_empty());
        let parts: Vec<String> = shown.map(|(name, list)| format!("{name}:{}", quote_all(list))).collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// Whether the list holds the text.
pub(super) fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|item| item == text)
}

/// Whether the pattern, which may end in `*`, stands for the path (or for the narrower pattern).
pub(super) fn path_covers(pattern: &str, path: &str) -> bool {
    pattern == path || (pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*')))
}
