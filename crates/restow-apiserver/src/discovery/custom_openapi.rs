//! How custom resources look in the OpenAPI documents.

use crate::resource::Resource;
use restow_api::GroupVersion;
use restow_apimachinery::types;
use serde_json::{Map, Value, json};

/// Which form of OpenAPI a schema is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Version 2, which knows less.
    Two,
    /// Version 3.
    Three,
}

/// Where metadata is described.
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
/// What is said of the fields that every object has.
const API_VERSION: &str = "APIVersion defines the group and version of the schema in which this object is written.";
const KIND: &str = "Kind is what this object is an instance of, as written in its definition.";
/// What version 2 has no words for.
const UNKNOWN_TO_TWO: [&str; 8] =
    ["anyOf", "oneOf", "allOf", "not", "nullable", "x-kubernetes-validations", "example", "externalDocs"];

/// Adds the schemas of a custom resource and of its list, and what they refer to.
pub(crate) fn describe(schemas: &mut Map<String, Value>, resource: &Resource, version: &GroupVersion, form: Form) {
    let Some(custom) = &resource.custom else { return };
    let written =
        custom.schemas.load().openapi_schema(&version.to_string()).unwrap_or_else(|| json!({"type": "object"}));
    let reference = |name: &str| match form {
        Form::Two => json!({"$ref": format!("#/definitions/{name}")}),
        Form::Three => json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}]}),
    };
    let mut schema = match form {
        Form::Two => simplified(written),
        Form::Three => written,
    };
    let kind = |kind: &str| json!([{"group": version.group(), "version": version.version(), "kind": kind}]);
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    schema["type"] = "object".into();
    if let (Form::Two, Some(fields)) = (form, schema.as_object_mut()) {
        // Version 2 says of an object that may be anything only that it is one.
        fields.remove("x-kubernetes-preserve-unknown-fields");
    }
    schema["properties"]["apiVersion"] = json!({"type": "string", "description": API_VERSION});
    schema["properties"]["kind"] = json!({"type": "string", "description": KIND});
    schema["properties"]["metadata"] = reference(OBJECT_META);
    schema["x-kubernetes-group-version-kind"] = kind(&resource.names.kind);
    let name = schema_name(version, &resource.names.kind);
    let items = match form {
        Form::Two => json!({"$ref": format!("#/definitions/{name}")}),
        Form::Three => json!({"$ref": format!("#/components/schemas/{name}")}),
    };
    let list = json!({
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": KIND},
            "metadata": reference(LIST_META), "items": {"type": "array", "items": items},
        },
        "x-kubernetes-group-version-kind": kind(&resource.names.list_kind),
    });
    schemas.insert(schema_name(version, &resource.names.list_kind), list);
    schemas.insert(name, schema);
}

/// What the schemas of custom resources refer to, beside the answers that every API gives.
pub(crate) fn metadata_types() -> Vec<types::TypeId> {
    let table = types::TypeTable::shared();
    let status = table.kind("v1", "Status");
    ["ObjectMeta", "ListMeta"].iter().filter_map(|name| table.sibling(status?, name)).collect()
}

/// The name of a kind's schema: the group's parts turned round, the version, the kind.
pub(crate) fn schema_name(version: &GroupVersion, kind: &str) -> String {
    let mut parts: Vec<&str> = version.group().split('.').collect();
    parts.reverse();
    format!("{}.{}.{kind}", parts.join("."), version.version())
}

/// A schema without what version 2 has no words for.
fn simplified(schema: Value) -> Value {
    let Value::Object(mut fields) = schema else { return schema };
    let untyped = fields.get("nullable").is_some_and(|value| value == true)
        || fields.get("x-kubernetes-int-or-string").is_some_and(|value| value == true)
        || fields.get("x-kubernetes-preserve-unknown-fields").is_some_and(|value| value == true);
    if untyped {
        fields.remove("type");
        fields.remove("properties");
        fields.remove("items");
        fields.remove("additionalProperties");
        fields.remove("required");
    }
    fields.retain(|name, _| !UNKNOWN_TO_TWO.contains(&name.as_str()));
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(name) {
            *inner = simplified(inner.take());
        }
    }
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(|property| *property = simplified(property.take()));
    }
    Value::Object(fields)
}
