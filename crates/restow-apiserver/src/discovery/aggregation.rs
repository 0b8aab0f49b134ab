//! What discovery shows beside the resources of this server: the group-versions of the servers behind it, and the order of all.

use crate::discovery::discovered_resource::DiscoveredResource;
use crate::resource::registry::Registry;
use restow_api::{GroupVersion, compare_versions};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

/// The group that is always the first one.
const FIRST: &str = "apiregistration.k8s.io";

/// The position of a group-version. Higher is earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Priority {
    /// `groupPriorityMinimum`: the least position of the group; the group takes the highest of its versions.
    pub(crate) group: i64,
    /// `versionPriority`: the position of the version in its group.
    pub(crate) version: i64,
}

/// The group-versions of other servers, and the priorities of all group-versions. The default shows only this server's own
/// groups, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Aggregation {
    /// The priorities; empty where nothing is aggregated.
    pub(crate) priorities: BTreeMap<GroupVersion, Priority>,
    /// The group-versions that other servers serve.
    pub(crate) versions: BTreeMap<GroupVersion, AggregatedVersion>,
}

/// A group-version that another server serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AggregatedVersion {
    /// Its resources, as aggregated discovery shows them.
    pub(crate) resources: Vec<DiscoveredResource>,
    /// Whether they are what the server shows now.
    pub(crate) freshness: Freshness,
    /// The URL of its OpenAPI document on that server.
    pub(crate) openapi: Option<String>,
}

/// What is known of a requested resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownResource {
    /// The resource is known, and no known subresource is requested.
    Resource,
    /// The subresource is known, too.
    Subresource,
}

/// Whether a document of discovery is what its server shows now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// It was fetched successfully.
    Current,
    /// The last attempt to fetch it failed.
    #[default]
    Stale,
}

/// Which name decides between groups of the same priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TieBreak {
    /// That of the group.
    Group,
    /// That of the APIService, `VERSION.GROUP`.
    ApiService,
}

/// A group and its versions, the preferred one first.
pub(crate) type OrderedGroup = (String, Vec<String>);

impl Freshness {
    /// As it is shown.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Freshness::Current => "Current",
            Freshness::Stale => "Stale",
        }
    }
}

impl AggregatedVersion {
    /// Whether the server is known to serve a resource, and its subresource.
    pub(crate) fn knows(&self, resource: &str, subresource: &str) -> Option<KnownResource> {
        let found = self.resources.iter().find(|known| known.resource == resource)?;
        match found.subresources.iter().any(|known| known.subresource == subresource) {
            true => Some(KnownResource::Subresource),
            false => Some(KnownResource::Resource),
        }
    }
}

impl Aggregation {
    fn priority(&self, version: &GroupVersion) -> Priority {
        self.priorities.get(version).copied().unwrap_or_default()
    }

    /// All groups with their versions, in their order. The core group is among them.
    pub(crate) fn ordered_groups(&self, registry: &Registry, tie_break: TieBreak) -> Vec<OrderedGroup> {
        let own = registry.groups().keys().map(String::as_str);
        let groups: BTreeSet<&str> = own.chain(self.versions.keys().map(GroupVersion::group)).collect();
        let mut ordered: Vec<OrderedGroup> =
            groups.into_iter().map(|group| (group.to_owned(), self.versions_of(registry, group))).collect();
        if !self.priorities.is_empty() {
            ordered.sort_by_cached_key(|group| self.position(group, tie_break));
        }
        ordered
    }

    /// The versions of a group in their order; none if nobody serves it.
    pub(crate) fn versions_of(&self, registry: &Registry, group: &str) -> Vec<String> {
        let own = registry.groups().get(group).into_iter().flat_map(|found| &found.versions);
        let own = own.filter_map(|version| GroupVersion::new(group, version).ok());
        let others = self.versions.keys().filter(|version| version.group() == group).cloned();
        let versions: BTreeSet<GroupVersion> = own.chain(others).collect();
        let mut versions: Vec<GroupVersion> = versions.into_iter().collect();
        let order = |one: &GroupVersion, other: &GroupVersion| -> Ordering {
            let by_priority = self.priority(other).version.cmp(&self.priority(one).version);
            by_priority.then_with(|| compare_versions(one.version(), other.version()))
        };
        versions.sort_by(order);
        versions.iter().map(|version| version.version().to_string()).collect()
    }

    fn position(&self, (group, versions): &OrderedGroup, tie_break: TieBreak) -> (bool, Reverse<i64>, String) {
        let of = |version: &String| {
            let priority = GroupVersion::new(group, version).map(|version| self.priority(&version).group);
            (Reverse(priority.unwrap_or_default()), format!("{version}.{group}"))
        };
        let (priority, api_service) = versions.iter().map(of).min().unwrap_or_default();
        let name = match tie_break {
            TieBreak::Group => group.clone(),
            TieBreak::ApiService => api_service,
        };
        (group != FIRST, priority, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aggregation(rows: &[(&str, i64, i64)]) -> Aggregation {
        let mut aggregation = Aggregation::default();
        for (version, group, priority) in rows {
            let version: GroupVersion = version.parse().unwrap();
            aggregation.priorities.insert(version.clone(), Priority { group: *group, version: *priority });
            aggregation.versions.insert(version, AggregatedVersion::default());
        }
        aggregation
    }

    fn order(aggregation: &Aggregation, tie_break: TieBreak) -> String {
        let groups = aggregation.ordered_groups(&Registry::default(), tie_break);
        let groups: Vec<String> =
            groups.iter().map(|(name, versions)| format!("{name}:{}", versions.join(","))).collect();
        groups.join(" ")
    }

    #[test]
    fn groups_and_versions_are_ordered_by_priority() {
        let found = aggregation(&[
            ("a.example/v1", 10, 5),
            ("a.example/v2beta1", 2000, 5),
            ("a.example/v3", 10, 20),
            ("b.example/v1", 1000, 1),
            ("apiregistration.k8s.io/v1", 1, 1),
        ]);
        let expected = "apiregistration.k8s.io:v1 a.example:v3,v1,v2beta1 b.example:v1";
        assert_eq!(order(&found, TieBreak::Group), expected);
        assert_eq!(order(&found, TieBreak::ApiService), expected);
    }

    #[test]
    fn names_decide_between_groups_of_the_same_priority() {
        let found = aggregation(&[("a.example/v2", 1000, 100), ("b.example/v1", 1000, 100)]);
        assert_eq!(order(&found, TieBreak::Group), "a.example:v2 b.example:v1");
        assert_eq!(order(&found, TieBreak::ApiService), "b.example:v1 a.example:v2");
    }
}
