//! The StorageVersion object, with the fields of client-go's types.

use crate::object_meta::is_zero;
use crate::{GroupResource, ListMeta, ObjectMeta, Time};
use serde::{Deserialize, Serialize};

/// The versions in which the API servers of a cluster store one resource. Cluster-scoped; the status is a subresource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersion {
    /// Always [`StorageVersion::API_VERSION`].
    pub api_version: String,
    /// Always [`StorageVersion::KIND`].
    pub kind: String,
    /// The name is that of [`StorageVersion::name_for`].
    pub metadata: ObjectMeta,
    /// Empty.
    pub spec: StorageVersionSpec,
    /// The reports of the servers.
    pub status: StorageVersionStatus,
}

/// A list of StorageVersions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersionList {
    /// Always [`StorageVersion::API_VERSION`].
    pub api_version: String,
    /// "StorageVersionList".
    pub kind: String,
    /// The list's own metadata.
    pub metadata: ListMeta,
    /// The objects.
    pub items: Vec<StorageVersion>,
}

/// The empty spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageVersionSpec {}

/// The reports of the servers, and whether they agree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersionStatus {
    /// One entry for each server, no server twice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub storage_versions: Vec<ServerStorageVersion>,
    /// The encoding version of all servers if it is the same, else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_encoding_version: Option<String>,
    /// The conditions, each type once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StorageVersionCondition>,
}

/// The report of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerStorageVersion {
    /// The reporting server.
    #[serde(rename = "apiServerID", skip_serializing_if = "String::is_empty")]
    pub api_server_id: String,
    /// The version in which the server stores objects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub encoding_version: String,
    /// The versions that the server can decode from the store; the encoding version is one of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decodable_versions: Vec<String>,
    /// The versions that the server serves to clients; all of them are decodable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub served_versions: Vec<String>,
}

/// A condition of a StorageVersion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersionCondition {
    /// The type of the condition, such as [`StorageVersionCondition::ALL_ENCODING_VERSIONS_EQUAL`].
    #[serde(rename = "type")]
    pub condition_type: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// The generation of the object when this was observed; zero if it is not set.
    #[serde(skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    /// When the status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// The reason, for machines.
    pub reason: String,
    /// The reason, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The status of a condition. Kubernetes allows other values, and so does this type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is not known.
    #[default]
    Unknown,
    /// Another value, for example of a later release.
    Other(String),
}

impl StorageVersion {
    /// The group, in a name.
    pub const GROUP: &'static str = "internal.apiserver.k8s.io";
    /// The `apiVersion` of these objects.
    pub const API_VERSION: &'static str = "internal.apiserver.k8s.io/v1alpha1";
    /// The `kind` of these objects.
    pub const KIND: &'static str = "StorageVersion";
    /// The plural name in request paths.
    pub const RESOURCE: &'static str = "storageversions";

    /// The name of the object about this resource: "core.pods", "apps.deployments".
    pub fn name_for(resource: &GroupResource) -> String {
        let group = if resource.group().is_empty() { "core" } else { resource.group() };
        format!("{group}.{}", resource.resource())
    }

    /// A new object about this resource, on which no server has reported yet.
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
            spec: StorageVersionSpec {},
            status: StorageVersionStatus::default(),
        }
    }
}

impl StorageVersionCondition {
    /// The condition that all servers report the same encoding version.
    pub const ALL_ENCODING_VERSIONS_EQUAL: &'static str = "AllEncodingVersionsEqual";
}

impl ConditionStatus {
    /// The text on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
            ConditionStatus::Other(text) => text,
        }
    }
}

impl From<String> for ConditionStatus {
    fn from(text: String) -> Self {
        match text.as_str() {
            "True" => ConditionStatus::True,
            "False" => ConditionStatus::False,
            "Unknown" => ConditionStatus::Unknown,
            _ => ConditionStatus::Other(text),
        }
    }
}

impl From<ConditionStatus> for String {
    fn from(status: ConditionStatus) -> Self {
        status.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_name_is_group_and_resource() {
        for (resource, name) in [
            ("pods", "core.pods"),
            ("deployments.apps", "apps.deployments"),
            ("ingresses.networking.k8s.io", "networking.k8s.io.ingresses"),
        ] {
            assert_eq!(StorageVersion::name_for(&resource.parse().unwrap()), name);
        }
    }

    #[test]
    fn every_field_has_the_name_that_client_go_gives_it() {
        let wire = json!({
            "apiVersion": "internal.apiserver.k8s.io/v1alpha1",
            "kind": "StorageVersion",
            "metadata": {"name": "apps.deployments", "uid": "u"},
            "spec": {},
            "status": {
                "storageVersions": [{
                    "apiServerID": "apiserver-a",
                    "encodingVersion": "apps/v1",
                    "decodableVersions": ["apps/v1", "apps/v1beta1"],
                    "servedVersions": ["apps/v1"],
                }],
                "commonEncodingVersion": "apps/v1",
                "conditions": [{
                    "type": "AllEncodingVersionsEqual",
                    "status": "True",
                    "observedGeneration": 2,
                    "lastTransitionTime": "2026-11-15T21:34:05Z",
                    "reason": "CommonEncodingVersionSet",
                    "message": "Common encoding version set",
                }],
            },
        });
        let read: StorageVersion = serde_json::from_value(wire.clone()).unwrap();
        assert_eq!(read.status.storage_versions[0].served_versions, ["apps/v1"]);
        assert_eq!(serde_json::to_value(&read).unwrap(), wire);
    }

    #[test]
    fn a_new_object_has_an_empty_spec_and_status() {
        let written = serde_json::to_value(StorageVersion::new(&"pods".parse().unwrap())).unwrap();
        assert_eq!(
            written,
            json!({
                "apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion",
                "metadata": {"name": "core.pods"}, "spec": {}, "status": {},
            })
        );
    }
}
