//! One rule of a role: verbs, and the resources or paths that they are allowed on.

use restow_apimachinery::go_syntax::quote_all;
use serde::{Deserialize, Serialize};

/// One rule. `*` in a list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    /// The verbs.
    pub verbs: Vec<String>,
    /// The API groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    /// The resources: `pods`, `pods/log`, `*/scale`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// The names of objects; empty for all names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    /// The nonResourceURLs; a trailing `*` matches any suffix.
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
}

impl PolicyRule {
    /// Whether the rule has the verb.
    pub fn has_verb(&self, verb: &str) -> bool {
        has(&self.verbs, "*") || has(&self.verbs, verb)
    }

    /// Whether the rule has the API group.
    pub fn has_group(&self, group: &str) -> bool {
        has(&self.api_groups, "*") || has(&self.api_groups, group)
    }

    /// Whether the rule has the object name.
    pub fn has_name(&self, name: &str) -> bool {
        self.resource_names.is_empty() || has(&self.resource_names, name)
    }

    /// Whether a nonResourceURL of the rule matches the path.
    pub fn has_path(&self, path: &str) -> bool {
        self.non_resource_urls.iter().any(|pattern| path_covers(pattern, path))
    }

    /// The rule on one line, in the form of Kubernetes' escalation messages.
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

/// Whether the list has the string.
pub(super) fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|item| item == text)
}

/// Whether the pattern, which may end in `*`, matches the path or covers the narrower pattern.
pub(super) fn path_covers(pattern: &str, path: &str) -> bool {
    pattern == path || (pattern.ends_with('*') && path.starts_with(pattern.trim_end_matches('*')))
}
