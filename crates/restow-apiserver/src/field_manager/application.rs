//! Server-side apply of a configuration: the merged object, the conflicts, and the new managedFields.

use super::{Layout, UNOWNED_METADATA, comparison_in};
use crate::error::ApiError;
use crate::resource::Resource;
use restow_apimachinery::managed_fields::apply::{fields_of, merged, remove};
use restow_apimachinery::managed_fields::{Comparison, Entries, FieldSet, FieldWriter};
use restow_apimachinery::object::Object;
use serde_json::Value;
use std::collections::BTreeMap;

/// A configuration that is applied.
pub(crate) struct Application<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) writer: FieldWriter<'a>,
    /// The configuration in the version of the writer, restricted to the fields of the subresource.
    pub(crate) configuration: Object,
}

/// A field that another manager owns, and that would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldConflict {
    /// The manager, as messages name it.
    pub(crate) manager: String,
    /// The field.
    pub(crate) path: String,
}

impl<'a> Application<'a> {
    /// Restricts the configuration to what this endpoint writes: `status` for the subresource, the rest otherwise.
    pub(crate) fn new(resource: &'a Resource, writer: FieldWriter<'a>, mut configuration: Object) -> Self {
        let has_status = resource.subresource("status").is_some();
        configuration.fields_mut().retain(|name, _| match (name.as_str(), writer.subresource) {
            ("apiVersion" | "kind" | "metadata", _) => true,
            ("status", "") => !has_status,
            ("status", _) => true,
            (_, subresource) => subresource.is_empty(),
        });
        if !writer.subresource.is_empty() {
            configuration
                .metadata_mut()
                .retain(|name, _| matches!(name.as_str(), "name" | "namespace" | "resourceVersion" | "uid"));
        }
        Application { resource, writer, configuration }
    }

    /// The object with the configuration merged, without the fields that its manager no longer applies.
    ///
    /// # Errors
    /// The conversion to the version that was applied before fails, so that these fields are unknown.
    pub(crate) async fn merged(&self, live: &Object) -> Result<Object, ApiError> {
        let version = self.writer.api_version;
        let layout = Layout::of(self.resource, version);
        let fields = merged(layout.root(), live.fields(), self.configuration.fields());
        let object = Object::from_value(Value::Object(fields)).unwrap_or_default();
        let entries = entries_of(live);
        let Some((applied_in, before)) = entries.applied(&self.writer) else { return Ok(object) };
        Ok(self.pruned(&object, &entries, (applied_in, before)).await?.unwrap_or(object))
    }

    /// The object without the fields that were applied before, are not applied now, and nobody else owns; `None` if all have to
    /// stay: the version that was applied before does not exist any more, or managers of other versions would lose fields.
    async fn pruned(
        &self,
        object: &Object,
        entries: &Entries,
        (applied_in, before): (&str, &FieldSet),
    ) -> Result<Option<Object>, ApiError> {
        let known = |version: &str| version.parse().ok().filter(|version| self.resource.knows(version));
        let (Some(version), Some(target)) = (known(applied_in), known(self.writer.api_version)) else {
            return Ok(None);
        };
        let configuration = self.resource.convert(self.configuration.clone(), &version).await?;
        let mut pruned = self.resource.convert(object.clone(), &version).await?;
        let layout = Layout::of(self.resource, applied_in);
        let others = entries.others(&self.writer);
        let same = others.iter().filter(|(_, version, _)| *version == applied_in);
        let kept = same.map(|(_, _, fields)| (*fields).clone());
        let kept = FieldSet::union(kept.chain([fields_of(layout.root(), configuration.fields())]));
        remove(layout.root(), pruned.fields_mut(), before, &kept);
        let pruned = self.resource.convert(pruned, &target).await?;
        // Managers of other versions must not lose fields either.
        let mut compared: BTreeMap<&str, Comparison> = BTreeMap::new();
        for (_, version, fields) in others.into_iter().filter(|(_, version, _)| *version != applied_in) {
            if !compared.contains_key(version) {
                let Some(lost) = comparison_in(self.resource, &self.writer, version, object, &pruned).await? else {
                    return Ok(None);
                };
                compared.insert(version, lost);
            }
            if compared.get(version).is_none_or(|lost| !lost.removed.shared_paths(fields).is_empty()) {
                return Ok(None);
            }
        }
        Ok(Some(pruned))
    }

    /// The entries after the change from `live` to `object`, and the conflicts with other managers.
    ///
    /// # Errors
    /// The conversion to the version of an entry fails, so that its conflicts are unknown.
    pub(crate) async fn entries(
        &self,
        live: &Object,
        object: &Object,
    ) -> Result<(Value, Vec<FieldConflict>), ApiError> {
        let mut entries = entries_of(live);
        let mut compared: BTreeMap<String, Comparison> = BTreeMap::new();
        for version in entries.versions() {
            if let Some(comparison) = comparison_in(self.resource, &self.writer, version, live, object).await? {
                compared.insert(version.to_string(), comparison);
            }
        }
        let mut conflicts = Vec::new();
        for (manager, version, fields) in entries.others(&self.writer) {
            let Some(comparison) = compared.get(version) else { continue };
            let paths = comparison.changed.shared_paths(fields);
            conflicts.extend(paths.into_iter().map(|path| FieldConflict { manager: manager.clone(), path }));
        }
        conflicts.sort_by(|one, other| one.manager.cmp(&other.manager));
        let before = entries.clone();
        entries.record_application(&self.writer, self.fields(), &compared);
        let stored = live.at(&["metadata", "managedFields"]).cloned();
        let unchanged = entries.is_same(&before);
        Ok((stored.filter(|_| unchanged).unwrap_or_else(|| entries.into_value()), conflicts))
    }

    /// The entries of an object that is created by apply.
    pub(crate) fn first_entries(&self) -> Value {
        let mut entries = Entries::default();
        entries.record_application(&self.writer, self.fields(), &BTreeMap::new());
        entries.into_value()
    }

    /// The fields that the manager owns from now on.
    fn fields(&self) -> FieldSet {
        let layout = Layout::of(self.resource, self.writer.api_version);
        let mut fields = fields_of(layout.root(), self.configuration.fields());
        fields.retain(|step| !matches!(step, "f:apiVersion" | "f:kind"));
        fields.remove_below("f:metadata", &UNOWNED_METADATA);
        fields
    }
}

fn entries_of(object: &Object) -> Entries {
    object.at(&["metadata", "managedFields"]).cloned().and_then(Entries::from_value).unwrap_or_default()
}
