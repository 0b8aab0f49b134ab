//! The schemas of a definition's versions: what a given or stored object is made to be, and whether it is valid.
//!
//! A schema is compiled when it is first needed, so that definitions which nobody uses cost little more than their text.

use crate::apiextensions::definition::Definition;
use crate::apiextensions::numbers;
use bytes::Bytes;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::managed_fields::Ownership;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::FieldProblem;
use restow_schema::{Problem, Schema};
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// The schemas of one definition.
#[derive(Default)]
pub(crate) struct Kind {
    /// The definition, as JSON.
    definition: Bytes,
    versions: Vec<VersionSchema>,
}

struct VersionSchema {
    /// The group and version, as objects say them.
    api_version: String,
    compiled: OnceLock<Option<Schema>>,
    ownership: OnceLock<Option<Arc<Ownership>>>,
}

impl Kind {
    /// The schemas in a definition, which is also given as JSON.
    pub(crate) fn new(definition: &Definition, json: Bytes) -> Self {
        let api_version = |version: &str| format!("{}/{version}", definition.spec.group);
        let versions = definition.spec.versions.iter().map(|version| VersionSchema {
            api_version: api_version(&version.name),
            compiled: OnceLock::new(),
            ownership: OnceLock::new(),
        });
        Kind { versions: versions.collect(), definition: json }
    }

    /// The schema of a version as it is written.
    pub(crate) fn written(&self, api_version: &str) -> Option<Value> {
        let number = self.versions.iter().position(|version| version.api_version == api_version)?;
        let mut definition: Value = serde_json::from_slice(&self.definition).ok()?;
        let schema = definition.pointer_mut(&format!("/spec/versions/{number}/schema/openAPIV3Schema"))?;
        Some(schema.take())
    }

    fn schema(&self, api_version: &str) -> Option<&Schema> {
        let version = self.versions.iter().find(|version| version.api_version == api_version)?;
        let compile = || {
            let written = self.written(api_version)?;
            Schema::compile(&written, "spec")
                .inspect_err(|problems| tracing::warn!(api_version, ?problems, "a stored schema cannot be used"))
                .ok()
        };
        version.compiled.get_or_init(compile).as_ref()
    }

    /// Whether even a small object of this version may make much work: its schema has yet to be compiled, or has rules,
    /// which may spend a budget of some seconds.
    pub(crate) fn is_costly(&self, api_version: &str) -> bool {
        let version = self.versions.iter().find(|version| version.api_version == api_version);
        let compiled = version.map(|version| version.compiled.get());
        compiled.is_some_and(|compiled| compiled.is_none_or(|schema| schema.as_ref().is_some_and(Schema::has_rules)))
    }

    /// How the fields of objects in this version are owned.
    pub(crate) fn ownership(&self, api_version: &str) -> Option<Arc<Ownership>> {
        let version = self.versions.iter().find(|version| version.api_version == api_version)?;
        let read = || Some(Arc::new(Ownership::from_schema(&self.written(api_version)?)));
        version.ownership.get_or_init(read).clone()
    }

    /// Drops what the schema of the object's version does not know; returns the paths of what was dropped.
    pub(crate) fn prune(&self, object: &mut Object) -> Vec<String> {
        match self.schema(object.api_version()) {
            Some(schema) => apply(object, |value| schema.prune(value)),
            None => Vec::new(),
        }
    }

    /// Makes a stored object what the schema of its version says: without what it does not know, with its defaults.
    pub(crate) fn complete(&self, object: &mut Object) {
        if let Some(schema) = self.schema(object.api_version()) {
            apply(object, |value| {
                schema.prune(value);
                schema.default(value);
            });
        }
    }

    /// Does the same with an object that a client gave, and tells what was unknown.
    pub(crate) fn read(&self, object: &mut Object) -> Vec<FieldProblem> {
        let Some(schema) = self.schema(object.api_version()) else { return Vec::new() };
        let unknown = apply(object, |value| {
            numbers::settle(value);
            let unknown = schema.prune(value);
            schema.default(value);
            unknown
        });
        unknown.into_iter().map(FieldProblem::Unknown).collect()
    }

    /// What is wrong with an object; on an update, with what has changed in it.
    pub(crate) fn problems(&self, object: &Object, old: Option<&Object>) -> Vec<FieldError> {
        let Some(schema) = self.schema(object.api_version()) else { return Vec::new() };
        schema.validate(object.as_value(), old.map(Object::as_value)).iter().map(field_error).collect()
    }
}

/// What a schema finds, as an error about a field.
pub(crate) fn field_error(problem: &Problem) -> FieldError {
    FieldError { field: problem.path.clone(), rule: FieldRule::Worded(problem.kind.reason()), detail: problem.body() }
}

/// Hands an object to what works on plain JSON.
fn apply<T>(object: &mut Object, work: impl FnOnce(&mut Value) -> T) -> T {
    let mut value = std::mem::take(object).into_value();
    let result = work(&mut value);
    *object = Object::from_value(value).unwrap_or_default();
    result
}
