//! Which requests match the rules of a webhook or policy.

use crate::resource::{Resource, Scope};
use restow_api::GroupVersion;
use serde::Deserialize;

/// What a request does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Creates it.
    Create,
    /// Updates it.
    Update,
    /// Deletes it.
    Delete,
}

impl Operation {
    /// The operation's name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
        }
    }

    /// The kind of the options that such a request takes.
    pub(crate) fn options_kind(self) -> &'static str {
        match self {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => "DeleteOptions",
        }
    }
}

/// The operation, resource and name of a request, which rules match.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionSubject<'a> {
    pub(crate) operation: Operation,
    pub(crate) resource: &'a Resource,
    pub(crate) version: &'a GroupVersion,
    pub(crate) subresource: &'a str,
    pub(crate) name: &'a str,
}

impl<'a> AdmissionSubject<'a> {
    /// The version and kind of the written object, if a subresource has a kind of its own, such as Scale.
    pub(crate) fn foreign_kind(&self) -> Option<(&'a GroupVersion, &'a str)> {
        self.resource.foreign_kind(self.subresource, self.version)
    }
}

/// Whether a rule matches equivalent versions of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum MatchPolicy {
    /// Only the named versions.
    Exact,
    /// All versions; the object is converted.
    #[default]
    #[serde(other)]
    Equivalent,
}

/// Which resources a rule matches, by their scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum ScopeType {
    Cluster,
    Namespaced,
    /// `*`.
    #[default]
    #[serde(other)]
    All,
}

/// A rule: operations on resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rule {
    operations: Vec<String>,
    api_groups: Vec<String>,
    api_versions: Vec<String>,
    resources: Vec<String>,
    scope: ScopeType,
    /// Empty for all. Policies have them, webhooks do not.
    resource_names: Vec<String>,
}

impl Rule {
    /// Whether the rule matches this request in this version.
    fn matches(&self, subject: &AdmissionSubject<'_>, version: &GroupVersion) -> bool {
        one_of(&self.operations, subject.operation.as_str())
            && one_of(&self.api_groups, version.group())
            && one_of(&self.api_versions, version.version())
            && self.matches_resource(subject)
            && self.matches_scope(subject)
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|name| name == subject.name))
    }

    fn matches_resource(&self, subject: &AdmissionSubject<'_>) -> bool {
        let plural = subject.resource.group_resource.resource();
        self.resources.iter().any(|wanted| {
            let (resource, subresource) = wanted.split_once('/').unwrap_or((wanted, ""));
            (resource == "*" || resource == plural) && (subresource == "*" || subresource == subject.subresource)
        })
    }

    fn matches_scope(&self, subject: &AdmissionSubject<'_>) -> bool {
        match self.scope {
            ScopeType::Namespaced => subject.resource.scope == Scope::Namespaced,
            ScopeType::Cluster => subject.resource.scope == Scope::Cluster,
            ScopeType::All => true,
        }
    }
}

/// The version of the object for a webhook or policy: the one of the request if a rule matches it, else an equivalent one.
/// `None` if no rule matches.
pub(crate) fn matching_version<'a>(
    rules: &[Rule],
    policy: MatchPolicy,
    subject: &AdmissionSubject<'a>,
) -> Option<&'a GroupVersion> {
    let matches = |version: &GroupVersion| rules.iter().any(|rule| rule.matches(subject, version));
    if matches(subject.version) {
        return Some(subject.version);
    }
    match policy {
        MatchPolicy::Exact => None,
        MatchPolicy::Equivalent => subject.resource.equivalents().iter().find(|version| matches(version)),
    }
}

fn one_of(wanted: &[String], found: &str) -> bool {
    wanted.iter().any(|wanted| wanted == "*" || wanted == found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::{self, RuntimeConfig};
    use crate::release::Release;
    use restow_apimachinery::typed;
    use serde_json::{Value, json};

    fn check(rule: Value, policy: MatchPolicy, plural: &str, version: &str, subresource: &str, expected: Option<&str>) {
        let resources = builtin::resources(Release::NEWEST, &RuntimeConfig::default());
        let resource = resources.iter().find(|resource| resource.group_resource.resource() == plural).unwrap();
        let version = resource.served.iter().find(|served| served.version() == version).unwrap();
        let rules = [typed::read(&rule).unwrap()];
        let subject = AdmissionSubject { operation: Operation::Create, resource, version, subresource, name: "a" };
        let found = matching_version(&rules, policy, &subject).map(GroupVersion::version);
        assert_eq!(found, expected, "{rule} {plural} {subresource}");
    }

    #[test]
    fn rules_name_operations_groups_versions_resources_and_scopes() {
        let rule = |operations: &[&str], group: &str, version: &str, resource: &str, scope: &str| json!({"operations": operations, "apiGroups": [group], "apiVersions": [version], "resources": [resource], "scope": scope});
        use MatchPolicy::{Equivalent, Exact};
        check(rule(&["CREATE"], "", "v1", "pods", "*"), Exact, "pods", "v1", "", Some("v1"));
        check(rule(&["*"], "*", "*", "*", "*"), Exact, "pods", "v1", "", Some("v1"));
        check(rule(&["*"], "*", "*", "*", "*"), Exact, "pods", "v1", "status", None);
        check(rule(&["*"], "*", "*", "*/*", "*"), Exact, "pods", "v1", "status", Some("v1"));
        check(rule(&["*"], "", "v1", "pods/status", "*"), Exact, "pods", "v1", "status", Some("v1"));
        check(rule(&["UPDATE", "DELETE"], "", "v1", "pods", "*"), Exact, "pods", "v1", "", None);
        check(rule(&["CREATE"], "apps", "v1", "pods", "*"), Exact, "pods", "v1", "", None);
        check(rule(&["CREATE"], "", "v1", "pods", "Cluster"), Exact, "pods", "v1", "", None);
        check(rule(&["CREATE"], "", "v1", "pods", "Namespaced"), Exact, "pods", "v1", "", Some("v1"));
        let old = rule(&["CREATE"], "autoscaling", "v1", "horizontalpodautoscalers", "*");
        check(old.clone(), Exact, "horizontalpodautoscalers", "v2", "", None);
        check(old, Equivalent, "horizontalpodautoscalers", "v2", "", Some("v1"));
    }
}
