//! `internal.apiserver.k8s.io/v1alpha1`: the versions in which each API server serves and stores a resource.

mod storage_version;
mod validation;

pub use storage_version::{
    ConditionStatus, ServerStorageVersion, StorageVersion, StorageVersionCondition, StorageVersionList,
    StorageVersionSpec, StorageVersionStatus,
};
pub use validation::{validate_storage_version, validate_storage_version_name, validate_storage_version_status};
