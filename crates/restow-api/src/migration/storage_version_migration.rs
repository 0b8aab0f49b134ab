//! The StorageVersionMigration object: a request to rewrite the stored objects of a resource, and its progress.

use super::API_VERSION;
use crate::internal_apiserver::ConditionStatus;
use crate::object_meta::is_zero;
use crate::{GroupVersionResource, InvalidName, ObjectMeta, ResourceVersion, StorageVersionHash, Time};
use serde::{Deserialize, Serialize};

/// A migration of the stored objects of one resource. Cluster-scoped; the status is a subresource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersionMigration {
    /// Always [`super::API_VERSION`].
    pub api_version: String,
    /// Always [`StorageVersionMigration::KIND`].
    pub kind: String,
    /// The object's metadata.
    pub metadata: ObjectMeta,
    /// What to migrate.
    pub spec: StorageVersionMigrationSpec,
    /// The progress.
    pub status: StorageVersionMigrationStatus,
}

/// What to migrate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersionMigrationSpec {
    /// The resource, in the version whose endpoint is used to rewrite the objects. Immutable.
    pub resource: GroupVersionResourceReference,
    /// The continue token of the next page of objects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
}

/// A group, a version and a resource as three fields, as in this API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupVersionResourceReference {
    /// The group; empty for the core group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
}

/// The progress of a migration. All fields except the conditions are ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageVersionMigrationStatus {
    /// Running, Succeeded or Failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<MigrationCondition>,
    /// The storage version that this migration is for. Its success proves nothing about other versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_storage_version_hash: Option<StorageVersionHash>,
    /// The revision of the StorageVersion whose agreement this migration relies on. It must be the same at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement_revision: Option<ResourceVersion>,
    /// The number of this attempt at this storage version, from 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempt: i64,
    /// Why the migration waits or has ended, in one sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The numbers of processed objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<MigrationCounts>,
    /// The objects that could not be rewritten, as many as fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<MigrationFailure>,
    /// The objects that are known to be current, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<SettledObjects>,
}

/// The objects that a failed migration has shown to be current, besides the failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SettledObjects {
    /// Objects that were not written since this resource version are in the target version, except for the failures.
    pub resource_version: String,
    /// The generation of the CRD at that time; zero for other resources.
    #[serde(skip_serializing_if = "is_zero")]
    pub definition_generation: i64,
}

/// A condition of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationCondition {
    /// One of the constants of [`MigrationCondition`].
    #[serde(rename = "type")]
    pub condition_type: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// When this was last updated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// The reason, for machines.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The reason, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The numbers of processed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationCounts {
    /// Objects seen so far.
    pub seen: u64,
    /// Objects that were rewritten.
    pub rewritten: u64,
    /// Objects that were already in the target version, or that another client rewrote or removed.
    pub skipped: u64,
    /// Objects that could not be rewritten.
    pub failed: u64,
    /// Remaining objects, as the server estimates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
}

/// An object that could not be rewritten.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationFailure {
    /// The object's namespace; empty for cluster-scoped objects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The HTTP code of the server's response; zero if there was no response.
    #[serde(skip_serializing_if = "is_zero")]
    pub code: i64,
    /// The server's reason, such as "Forbidden".
    pub reason: String,
    /// The server's message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl StorageVersionMigration {
    /// The `kind` of these objects.
    pub const KIND: &'static str = "StorageVersionMigration";
    /// The plural name in request paths.
    pub const RESOURCE: &'static str = "storageversionmigrations";
    /// The annotation with the target hash from creation on: a status cannot be set at creation, and an unknown field
    /// of the spec would be pruned.
    pub const TARGET_HASH_ANNOTATION: &'static str = "restow.dev/target-storage-version-hash";
    /// The annotation with the agreement's revision from creation on.
    pub const AGREEMENT_REVISION_ANNOTATION: &'static str = "restow.dev/agreement-revision";
    /// The annotation with the attempt from creation on.
    pub const ATTEMPT_ANNOTATION: &'static str = "restow.dev/attempt";

    /// The storage version that this migration is for; `None` if its creator did not set it.
    pub fn target_hash(&self) -> Option<StorageVersionHash> {
        let annotated = || self.metadata.annotations.get(Self::TARGET_HASH_ANNOTATION).map(StorageVersionHash::new);
        self.status.target_storage_version_hash.clone().or_else(annotated)
    }

    /// The revision of the agreement that this migration relies on; `None` if there is no agreement.
    pub fn agreement_revision(&self) -> Option<ResourceVersion> {
        let annotated = || self.metadata.annotations.get(Self::AGREEMENT_REVISION_ANNOTATION).map(ResourceVersion::new);
        self.status.agreement_revision.clone().or_else(annotated)
    }

    /// The number of this attempt; by default 1.
    pub fn attempt(&self) -> u32 {
        let annotated = self.metadata.annotations.get(Self::ATTEMPT_ANNOTATION).and_then(|text| text.parse().ok());
        u32::try_from(self.status.attempt).ok().filter(|attempt| *attempt > 0).or(annotated).unwrap_or(1)
    }

    /// The condition of this type, if it exists and is true.
    pub fn true_condition(&self, condition_type: &str) -> Option<&MigrationCondition> {
        let matches = |condition: &&MigrationCondition| {
            condition.condition_type == condition_type && condition.status == ConditionStatus::True
        };
        self.status.conditions.iter().find(matches)
    }
}

