//! The schemas of the versions of a CRD: pruning, defaulting and validation of custom resources.
//!
//! A schema is compiled when it is first needed, so that unused CRDs cost little more memory than their JSON.

use crate::apiextensions::custom_resource_definition::CustomResourceDefinition;
use crate::apiextensions::numbers;
use bytes::Bytes;
use restow_apimachinery::field::{FieldError, FieldProblem, FieldRule};
use restow_apimachinery::managed_fields::Ownership;
use restow_apimachinery::object::Object;
use restow_schema::{Problem, Schema};
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// The schemas of one CRD.
#[derive(Default)]
pub(crate) struct VersionSchemas {
    /// The CRD, as JSON.
    crd: Bytes,
    versions: Vec<VersionSchema>,
}

struct VersionSchema {
    /// The `apiVersion` of its objects.
    api_version: String,
    compiled: OnceLock<Option<Schema>>,
    ownership: OnceLock<Option<Arc<Ownership>>>,
}

impl VersionSchemas {
    /// The schemas of a CRD, which is also given as JSON.
    pub(crate) fn new(crd: &CustomResourceDefinition, json: Bytes) -> Self {
        let api_version = |version: &str| format!("{}/{version}", crd.spec.group);
        let versions = crd.spec.versions.iter().map(|version| VersionSchema {
            api_version: api_version(&version.name),
            compiled: OnceLock::new(),
            ownership: OnceLock::new(),
        });
        VersionSchemas { versions: versions.collect(), crd: json }
    }

    /// The OpenAPI schema of a version, as in the CRD.
    pub(crate) fn openapi_schema(&self, api_version: &str) -> Option<Value> {
        let number = self.versions.iter().position(|version| version.api_version == api_version)?;
        let mut crd: Value = serde_json::from_slice(&self.crd).ok()?;
        let schema = crd.pointer_mut(&format!("/spec/versions/{number}/schema/openAPIV3Schema"))?;
        Some(schema.take())
    }

    fn schema(&self, api_version: &str) -> Option<&Schema> {
        let version = self.versions.iter().find(|version| version.api_version == api_version)?;
        let compile = || {
            let written = self.openapi_schema(api_version)?;
            Schema::compile(&written, "spec")
                .inspect_err(|problems| tracing::warn!(api_version, ?problems, "a stored schema is invalid"))
                .ok()
        };
        version.compiled.get_or_init(compile).as_ref()
    }

    /// Whether even a small object of this version may be expensive: its schema is not compiled yet, or has CEL rules, whose
    /// cost budget may take seconds.
    pub(crate) fn is_costly(&self, api_version: &str) -> bool {
        let version = self.versions.iter().find(|version| version.api_version == api_version);
        let compiled = version.map(|version| version.compiled.get());
        compiled.is_some_and(|compiled| compiled.is_none_or(|schema| schema.as_ref().is_some_and(Schema::has_rules)))
    }

    /// How the fields of objects in this version are owned.
    pub(crate) fn ownership(&self, api_version: &str) -> Option<Arc<Ownership>> {
        let version = self.versions.iter().find(|version| version.api_version == api_version)?;
        let read = || Some(Arc::new(Ownership::from_schema(&self.openapi_schema(api_version)?)));
        version.ownership.get_or_init(read).clone()
    }

    /// Drops the fields that the schema of the object's version does not specify; returns their paths.
    pub(crate) fn prune(&self, object: &mut Object) -> Vec<String> {
        match self.schema(object.api_version()) {
            Some(schema) => apply(object, |value| schema.prune(value)),
            None => Vec::new(),
        }
    }

    /// Prunes and defaults a stored object with the schema of its version.
    pub(crate) fn prune_and_default(&self, object: &mut Object) {
        if let Some(schema) = self.schema(object.api_version()) {
            apply(object, |value| {
                schema.prune(value);
                schema.default(value);
            });
        }
    }

    /// Prunes and defaults an object from a client, and returns the unknown fields.
    pub(crate) fn read(&self, object: &mut Object) -> Vec<FieldProblem> {
        let Some(schema) = self.schema(object.api_version()) else { return Vec::new() };
        let unknown = apply(object, |value| {
            numbers::normalize(value);
            let unknown = schema.prune(value);
            schema.default(value);
            unknown
        });
        unknown.into_iter().map(FieldProblem::Unknown).collect()
    }

    /// Validates an object; on an update, only what has changed in it.
    pub(crate) fn problems(&self, object: &Object, old: Option<&Object>) -> Vec<FieldError> {
        let Some(schema) = self.schema(object.api_version()) else { return Vec::new() };
        schema.validate(object.as_value(), old.map(Object::as_value)).iter().map(field_error).collect()
    }
}

/// A problem of a schema as a field error.
pub(crate) fn field_error(problem: &Problem) -> FieldError {
    FieldError { field: problem.path.clone(), rule: FieldRule::Worded(problem.kind.reason()), detail: problem.body() }
}

/// Applies a function on plain JSON to an object.
fn apply<T>(object: &mut Object, work: impl FnOnce(&mut Value) -> T) -> T {
    let mut value = std::mem::take(object).into_value();
    let result = work(&mut value);
    *object = Object::from_value(value).unwrap_or_default();
    result
}
