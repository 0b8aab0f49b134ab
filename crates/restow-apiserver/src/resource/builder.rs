//! Builder of a [`Resource`], with the usual defaults.

use crate::resource::conversion::{ConvertWith, Converter, RenameVersion};
use crate::resource::strategy::{Plain, Strategy};
use crate::resource::{Names, Origin, Resource, Scope, Storage, Subresource, Verb};
use restow_api::{GroupResource, GroupVersion, InvalidName};
use restow_apimachinery::object::Object;
use std::sync::Arc;
use thiserror::Error;

/// Builds a resource; see [`Resource::builder`].
pub struct ResourceBuilder {
    group: String,
    plural: String,
    names: Names,
    scope: Scope,
    served: Vec<String>,
    stored: Option<String>,
    readable: Vec<String>,
    subresources: Vec<Subresource>,
    selectable_fields: Vec<String>,
    strategy: Arc<dyn Strategy>,
    converter: Arc<dyn Converter>,
}

/// Why a resource is invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidResource {
    /// A name is invalid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// It is served in no version.
    #[error("{0} is served in no version; name at least one with `served`")]
    NoVersion(GroupResource),
}

impl Resource {
    /// Describes a resource: its group, its plural name and the kind of its objects.
    ///
    /// Unless more is said, its objects live in namespaces, all verbs are served, objects are stored in the version
    /// served first, and versions differ in name only.
    ///
    /// ```
    /// use restow_apiserver::resource::Resource;
    ///
    /// let shelves = Resource::builder("library.example", "shelves", "Shelf").served(["v1"]).singular("shelf").build()?;
    /// assert!(shelves.storage_version_hash().is_some());
    /// # Ok::<(), restow_apiserver::resource::InvalidResource>(())
    /// ```
    pub fn builder(group: &str, plural: &str, kind: &str) -> ResourceBuilder {
        ResourceBuilder {
            group: group.to_string(),
            plural: plural.to_string(),
            names: Names {
                singular: kind.to_lowercase(),
                kind: kind.to_string(),
                list_kind: format!("{kind}List"),
                ..Names::default()
            },
            scope: Scope::Namespaced,
            served: Vec::new(),
            stored: None,
            readable: Vec::new(),
            subresources: Vec::new(),
            selectable_fields: Vec::new(),
            strategy: Arc::new(Plain),
            converter: Arc::new(RenameVersion),
        }
    }
}

impl ResourceBuilder {
    /// The versions that it is served in, the preferred one first.
    pub fn served<V: Into<String>>(mut self, versions: impl IntoIterator<Item = V>) -> Self {
        self.served = versions.into_iter().map(Into::into).collect();
        self
    }

    /// The version that objects are stored in. It need not be served.
    pub fn stored(mut self, version: &str) -> Self {
        self.stored = Some(version.to_string());
        self
    }

    /// Versions that are no longer served or stored, but that stored objects can still be decoded from.
    pub fn readable<V: Into<String>>(mut self, versions: impl IntoIterator<Item = V>) -> Self {
        self.readable = versions.into_iter().map(Into::into).collect();
        self
    }

    /// Makes the resource cluster-scoped.
    pub fn cluster_scoped(mut self) -> Self {
        self.scope = Scope::Cluster;
        self
    }

    /// The singular name, if it is not the kind in lower case.
    pub fn singular(mut self, name: &str) -> Self {
        self.names.singular = name.to_string();
        self
    }

    /// Short names for kubectl.
    pub fn short_names<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.names.short = names.into_iter().map(Into::into).collect();
        self
    }

    /// Categories, such as `all`.
    pub fn categories<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.names.categories = names.into_iter().map(Into::into).collect();
        self
    }

    /// Adds the status subresource.
    pub fn with_status(mut self) -> Self {
        let verbs = vec![Verb::Get, Verb::Patch, Verb::Update];
        self.subresources.push(Subresource { name: "status".into(), verbs, kind: None });
        self
    }

    /// The fields, besides name and namespace, that a field selector may contain.
    pub fn selectable_fields<F: Into<String>>(mut self, fields: impl IntoIterator<Item = F>) -> Self {
        self.selectable_fields = fields.into_iter().map(Into::into).collect();
        self
    }

    /// The rules of its objects.
    pub fn strategy(mut self, strategy: impl Strategy + 'static) -> Self {
        self.strategy = Arc::new(strategy);
        self
    }

    /// The conversion between versions.
    pub fn converter(mut self, converter: impl Converter + 'static) -> Self {
        self.converter = Arc::new(converter);
        self
    }

    /// Converts with a function from one version, given as `group/version`, to another.
    pub fn convert_with<F>(self, convert: F) -> Self
    where
        F: Fn(&mut Object, &str, &str) -> Result<(), String> + Send + Sync + 'static,
    {
        self.converter(ConvertWith(convert))
    }

    /// Builds the resource.
    pub fn build(self) -> Result<Resource, InvalidResource> {
        let group_resource = GroupResource::new(&*self.group, &*self.plural)?;
        let version = |version: &String| GroupVersion::new(&*self.group, version.as_str());
        let served = self.served.iter().map(version).collect::<Result<Vec<_>, _>>()?;
        let Some(preferred) = served.first() else { return Err(InvalidResource::NoVersion(group_resource)) };
        let stored = self.stored.as_ref().map(version).transpose()?.unwrap_or_else(|| preferred.clone());
        let mut decodable = vec![stored.clone()];
        for readable in
            self.readable.iter().map(version).collect::<Result<Vec<_>, _>>()?.into_iter().chain(served.clone())
        {
            if !decodable.contains(&readable) {
                decodable.push(readable);
            }
        }
        decodable.sort_by(GroupVersion::compare_by_priority);
        Ok(Resource {
            storage: Some(Arc::new(Storage::new(group_resource.clone(), stored, decodable))),
            group_resource,
            names: self.names,
            scope: self.scope,
            verbs: Verb::ALL.to_vec(),
            served,
            subresources: self.subresources,
            selectable_fields: self.selectable_fields,
            strategy: self.strategy,
            converter: self.converter,
            origin: Origin::Custom,
            custom: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_builder_sets_defaults() {
        let shelves = Resource::builder("library.example", "shelves", "Shelf").served(["v2", "v1"]).build().unwrap();
        let storage = shelves.storage.as_ref().unwrap();
        assert_eq!(storage.encoding().version.to_string(), "library.example/v2");
        assert_eq!((shelves.scope, shelves.verbs.len()), (Scope::Namespaced, 8));
        assert_eq!((shelves.names.singular.as_str(), shelves.names.list_kind.as_str()), ("shelf", "ShelfList"));
    }

    #[test]
    fn served_stored_and_readable_versions_can_be_decoded() {
        let builder = Resource::builder("library.example", "shelves", "Shelf").served(["v2"]);
        let shelves = builder.stored("v3").readable(["v1", "v2"]).build().unwrap();
        let storage = shelves.storage.as_ref().unwrap();
        let decodable: Vec<&str> = storage.decodable.iter().map(GroupVersion::version).collect();
        assert_eq!(decodable, ["v3", "v2", "v1"]);
    }

    #[test]
    fn an_invalid_resource_is_refused() {
        let refused = |builder: ResourceBuilder| builder.build().map(|_| ()).unwrap_err().to_string();
        let builder = Resource::builder("library.example", "shelves", "Shelf");
        assert_eq!(
            refused(builder),
            "shelves.library.example is served in no version; name at least one with `served`"
        );
        let builder = Resource::builder("library.example", "shelves", "Shelf").served(["V 1"]);
        assert!(refused(builder).contains("version"));
    }
}