impl Default for StorageVersionMigration {
    fn default() -> Self {
        StorageVersionMigration {
            api_version: API_VERSION.to_owned(),
            kind: Self::KIND.to_owned(),
            metadata: ObjectMeta::default(),
            spec: StorageVersionMigrationSpec::default(),
            status: StorageVersionMigrationStatus::default(),
        }
    }
}

impl MigrationCondition {
    /// The migration is running.
    pub const RUNNING: &'static str = "Running";
    /// The migration has completed: at its end, no object was in another version.
    pub const SUCCEEDED: &'static str = "Succeeded";
    /// The migration has ended without completing.
    pub const FAILED: &'static str = "Failed";
    /// The reason of a false condition "Running" of a migration that waits.
    pub const WAITING: &'static str = "Waiting";
    /// The reason of a false condition "Running" of a migration that was paused.
    pub const PAUSED: &'static str = "Paused";
    /// On a StorageState: all servers store the same version.
    pub const AGREED: &'static str = "Agreed";
}

impl From<&GroupVersionResource> for GroupVersionResourceReference {
    fn from(resource: &GroupVersionResource) -> Self {
        GroupVersionResourceReference {
            group: resource.group().to_owned(),
            version: resource.version().to_owned(),
            resource: resource.resource().to_owned(),
        }
    }
}

impl TryFrom<&GroupVersionResourceReference> for GroupVersionResource {
    type Error = InvalidName;

    fn try_from(reference: &GroupVersionResourceReference) -> Result<Self, InvalidName> {
        let group_version = crate::GroupVersion::new(&reference.group, &reference.version)?;
        GroupVersionResource::new(group_version, &reference.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_migration_of_the_migrator_is_read_and_written_unchanged() {
        let wire = json!({
            "apiVersion": "migration.k8s.io/v1alpha1",
            "kind": "StorageVersionMigration",
            "metadata": {"generateName": "cronjobs.batch-"},
            "spec": {"resource": {"group": "batch", "version": "v1", "resource": "cronjobs"}, "continueToken": "abc"},
            "status": {"conditions": [
                {"type": "Running", "status": "False", "lastUpdateTime": "2026-11-15T21:34:05Z"},
                {"type": "Succeeded", "status": "True", "lastUpdateTime": "2026-11-15T21:34:06Z", "reason": "r", "message": "m"},
            ]},
        });
        let read: StorageVersionMigration = serde_json::from_value(wire.clone()).unwrap();
        assert_eq!(GroupVersionResource::try_from(&read.spec.resource).unwrap().to_string(), "cronjobs.v1.batch");
        assert!(read.true_condition(MigrationCondition::RUNNING).is_none());
        assert!(read.true_condition(MigrationCondition::SUCCEEDED).is_some());
        assert_eq!(read.target_hash(), None);
        assert_eq!(read.attempt(), 1);
        assert_eq!(serde_json::to_value(&read).unwrap(), wire);
    }

    #[test]
    fn our_additions_are_found_in_the_status_or_else_in_the_annotations() {
        let annotations = json!({
            "restow.dev/target-storage-version-hash": "a", "restow.dev/agreement-revision": "7", "restow.dev/attempt": "3",
        });
        let mut migration: StorageVersionMigration =
            serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
        assert_eq!(migration.target_hash(), Some(StorageVersionHash::new("a")));
        assert_eq!(migration.agreement_revision(), Some(ResourceVersion::new("7")));
        assert_eq!(migration.attempt(), 3);
        migration.status = serde_json::from_value(json!({
            "targetStorageVersionHash": "b", "agreementRevision": "8", "attempt": 4, "reason": "waiting",
            "counts": {"seen": 5, "rewritten": 3, "skipped": 1, "failed": 1, "remaining": 2},
            "failures": [{"namespace": "n", "name": "o", "uid": "u", "reason": "Forbidden", "message": "denied"}],
        }))
        .unwrap();
        assert_eq!(migration.target_hash(), Some(StorageVersionHash::new("b")));
        assert_eq!(migration.agreement_revision(), Some(ResourceVersion::new("8")));
        assert_eq!(migration.attempt(), 4);
        assert_eq!(migration.status.failures[0].reason, "Forbidden");
    }
}
