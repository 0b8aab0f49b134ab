//! The priorities of local group-versions in discovery: those of kube-apiserver for what is built in, and one value for all
//! custom resources. The numbers decide which of two groups with the same resource clients prefer.

use crate::discovery::aggregation::Priority;
use restow_api::GroupVersion;

/// The priority of the group-versions of custom resources.
pub(super) const CUSTOM: Priority = Priority { group: 1000, version: 100 };

/// A group, its priority, and the priorities of its versions.
type Row = (&'static str, i64, &'static [(&'static str, i64)]);

/// The built-in groups.
const BUILTIN: &[Row] = &[
    ("", 18000, &[("v1", 1)]),
    ("apps", 17800, &[("v1", 15)]),
    ("events.k8s.io", 17750, &[("v1", 15), ("v1beta1", 5)]),
    ("authentication.k8s.io", 17700, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("authorization.k8s.io", 17600, &[("v1", 15)]),
    ("autoscaling", 17500, &[("v2", 30), ("v1", 15), ("v2beta1", 9), ("v2beta2", 1)]),
    ("batch", 17400, &[("v1", 15), ("v1beta1", 9), ("v2alpha1", 9)]),
    ("certificates.k8s.io", 17300, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("networking.k8s.io", 17200, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("policy", 17100, &[("v1", 15), ("v1beta1", 9)]),
    ("rbac.authorization.k8s.io", 17000, &[("v1", 15)]),
    ("storage.k8s.io", 16800, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("apiextensions.k8s.io", 16700, &[("v1", 15)]),
    ("admissionregistration.k8s.io", 16700, &[("v1", 15), ("v1beta1", 12), ("v1alpha1", 9)]),
    ("scheduling.k8s.io", 16600, &[("v1", 15), ("v1beta1", 9), ("v1alpha3", 3), ("v1alpha2", 2), ("v1alpha1", 1)]),
    ("coordination.k8s.io", 16500, &[("v1", 15), ("v1beta1", 13), ("v1alpha2", 12), ("v1alpha1", 12)]),
    ("node.k8s.io", 16300, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("discovery.k8s.io", 16200, &[("v1", 15), ("v1beta1", 12)]),
    ("resource.k8s.io", 16200, &[("v1", 21), ("v1beta2", 15), ("v1beta1", 9), ("v1alpha3", 1), ("v1alpha2", 1)]),
    (
        "flowcontrol.apiserver.k8s.io",
        16100,
        &[("v1", 21), ("v1beta3", 18), ("v1beta2", 15), ("v1beta1", 12), ("v1alpha1", 9)],
    ),
    ("internal.apiserver.k8s.io", 16000, &[("v1alpha1", 9)]),
    // Not in kube-apiserver: elections of storage versions.
    ("kube-apiserver.internal.k8s.io", 15900, &[("v1alpha1", 9)]),
    ("storagemigration.k8s.io", 15800, &[("v1", 15), ("v1beta1", 9), ("v1alpha1", 1)]),
    ("lifecycle.k8s.io", 15700, &[("v1alpha1", 1)]),
];

/// The priority of a built-in group-version; `None` for one that kube-apiserver does not know.
pub(super) fn builtin(version: &GroupVersion) -> Option<Priority> {
    let (_, group, versions) = BUILTIN.iter().find(|(name, _, _)| *name == version.group())?;
    let (_, version) = versions.iter().find(|(name, _)| *name == version.version())?;
    Some(Priority { group: *group, version: *version })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::{self, RuntimeConfig};
    use crate::release::Release;
    use crate::resource::registry::Registry;

    #[test]
    fn every_built_in_group_version_of_every_release_has_a_priority() {
        let everything: RuntimeConfig = "api/all=true".parse().unwrap();
        let mut missing = Vec::new();
        for minor in 28..=Release::NEWEST.minor() {
            let release: Release = format!("1.{minor}").parse().unwrap();
            let registry = Registry::new(builtin::resources(release, &everything));
            for (group, found) in registry.groups() {
                for version in &found.versions {
                    let version = GroupVersion::new(group, version).unwrap();
                    if super::builtin(&version).is_none() && group != "apiregistration.k8s.io" {
                        missing.push(format!("{release} {version}"));
                    }
                }
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn no_two_versions_of_a_group_are_listed_twice() {
        let mut names: Vec<&str> = BUILTIN.iter().map(|(name, _, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), BUILTIN.len());
    }
}
