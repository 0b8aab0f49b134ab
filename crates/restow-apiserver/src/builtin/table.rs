//! The rows of `resources.txt`, with names checked and versions looked up by release.

use crate::release::Release;
use crate::resource::{Subresource, SubresourceKind, Verb};
use restow_api::{GroupResource, GroupVersion};
use restow_tables::checked;
use restow_tables::resources::{self, Scope, StrategyRule, Version};

/// A resource over all releases.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResourceRow {
    pub(crate) group_resource: GroupResource,
    pub(crate) kind: String,
    pub(crate) singular: String,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<Verb>,
    pub(crate) short: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) subresources: Vec<Subresource>,
    pub(crate) fields: Vec<String>,
    pub(crate) rules: Vec<StrategyRule>,
    pub(crate) location: GroupResource,
    pub(crate) decodable: Vec<GroupVersion>,
    pub(crate) history: Vec<ReleaseVersions>,
}

/// The versions of a resource from one release on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReleaseVersions {
    pub(crate) since: Release,
    pub(crate) versions: Vec<GroupVersion>,
    pub(crate) stored: Option<GroupVersion>,
}

impl ResourceRow {
    /// The versions of the resource in a release; `None` if the release does not have it.
    pub(crate) fn at(&self, release: Release) -> Option<&ReleaseVersions> {
        let history = self.history.iter().rev().find(|history| history.since <= release)?;
        (!history.versions.is_empty()).then_some(history)
    }

    /// The versions that a release can decode: those of the newest release without later ones, and those that it serves
    /// and stores itself.
    pub(crate) fn decodable_at(&self, release: Release) -> Vec<GroupVersion> {
        let mut decodable: Vec<GroupVersion> =
            self.decodable.iter().filter(|version| !self.came_after(version, release)).cloned().collect();
        let own = self.history.iter().filter(|history| history.since <= release);
        let own = own.flat_map(|history| history.versions.iter().cloned().chain(history.stored.clone()));
        let mut missing: Vec<GroupVersion> = own.filter(|version| !decodable.contains(version)).collect();
        // Versions that the newest release no longer has come last.
        if release != Release::NEWEST || self.decodable.is_empty() {
            missing.sort_by(GroupVersion::compare_by_priority);
            missing.dedup();
            decodable.extend(missing);
        }
        decodable
    }

    fn came_after(&self, version: &GroupVersion, release: Release) -> bool {
        let knows =
            |history: &&ReleaseVersions| history.versions.contains(version) || history.stored.as_ref() == Some(version);
        self.history.iter().find(knows).is_some_and(|first| first.since > release)
    }
}

/// The whole table. The build script has checked it.
pub(crate) fn rows() -> Vec<ResourceRow> {
    checked(resources::parse(include_str!("resources.txt"))).into_iter().map(row).collect()
}

fn row(resource: resources::Resource<'static>) -> ResourceRow {
    let strings = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    let group_resource = group_resource(resource.group, resource.resource);
    let history = resource.history.iter().map(|history| ReleaseVersions {
        since: checked(format!("1.{}", history.since_minor).parse()),
        versions: history.versions.iter().map(group_version).collect(),
        stored: history.stored.as_ref().map(group_version),
    });
    ResourceRow {
        location: resource
            .shares
            .map_or_else(|| group_resource.clone(), |(group, name)| self::group_resource(group, name)),
        group_resource,
        kind: resource.kind.into(),
        singular: resource.singular.into(),
        namespaced: resource.scope == Scope::Namespaced,
        verbs: resource.verbs.iter().map(verb).collect(),
        short: strings(&resource.short),
        categories: strings(&resource.categories),
        subresources: resource.subresources.iter().map(subresource).collect(),
        fields: strings(&resource.fields),
        rules: resource.rules,
        decodable: resource.decodable.iter().map(group_version).collect(),
        history: history.collect(),
    }
}

fn subresource(sub: &resources::Subresource<'_>) -> Subresource {
    let kind = sub
        .kind
        .map(|kind| SubresourceKind { version: kind.version.as_ref().map(group_version), kind: kind.kind.into() });
    Subresource { name: sub.name.into(), verbs: sub.verbs.iter().map(verb).collect(), kind }
}

fn verb(verb: &resources::Verb) -> Verb {
    match verb {
        resources::Verb::Create => Verb::Create,
        resources::Verb::Delete => Verb::Delete,
        resources::Verb::DeleteCollection => Verb::DeleteCollection,
        resources::Verb::Get => Verb::Get,
        resources::Verb::List => Verb::List,
        resources::Verb::Patch => Verb::Patch,
        resources::Verb::Update => Verb::Update,
        resources::Verb::Watch => Verb::Watch,
    }
}

fn group_resource(group: &str, resource: &str) -> GroupResource {
    checked(GroupResource::new(group, resource))
}

fn group_version(version: &Version<'_>) -> GroupVersion {
    checked(GroupVersion::new(version.group, version.version))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Kubernetes' strategies. Kinds with security settings have no unconditional update.
    #[test]
    fn create_on_update_and_unconditional_update_are_as_in_kubernetes() {
        let rows = rows();
        let having = |rule: StrategyRule| -> Vec<String> {
            let rows = rows.iter().filter(|row| row.rules.contains(&rule));
            rows.map(|row| row.group_resource.to_string()).collect()
        };
        assert_eq!(
            having(StrategyRule::CreateOnUpdate),
            [
                "endpoints",
                "events",
                "limitranges",
                "services",
                "leasecandidates.coordination.k8s.io",
                "leases.coordination.k8s.io",
                "events.events.k8s.io",
                "runtimeclasses.node.k8s.io",
                "clusterrolebindings.rbac.authorization.k8s.io",
                "clusterroles.rbac.authorization.k8s.io",
                "rolebindings.rbac.authorization.k8s.io",
                "roles.rbac.authorization.k8s.io",
            ]
        );
        let unseen = having(StrategyRule::UnconditionalUpdate);
        for group in ["admissionregistration.k8s.io", "coordination.k8s.io", "policy", "apiextensions.k8s.io"] {
            assert!(!unseen.iter().any(|resource| resource.ends_with(&format!(".{group}"))), "{group}");
        }
        assert_eq!(unseen.len(), 50);
    }
}
