//! `migration.k8s.io/v1alpha1`, the API of kube-storage-version-migrator, compatible with its clients.
//!
//! Its fields have the same names and meanings. Additional fields are optional and marked as ours; its clients ignore
//! them. Its CRDs would prune them, so install ours.

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
