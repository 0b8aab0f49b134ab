//! `migration.k8s.io/v1alpha1`, the API of kube-storage-version-migrator: a drop-in for its clients.
//!
//! All fields that it knows have its names and meanings. What we add is optional and marked as ours; its clients ignore
//! it, and a custom resource definition that does not know it prunes it, so install ours.

mod storage_state;
mod storage_version_migration;

pub use storage_state::{GroupResourceReference, StorageState, StorageStateSpec, StorageStateStatus};
pub use storage_version_migration::{
    GroupVersionResourceReference, MigrationCondition, MigrationCounts, MigrationFailure, SettledObjects,
    StorageVersionMigration, StorageVersionMigrationSpec, StorageVersionMigrationStatus,
};

/// The group, in a name.
pub const GROUP: &str = "migration.k8s.io";
/// The `apiVersion` of these objects.
pub const API_VERSION: &str = "migration.k8s.io/v1alpha1";
