//! `kube-apiserver.internal.k8s.io/v1alpha1`: the storage version that API servers vote on.
//!
//! This StorageVersion has the same kind as the one in [`crate::internal_apiserver`] and another purpose: there each
//! server reports the version that it stores, here all servers store the selected version.

use crate::{GroupResource, ObjectMeta};
use serde::{Deserialize, Serialize};

/// The selected storage version of one resource, and the vote of each server. Cluster-scoped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersion {
    /// Always [`StorageVersion::API_VERSION`].
    pub api_version: String,
    /// Always [`StorageVersion::KIND`].
    pub kind: String,
    /// The name is that of [`StorageVersion::name_for`].
    pub metadata: ObjectMeta,
    /// The version in which every server stores this resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selected_version: String,
    /// One vote for each server, no server twice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidate_versions: Vec<VersionCandidate>,
}

/// One server's vote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VersionCandidate {
    /// The voting server.
    #[serde(rename = "apiServerID", skip_serializing_if = "String::is_empty")]
    pub api_server_id: String,
    /// The version that its release prefers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub preferred_version: String,
}

impl StorageVersion {
    /// The group, in a name.
    pub const GROUP: &'static str = "kube-apiserver.internal.k8s.io";
    /// The `apiVersion` of these objects.
    pub const API_VERSION: &'static str = "kube-apiserver.internal.k8s.io/v1alpha1";
    /// The `kind` of these objects.
    pub const KIND: &'static str = "StorageVersion";
    /// The plural name in request paths.
    pub const RESOURCE: &'static str = "storageversions";

    /// The name of the object about this resource: "core.pods", "apps.deployments".
    ///
    /// The proposal put a version into the name as well. That cannot work: the servers of a rolling upgrade must meet
    /// in one object, and two releases of which one serves only v1 and the other only v2 have no version in common.
    pub fn name_for(resource: &GroupResource) -> String {
        crate::internal_apiserver::StorageVersion::name_for(resource)
    }

    /// A new object about this resource, without any vote.
    pub fn new(resource: &GroupResource) -> Self {
        StorageVersion { metadata: ObjectMeta::named(Self::name_for(resource)), ..StorageVersion::default() }
    }
}

impl Default for StorageVersion {
    fn default() -> Self {
        StorageVersion {
            api_version: Self::API_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata: ObjectMeta::default(),
            selected_version: String::new(),
            candidate_versions: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_named_in_camel_case() {
        let wire = json!({
            "apiVersion": "kube-apiserver.internal.k8s.io/v1alpha1",
            "kind": "StorageVersion",
            "metadata": {"name": "apps.deployments"},
            "selectedVersion": "apps/v1",
            "candidateVersions": [{"apiServerID": "apiserver-a", "preferredVersion": "apps/v2"}],
        });
        let read: StorageVersion = serde_json::from_value(wire.clone()).unwrap();
        assert_eq!(read.metadata.name, StorageVersion::name_for(&"deployments.apps".parse().unwrap()));
        assert_eq!(serde_json::to_value(&read).unwrap(), wire);
    }
}
