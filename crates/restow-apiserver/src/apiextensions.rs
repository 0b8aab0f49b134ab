//! The types of `apiextensions.k8s.io`, as far as serving custom resources needs them: CustomResourceDefinitions, their compiled
//! schemas and their printer columns. Without I/O; `crd` keeps what is served in step with the stored CRDs.

pub(crate) mod custom_resource_definition;
pub(crate) mod numbers;
pub(crate) mod printer_columns;
pub(crate) mod schemas;

use arc_swap::ArcSwap;
use printer_columns::Column;
use restow_api::GroupVersion;
use schemas::VersionSchemas;
use std::sync::Arc;

/// What a version of a custom resource has in addition to a built-in one.
pub struct CustomVersion {
    /// The current schemas of all versions.
    pub(crate) schemas: Arc<ArcSwap<VersionSchemas>>,
    /// The columns of its table.
    pub(crate) columns: Vec<Column>,
    /// The deprecation warning for clients that use this version.
    pub(crate) warning: Option<String>,
    /// All served versions of the resource, this one included, the preferred one first.
    pub(crate) siblings: Vec<GroupVersion>,
}
