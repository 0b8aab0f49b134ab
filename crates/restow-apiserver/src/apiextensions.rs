//! The types of `apiextensions.k8s.io`, as far as serving custom resources needs them: CustomResourceDefinitions, their compiled
//! schemas and their printer columns. Without I/O; `crd` keeps what is served in step with the stored CRDs.

pub(crate) mod definition;
pub(crate) mod kind;
pub(crate) mod numbers;
pub(crate) mod printer_columns;

use arc_swap::ArcSwap;
use kind::Kind;
use printer_columns::Column;
use restow_api::GroupVersion;
use std::sync::Arc;

/// What one version of a custom resource has that built-in ones do not.
pub struct CustomVersion {
    /// The schemas of all versions, as they are now.
    pub(crate) kind: Arc<ArcSwap<Kind>>,
    /// The columns of its table.
    pub(crate) columns: Vec<Column>,
    /// What clients are told who use this version.
    pub(crate) warning: Option<String>,
    /// All versions that the same objects are served in, this one among them, the preferred one first.
    pub(crate) siblings: Vec<GroupVersion>,
}
