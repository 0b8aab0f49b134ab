//! A resource: one collection of objects, the versions it is served in and the version it is stored in.

mod builder;
pub(crate) mod codec;
pub mod conversion;
pub(crate) mod object_meta;
mod object_ref;
pub mod registry;
pub(crate) mod storage;
pub mod strategy;
pub(crate) mod write_gate;

use crate::apiextensions::CustomVersion;
use crate::resource::codec::Opening;
use crate::resource::conversion::Converter;
pub use crate::resource::storage::{Encoding, Fence, Membership, Storage};
use crate::resource::strategy::Strategy;
pub use builder::{InvalidResource, ResourceBuilder};
pub use object_ref::ObjectRef;
use restow_api::{GroupResource, GroupVersion, storage_version_hash};
use restow_apimachinery::types::{TypeId, TypeTable};
use std::fmt;
use std::sync::Arc;

/// A resource and everything that is needed to serve it.
pub struct Resource {
    /// The group and plural name.
    pub group_resource: GroupResource,
    /// Its other names.
    pub names: Names,
    /// Whether its objects are namespaced.
    pub scope: Scope,
    /// The verbs that are served, in the order of discovery.
    pub verbs: Vec<Verb>,
    /// The versions it is served in, the preferred one first. Most are of the resource's own group; events are served
    /// in two.
    pub served: Vec<GroupVersion>,
    /// The subresources, such as `status`.
    pub subresources: Vec<Subresource>,
    /// The fields, besides name and namespace, that a field selector may contain.
    pub selectable_fields: Vec<String>,
    /// How its objects are stored; `None` for kinds that are not stored, such as an access review.
    pub storage: Option<Arc<Storage>>,
    /// The rules of its objects.
    pub strategy: Arc<dyn Strategy>,
    /// The conversion between versions.
    pub converter: Arc<dyn Converter>,
    /// The origin of the resource.
    pub origin: Origin,
    /// The schema and settings of a resource that a CRD defines; `None` for other resources.
    pub custom: Option<Arc<CustomVersion>>,
}

/// The names of a resource besides its plural name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The singular name, such as `deployment`.
    pub singular: String,
    /// The kind of its objects, such as `Deployment`.
    pub kind: String,
    /// The kind of a list, such as `DeploymentList`.
    pub list_kind: String,
    /// Short names for kubectl.
    pub short: Vec<String>,
    /// Categories, such as `all`.
    pub categories: Vec<String>,
}

/// The scope of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// Cluster-scoped.
    Cluster,
}

/// The origin of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A built-in kind of Kubernetes; its type is in the table of types.
    Builtin,
    /// Defined by a CRD, or by a program that uses this library.
    Custom,
}

/// The verbs of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// Create an object.
    Create,
    /// Delete an object.
    Delete,
    /// Delete all objects that match.
    DeleteCollection,
    /// Read an object.
    Get,
    /// Read all objects that match.
    List,
    /// Change part of an object.
    Patch,
    /// Replace an object.
    Update,
    /// Stream changes.
    Watch,
}

/// A subresource, such as `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// Its name in paths.
    pub name: String,
    /// Its verbs.
    pub verbs: Vec<Verb>,
    /// Its kind, if it is not the kind of the resource.
    pub kind: Option<SubresourceKind>,
}

/// The kind of a subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubresourceKind {
    /// Its group and version, if they are not those of the resource.
    pub version: Option<GroupVersion>,
    /// The kind.
    pub kind: String,
}

/// Whether objects can be encoded as protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protobuf {
    /// They can.
    Possible,
    /// They cannot.
    Impossible,
}

impl Verb {
    /// Every verb, in the order of discovery.
    pub const ALL: [Verb; 8] = [
        Verb::Create,
        Verb::Delete,
        Verb::DeleteCollection,
        Verb::Get,
        Verb::List,
        Verb::Patch,
        Verb::Update,
        Verb::Watch,
    ];

    /// The verb's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Create => "create",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Patch => "patch",
            Verb::Update => "update",
            Verb::Watch => "watch",
        }
    }

    /// The verb of this name.
    pub fn parse(name: &str) -> Option<Verb> {
        Verb::ALL.into_iter().find(|verb| verb.as_str() == name)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Resource {
    /// The hash of the storage version in discovery, for the version in which objects are written now.
    pub fn storage_version_hash(&self) -> Option<String> {
        let encoding = self.storage.as_ref()?.encoding();
        Some(storage_version_hash(encoding.version.group(), encoding.version.version(), &self.names.kind))
    }

    /// Whether stored objects can be sent without decoding. Those of a custom resource get the defaults of its schema.
    pub(crate) fn reads_as_stored(&self) -> bool {
        self.custom.is_none()
    }

    /// All versions in which its objects are served. Each version of a custom resource is a separate `Resource`.
    pub(crate) fn equivalents(&self) -> &[GroupVersion] {
        self.custom.as_ref().map_or(&self.served, |custom| &custom.siblings)
    }

    /// Whether its objects can be converted to this version: it is served, or was a storage version.
    pub(crate) fn knows(&self, version: &GroupVersion) -> bool {
        let stored = self.storage.as_ref().is_some_and(|storage| storage.decodable.contains(version));
        stored || self.equivalents().contains(version)
    }

    /// Whether the resource is served in this version.
    pub fn serves(&self, version: &GroupVersion) -> bool {
        self.served.contains(version)
    }

    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    /// The version and kind of the body of a subresource, if it is not the object itself; for example `Scale`.
    pub(crate) fn foreign_kind<'a>(
        &'a self,
        subresource: &str,
        version: &'a GroupVersion,
    ) -> Option<(&'a GroupVersion, &'a str)> {
        let kind = self.subresource(subresource)?.kind.as_ref()?;
        Some((kind.version.as_ref().unwrap_or(version), &kind.kind))
    }

    /// The type of the objects in this version, if it is built in.
    pub fn type_id(&self, version: &GroupVersion) -> Option<TypeId> {
        match self.origin {
            Origin::Builtin => TypeTable::shared().kind(&version.to_string(), &self.names.kind),
            Origin::Custom => None,
        }
    }

    /// Whether the objects can be encoded as protobuf in this version.
    pub(crate) fn protobuf(&self, version: &GroupVersion) -> Protobuf {
        match self.type_id(version) {
            Some(_) => Protobuf::Possible,
            None => Protobuf::Impossible,
        }
    }

    /// The stored prefix of objects in this version.
    pub fn opening(&self, version: &GroupVersion) -> Opening {
        Opening::new(&version.to_string(), &self.names.kind)
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource")
            .field("name", &self.group_resource)
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}
