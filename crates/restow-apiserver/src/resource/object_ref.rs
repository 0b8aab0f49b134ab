//! References to objects.

use crate::resource::Resource;
use restow_api::GroupVersion;

/// An object by its resource, the version that it is read and written in, and its name.
#[derive(Clone, Copy)]
pub struct ObjectRef<'a> {
    /// The resource.
    pub resource: &'a Resource,
    /// The version in which the object is read and written.
    pub version: &'a GroupVersion,
    /// The namespace; empty for cluster-scoped resources.
    pub namespace: &'a str,
    /// The name.
    pub name: &'a str,
}
