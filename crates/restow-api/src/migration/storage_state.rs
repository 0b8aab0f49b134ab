//! The StorageState object: in which versions the stored objects of a resource may be.

use super::{API_VERSION, MigrationCondition};
use crate::{GroupResource, InvalidName, ObjectMeta, ResourceVersion, StorageVersionHash, Time};
use serde::{Deserialize, Serialize};

/// What is known about the stored objects of one resource. Cluster-scoped; the status is a subresource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageState {
    /// Always [`super::API_VERSION`].
    pub api_version: String,
    /// Always [`StorageState::KIND`].
    pub kind: String,
    /// The name is that of [`StorageState::name_for`].
    pub metadata: ObjectMeta,
    /// Which resource this is about.
    pub spec: StorageStateSpec,
    /// What is known.
    pub status: StorageStateStatus,
}

/// Which resource a StorageState is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageStateSpec {
    /// The resource.
    pub resource: GroupResourceReference,
}

/// A group and a resource as two fields, the way this API writes them.
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

/// What is known about the stored objects of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageStateStatus {
    /// The versions in which stored objects may be. With "Unknown" among them they may be in any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub persisted_storage_version_hashes: Vec<StorageVersionHash>,
    /// The version in which objects are stored now; "Unknown" while the servers do not agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_storage_version_hash: Option<StorageVersionHash>,
    /// When the versions were last looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// Ours: the revision of the StorageVersion when the versions were last looked at; nothing where they come from
    /// discovery. Whoever starts anew sees by it whether anything was missed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_revision: Option<ResourceVersion>,
    /// Ours: the API servers of which the versions were last seen, each as it was started; nothing where that cannot be
    /// told. Whoever starts anew sees by it whether one of them was started with another version meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_servers: Option<String>,
    /// Ours: the uids of the migrations whose success is accounted for in the persisted versions. Without it, a success
    /// that was counted once could be counted again after other versions had been written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub applied_migrations: Vec<String>,
    /// Ours: since when stored objects may be in other versions than the current one; nothing when they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmigrated_since: Option<Time>,
    /// Ours: whether the servers agree, and if not, which of them stores what. Absent as long as they always did.
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
