//! The field manager: keeps `metadata.managedFields` for every write, and does server-side apply across versions.
//!
//! A write is compared with the stored object. Its manager owns the fields that it added or changed, and no other manager
//! does; nobody owns removed fields. A write that changes nothing leaves the entries, and so the stored bytes, unchanged. An
//! applier owns every field of its configuration, and gets a conflict for fields that others own and that it changes.
//!
//! Field sets, and comparing and merging objects, are in [`restow_apimachinery::managed_fields`].

mod application;
#[cfg(test)]
mod tests;

pub(crate) use application::{Application, FieldConflict};

use crate::error::ApiError;
use crate::resource::{Origin, Resource};
use restow_apimachinery::managed_fields::{Comparison, Entries, FieldWriter, Given, Node, Ownership, compare};
use restow_apimachinery::object::Object;
use restow_apimachinery::types::{TypeId, TypeTable};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Metadata that no manager owns.
const UNOWNED_METADATA: [&str; 8] = [
    "f:name",
    "f:namespace",
    "f:creationTimestamp",
    "f:selfLink",
    "f:uid",
    "f:generation",
    "f:managedFields",
    "f:resourceVersion",
];

/// Sets the entry of a new object.
pub(crate) fn record_creation(resource: &Resource, writer: &FieldWriter<'_>, object: &mut Object) {
    object.metadata_mut().remove("managedFields");
    let compared = comparison(resource, writer, &blank(resource, object), object);
    let mut entries = Entries::default();
    entries.record(writer, BTreeMap::from([(writer.api_version.to_string(), compared)]));
    if !entries.is_empty() {
        object.metadata_mut().insert("managedFields".into(), entries.into_value());
    }
}

/// Updates the entries for a change from `old` to `object`.
pub(crate) async fn record_change(
    resource: &Resource,
    writer: &FieldWriter<'_>,
    old: &Object,
    object: &mut Object,
    given: Given,
) -> Result<(), ApiError> {
    if let Given::Applied(entries) = given {
        object.metadata_mut().insert("managedFields".into(), entries);
        return Ok(());
    }
    let sent = object.metadata_mut().remove("managedFields");
    let stored = old.at(&["metadata", "managedFields"]);
    let counts =
        |sent: &Value| Some(sent) == stored || Entries::from_value(sent.clone()).is_some_and(|read| !read.is_empty());
    let source = match given {
        Given::Reset | Given::Applied(_) => None,
        // A client that omits the field keeps the stored entries, and so does a write of a subresource.
        Given::Object => sent.filter(|_| writer.subresource.is_empty()).filter(counts).or_else(|| stored.cloned()),
    };
    // An object without entries stays without: fields are tracked from the creation on, or not at all.
    let Some(source) = source else { return Ok(()) };
    let mut compared = BTreeMap::new();
    // Several entries may have the same version.
    let versions: BTreeSet<&str> = versions_in(&source).chain([writer.api_version]).collect();
    let mut converts = true;
    for version in versions {
        let comparison = match converts || version == writer.api_version {
            true => comparison_in(resource, writer, version, old, object).await,
            false => Ok(Some(Comparison::default())),
        };
        // A conversion webhook that does not answer must not cost a manager its fields: entries stay as they are. It is not
        // waited for again.
        let comparison = comparison.unwrap_or_else(|error| {
            tracing::warn!(%error, version, "managedFields entries of other versions are not compared");
            converts = false;
            Some(Comparison::default())
        });
        // Entries of a version that does not exist are dropped.
        if let Some(comparison) = comparison {
            compared.insert(version.to_string(), comparison);
        }
    }
    let untouched = compared.values().all(Comparison::is_empty)
        && versions_in(&source).all(|version| compared.contains_key(version));
    let value = match untouched {
        true if Some(&source) == stored => source,
        _ => {
            let parsed = Entries::from_value(source).filter(|entries| !entries.is_empty());
            let Some(mut entries) = parsed else { return Ok(()) };
            if !untouched {
                entries.record(writer, compared);
            }
            entries.into_value()
        }
    };
    if value.as_array().is_some_and(|entries| !entries.is_empty()) {
        object.metadata_mut().insert("managedFields".into(), value);
    }
    Ok(())
}

/// The versions of entries.
fn versions_in(entries: &Value) -> impl Iterator<Item = &str> {
    entries.as_array().into_iter().flatten().map(|entry| entry["apiVersion"].as_str().unwrap_or_default())
}

/// The comparison in another version than the request's; `None` if there is no such version.
async fn comparison_in(
    resource: &Resource,
    writer: &FieldWriter<'_>,
    version: &str,
    old: &Object,
    object: &Object,
) -> Result<Option<Comparison>, ApiError> {
    if version == writer.api_version {
        return Ok(Some(comparison(resource, writer, old, object)));
    }
    // Clients can name any version in entries; each known one costs a conversion and a comparison.
    let Some(target) = version.parse().ok().filter(|target| resource.knows(target)) else { return Ok(None) };
    let old = resource.convert(old.clone(), &target).await?;
    let object = resource.convert(object.clone(), &target).await?;
    Ok(Some(comparison(resource, &FieldWriter { api_version: version, ..*writer }, &old, &object)))
}

fn comparison(resource: &Resource, writer: &FieldWriter<'_>, old: &Object, object: &Object) -> Comparison {
    let layout = Layout::of(resource, writer.api_version);
    let mut compared = compare(layout.root(), old.fields(), object.fields());
    for set in [&mut compared.changed, &mut compared.removed] {
        set.remove("f:apiVersion");
        set.remove("f:kind");
        set.remove_below("f:metadata", &UNOWNED_METADATA);
        if writer.subresource.is_empty() && resource.subresource("status").is_some() {
            set.remove("f:status");
        }
    }
    compared
}

/// The structure of the objects of a resource in one version.
pub(crate) enum Layout {
    Builtin(TypeId),
    Custom(Option<Arc<Ownership>>),
}

impl Layout {
    pub(crate) fn of(resource: &Resource, api_version: &str) -> Self {
        let builtin = match resource.origin {
            Origin::Builtin => TypeTable::shared().kind(api_version, &resource.names.kind),
            Origin::Custom => None,
        };
        match builtin {
            Some(kind) => Layout::Builtin(kind),
            None => Layout::Custom(resource.strategy.ownership(api_version)),
        }
    }

    /// The root node of such an object.
    pub(crate) fn root(&self) -> Node<'_> {
        match self {
            Layout::Builtin(kind) => Node::Struct(*kind),
            Layout::Custom(ownership) => Node::Root(ownership.as_deref()),
        }
    }
}

/// The empty object of a type, which a new object is compared with.
fn blank(resource: &Resource, object: &Object) -> Object {
    let kind = TypeTable::shared().kind(object.api_version(), object.kind());
    let value = match (resource.origin, kind) {
        (Origin::Builtin, Some(kind)) => TypeTable::shared().blank(kind),
        _ => json!({}),
    };
    Object::from_value(value).unwrap_or_default()
}
