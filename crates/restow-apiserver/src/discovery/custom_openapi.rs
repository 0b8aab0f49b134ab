//! OpenAPI schemas of custom resources.

use crate::resource::Resource;
use restow_api::GroupVersion;
use restow_apimachinery::types;
use serde_json::{Map, Value, json};

/// The version of OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenApiVersion {
    /// Version 2, which lacks some keywords.
    V2,
    /// Version 3.
    V3,
}

/// The schemas of metadata.
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
/// Descriptions of the fields that every object has.
const API_VERSION: &str = "APIVersion defines the group and version of the schema in which this object is written.";
const KIND: &str = "Kind is what this object is an instance of, as written in its definition.";
/// Keywords that version 2 lacks.
const NOT_IN_V2: [&str; 8] =
    ["anyOf", "oneOf", "allOf", "not", "nullable", "x-kubernetes-validations", "example", "externalDocs"];

/// Adds the schemas of a custom resource and of its list, and what they refer to.
pub(crate) fn describe(
    schemas: &mut Map<String, Value>,
    resource: &Resource,
    version: &GroupVersion,
    openapi: OpenApiVersion,
) {
    let Some(custom) = &resource.custom else { return };
    let written =
        custom.schemas.load().openapi_schema(&version.to_string()).unwrap_or_else(|| json!({"type": "object"}));
    let reference = |name: &str| match openapi {
        OpenApiVersion::V2 => json!({"$ref": format!("#/definitions/{name}")}),
        OpenApiVersion::V3 => json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}]}),
    };
    let mut schema = match openapi {
        OpenApiVersion::V2 => for_v2(written),
        OpenApiVersion::V3 => written,
    };
    let kind = |kind: &str| json!([{"group": version.group(), "version": version.version(), "kind": kind}]);
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    schema["type"] = "object".into();
    if let (OpenApiVersion::V2, Some(fields)) = (openapi, schema.as_object_mut()) {
        // In version 2 such an object has only its type.
        fields.remove("x-kubernetes-preserve-unknown-fields");
    }
    schema["properties"]["apiVersion"] = json!({"type": "string", "description": API_VERSION});
    schema["properties"]["kind"] = json!({"type": "string", "description": KIND});
    schema["properties"]["metadata"] = reference(OBJECT_META);
    schema["x-kubernetes-group-version-kind"] = kind(&resource.names.kind);
    let name = schema_name(version, &resource.names.kind);
    let items = match openapi {
        OpenApiVersion::V2 => json!({"$ref": format!("#/definitions/{name}")}),
        OpenApiVersion::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
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

/// What the schemas of custom resources refer to, beside `Status`.
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

/// A schema without the keywords that version 2 lacks.
fn for_v2(schema: Value) -> Value {
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
    fields.retain(|name, _| !NOT_IN_V2.contains(&name.as_str()));
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(name) {
            *inner = for_v2(inner.take());
        }
    }
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(|property| *property = for_v2(property.take()));
    }
    Value::Object(fields)
}
