//! The resources that a server serves at one time.

use crate::resource::Resource;
use restow_api::{GroupVersion, compare_versions};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The resources of a server. A registry is immutable; a change creates a new one.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    groups: BTreeMap<String, Group>,
    by_version: HashMap<GroupVersion, BTreeMap<String, Arc<Resource>>>,
    resources: Vec<Arc<Resource>>,
}

/// A group and its served versions, the preferred one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The versions.
    pub versions: Vec<String>,
}

impl Registry {
    /// A registry of these resources.
    pub fn new<R: Into<Arc<Resource>>>(resources: impl IntoIterator<Item = R>) -> Self {
        let mut registry = Registry::default();
        for resource in resources {
            let resource: Arc<Resource> = resource.into();
            for version in &resource.served {
                let group = registry.groups.entry(version.group().to_string()).or_default();
                if !group.versions.iter().any(|known| known == version.version()) {
                    group.versions.push(version.version().to_string());
                    group.versions.sort_by(|one, other| compare_versions(one, other));
                }
                let table = registry.by_version.entry(version.clone()).or_default();
                table.insert(resource.group_resource.resource().to_string(), resource.clone());
            }
            // A custom resource occurs once for each version; all share one storage.
            if registry.resources.last().is_none_or(|last| last.group_resource != resource.group_resource) {
                registry.resources.push(resource);
            }
        }
        registry
    }

    /// The resource of this plural name in this version.
    pub fn find(&self, version: &GroupVersion, plural: &str) -> Option<&Arc<Resource>> {
        self.by_version.get(version)?.get(plural)
    }

    /// The resources served in this version, by name; `None` when nothing is.
    pub fn in_version(&self, version: &GroupVersion) -> Option<&BTreeMap<String, Arc<Resource>>> {
        self.by_version.get(version)
    }

    /// The groups by name. The core group's name is empty.
    pub fn groups(&self) -> &BTreeMap<String, Group> {
        &self.groups
    }

    /// Every resource once.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }
}
