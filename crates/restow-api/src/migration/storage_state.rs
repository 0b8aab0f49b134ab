//! The StorageState object: the versions in which objects of a resource may be stored.

use super::{API_VERSION, MigrationCondition};
use crate::{GroupResource, InvalidName, ObjectMeta, ResourceVersion, StorageVersionHash, Time};
use serde::{Deserialize, Serialize};

/// The known storage state of one resource. Cluster-scoped; the status is a subresource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageState {
    /// Always [`super::API_VERSION`].
    pub api_version: String,
    /// Always [`StorageState::KIND`].
    pub kind: String,
    /// The name is that of [`StorageState::name_for`].
    pub metadata: ObjectMeta,
    /// The resource.
    pub spec: StorageStateSpec,
    /// The known versions.
    pub status: StorageStateStatus,
}

/// The resource of a StorageState.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageStateSpec {
    /// The resource.
    pub resource: GroupResourceReference,
}

/// A group and a resource as two fields, as in this API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupResourceReference {
    /// The group; empty for the core group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
}

/// The known versions of the stored objects of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageStateStatus {
    /// The versions in which objects may be stored. With "Unknown" among them, any version is possible.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub persisted_storage_version_hashes: Vec<StorageVersionHash>,
    /// The version in which objects are stored now; "Unknown" while the servers do not agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_storage_version_hash: Option<StorageVersionHash>,
    /// When the versions were last checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// Ours: the revision of the StorageVersion when the versions were last checked; absent if they come from
    /// discovery. A controller that starts again compares it to find out whether it missed a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_revision: Option<ResourceVersion>,
    /// Ours: the API servers whose versions were last checked, each with its start; absent if that is unknown. A
    /// controller that starts again compares it to find out whether a server was started with another version
    /// meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_servers: Option<String>,
    /// Ours: the uids of the migrations whose success is included in the persisted versions. Without it, a success
    /// could be counted again after other versions were written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub applied_migrations: Vec<String>,
    /// Ours: since when objects may be stored in other versions than the current one; absent if they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmigrated_since: Option<Time>,
    /// Ours: whether the servers agree, and if not, the version of each server. Absent if they always agreed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<MigrationCondition>,
}

impl StorageState {
    /// The `kind` of these objects.
    pub const KIND: &'static str = "StorageState";
    /// The plural name in request paths.
    pub const RESOURCE: &'static str = "storagestates";

    /// The name of the object about this resource: "pods", "deployments.apps".
    pub fn name_for(resource: &GroupResource) -> String {
        resource.to_string()
    }

    /// A new object about this resource.
    pub fn new(resource: &GroupResource, status: StorageStateStatus) -> Self {
        StorageState {
            metadata: ObjectMeta::named(Self::name_for(resource)),
            spec: StorageStateSpec { resource: GroupResourceReference::from(resource) },
            status,
            ..StorageState::default()
        }
    }
}

impl Default for StorageState {
    fn default() -> Self {
        StorageState {
            api_version: API_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata: ObjectMeta::default(),
            spec: StorageStateSpec::default(),
            status: StorageStateStatus::default(),
        }
    }
}

impl From<&GroupResource> for GroupResourceReference {
    fn from(resource: &GroupResource) -> Self {
        GroupResourceReference { group: resource.group().to_owned(), resource: resource.resource().to_owned() }
    }
}

impl TryFrom<&GroupResourceReference> for GroupResource {
    type Error = InvalidName;

    fn try_from(reference: &GroupResourceReference) -> Result<Self, InvalidName> {
        GroupResource::new(&reference.group, &reference.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_state_of_the_migrator_is_read_and_written_unchanged() {
        let wire = json!({
            "apiVersion": "migration.k8s.io/v1alpha1",
            "kind": "StorageState",
            "metadata": {"name": "cronjobs.batch"},
            "spec": {"resource": {"group": "batch", "resource": "cronjobs"}},
            "status": {
                "persistedStorageVersionHashes": ["Unknown", "sd5LIXh4Fjs="],
                "currentStorageVersionHash": "sd5LIXh4Fjs=",
                "lastHeartbeatTime": "2026-11-15T21:34:05Z",
            },
        });
        let read: StorageState = serde_json::from_value(wire.clone()).unwrap();
        assert!(read.status.persisted_storage_version_hashes[0].is_unknown());
        assert_eq!(GroupResource::try_from(&read.spec.resource).unwrap().to_string(), read.metadata.name);
        assert_eq!(serde_json::to_value(&read).unwrap(), wire);
    }
}
