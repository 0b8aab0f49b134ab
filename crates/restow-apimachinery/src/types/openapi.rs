//! OpenAPI schemas of the built-in types, for versions 2 and 3 of the format.
//!
//! The schemas contain names, types, formats, required fields, defaults, list and map types, patch strategies, unions,
//! and their kinds. They have no descriptions. Paths are not generated here.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::table::Form;
use super::table::{
    Field, KindScope, ListType, MapType, PatchStrategy, Scalar, Shape, ShapeId, Special, TypeId, TypeTable,
};

/// The name under which a type's schema is published, for instance `io.k8s.api.core.v1.Pod`.
pub fn schema_name(id: TypeId) -> String {
    let table = TypeTable::shared();
    format!("{}.{}", table.package(id).openapi_prefix, table.name(id))
}

/// The root types of the document of one group and version: its kinds that are objects or lists of objects, and types
/// such as `Status` that every API responds with.
pub fn group_version_roots(group: &str, version: &str) -> Vec<TypeId> {
    let table = TypeTable::shared();
    let mut roots: Vec<_> =
        table.kinds_of(group, version).into_iter().filter(|id| has_field(table, *id, "metadata")).collect();
    let meta = table.kind("v1", "Status");
    for name in ["APIResourceList", "DeleteOptions", "Patch", "Status", "WatchEvent"] {
        roots.extend(meta.and_then(|meta| table.sibling(meta, name)));
    }
    roots
}

/// `components.schemas` of the version 3 document of one group and version, for instance `apps/v1` or `v1`; `None` if
/// there are no such types.
pub fn openapi_v3(group_version: &str) -> Option<Value> {
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    if TypeTable::shared().kinds_of(group, version).is_empty() {
        return None;
    }
    Some(Value::Object(openapi_v3_schemas(&group_version_roots(group, version), (group, version))))
}

/// Version 3 schemas of some types and of all types that they refer to, for the document of one group and version.
pub fn openapi_v3_schemas(roots: &[TypeId], group_version: (&str, &str)) -> Map<String, Value> {
    let mut group_versions = vec![("", "v1")];
    if group_version != ("", "v1") {
        group_versions.push(group_version);
    }
    Publisher { table: TypeTable::shared(), version: Version::Three, group_versions: &group_versions }.publish(roots)
}

/// Version 2 definitions of some types and of all types that they refer to. The group-versions are those that the
/// server serves; kinds that belong to every group, such as DeleteOptions, name them all.
pub fn openapi_v2_definitions(roots: &[TypeId], group_versions: &[(&str, &str)]) -> Map<String, Value> {
    Publisher { table: TypeTable::shared(), version: Version::Two, group_versions }.publish(roots)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Two,
    Three,
}

struct Publisher<'a> {
    table: &'a TypeTable,
    version: Version,
    group_versions: &'a [(&'a str, &'a str)],
}

impl Publisher<'_> {
    fn publish(&self, roots: &[TypeId]) -> Map<String, Value> {
        let mut seen: BTreeSet<TypeId> = roots.iter().copied().collect();
        let mut pending: Vec<TypeId> = seen.iter().copied().collect();
        let mut schemas = Map::new();
        while let Some(id) = pending.pop() {
            for next in self.references(id) {
                if seen.insert(next) {
                    pending.push(next);
                }
            }
            schemas.insert(schema_name(id), self.schema(id));
        }
        schemas
    }

    /// The types that a type's schema refers to.
    fn references(&self, id: TypeId) -> Vec<TypeId> {
        let mut found = Vec::new();
        for field in self.table.fields(id) {
            match self.table.inline_type(field) {
                Some(inlined) => found.extend(self.references(inlined)),
                None => self.referenced_by(field.shape, &mut found),
            }
        }
        found
    }

    fn referenced_by(&self, shape: ShapeId, found: &mut Vec<TypeId>) {
        match self.table.form(shape) {
            Form::Pointer(inner) | Form::List(inner) | Form::WrappedList(inner) | Form::Map(inner) => {
                self.referenced_by(inner, found);
            }
            Form::Struct(id) | Form::Special(_, id) => found.push(id),
            Form::Scalar(_) | Form::Bytes => {}
        }
    }

    fn schema(&self, id: TypeId) -> Value {
        let entry = self.table.entry(id);
        if let super::table::Definition::Special(special) = entry.definition {
            return self.special(special);
        }
        let mut properties = Map::new();
        let mut required = Vec::new();
        self.properties(id, &mut properties, &mut required);
        let mut schema = Map::from_iter([("type".to_owned(), json!("object"))]);
        if !properties.is_empty() {
            schema.insert("properties".to_owned(), Value::Object(properties));
        }
        if !required.is_empty() {
            schema.insert("required".to_owned(), json!(required));
        }
        if let Some(map_type) = entry.map_type {
            schema.insert("x-kubernetes-map-type".to_owned(), json!(map_type.word()));
        }
        if entry.union {
            schema.insert("x-kubernetes-unions".to_owned(), json!([self.union(id)]));
        }
        if let Some(kinds) = self.kinds(id) {
            schema.insert("x-kubernetes-group-version-kind".to_owned(), kinds);
        }
        Value::Object(schema)
    }

    fn special(&self, special: Special) -> Value {
        match (special, self.version) {
            (Special::Time | Special::MicroTime, _) => json!({"type": "string", "format": "date-time"}),
            (Special::Quantity, Version::Two) => json!({"type": "string"}),
            (Special::Quantity, Version::Three) => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
            (Special::IntOrString, Version::Two) => json!({"type": "string", "format": "int-or-string"}),
            (Special::IntOrString, Version::Three) => {
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
            }
            (Special::Raw, _) => json!({"type": "object"}),
            _ => json!({}),
        }
    }

    fn properties(&self, id: TypeId, properties: &mut Map<String, Value>, required: &mut Vec<&'static str>) {
        for field in self.table.fields(id) {
            if let Some(inlined) = self.table.inline_type(field) {
                self.properties(inlined, properties, required);
                continue;
            }
            properties.insert(field.name.to_owned(), self.property(field));
            if field.flags.required {
                required.push(field.name);
            }
        }
    }

    fn property(&self, field: &Field) -> Value {
        let extra = self.table.extra(field);
        let mut schema = self.value_schema(field.shape);
        let mut additions = Map::new();
        let mut add = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                additions.insert(name.to_owned(), json!(value));
            }
        };
        add("x-kubernetes-patch-strategy", extra.patch_strategy.map(PatchStrategy::word));
        add("x-kubernetes-patch-merge-key", extra.merge_key);
        add("x-kubernetes-list-type", extra.list_type.map(ListType::word));
        add("x-kubernetes-map-type", extra.map_type.map(MapType::word));
        if let Some(keys) = extra.list_keys {
            let keys: Vec<_> = keys.split(',').collect();
            additions.insert("x-kubernetes-list-map-keys".to_owned(), json!(keys));
        }
        if self.version == Version::Three
            && let Some(default) = self.default(field)
        {
            additions.insert("default".to_owned(), default);
        }
        // A reference may have no siblings in version 3, so it is wrapped if it needs any.
        if self.version == Version::Three && !additions.is_empty() && schema.contains_key("$ref") {
            schema = Map::from_iter([("allOf".to_owned(), json!([schema]))]);
        }
        schema.extend(additions);
        Value::Object(schema)
    }

    /// The declared default, or the zero value of a field that is always present.
    fn default(&self, field: &Field) -> Option<Value> {
        if let Some(declared) = self.table.extra(field).default {
            return serde_json::from_str(declared).ok();
        }
        match self.table.form(field.shape) {
            Form::Struct(_) => Some(json!({})),
            Form::Scalar(_) if !field.flags.omit_empty => Some(self.table.zero(field.shape)),
            _ => None,
        }
    }

    fn value_schema(&self, shape: ShapeId) -> Map<String, Value> {
        let pairs = match self.table.form(shape) {
            Form::Scalar(Scalar::String) => vec![("type", json!("string"))],
            Form::Scalar(Scalar::Bool) => vec![("type", json!("boolean"))],
            Form::Scalar(Scalar::Int32) => vec![("type", json!("integer")), ("format", json!("int32"))],
            Form::Scalar(Scalar::Int64) => vec![("type", json!("integer")), ("format", json!("int64"))],
            Form::Scalar(Scalar::Float64) => vec![("type", json!("number")), ("format", json!("double"))],
            Form::Bytes => vec![("type", json!("string")), ("format", json!("byte"))],
            Form::Pointer(inner) => return self.value_schema(inner),
            Form::List(element) | Form::WrappedList(element) => {
                vec![("type", json!("array")), ("items", Value::Object(self.value_schema(element)))]
            }
            Form::Map(value) => {
                vec![("type", json!("object")), ("additionalProperties", Value::Object(self.value_schema(value)))]
            }
            Form::Struct(id) | Form::Special(_, id) => {
                let place = if self.version == Version::Two { "#/definitions" } else { "#/components/schemas" };
                vec![("$ref", json!(format!("{place}/{}", schema_name(id))))]
            }
        };
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The members of a union: its fields except the discriminator, with their names in Go.
    fn union(&self, id: TypeId) -> Value {
        let mut union = Map::new();
        let mut members = Map::new();
        for field in self.table.fields(id) {
            if field.flags.discriminator {
                union.insert("discriminator".to_owned(), json!(field.name));
                continue;
            }
            let mut letters = field.name.chars();
            let go_name: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
            members.insert(field.name.to_owned(), json!(go_name));
        }
        union.insert("fields-to-discriminateBy".to_owned(), Value::Object(members));
        Value::Object(union)
    }

    fn kinds(&self, id: TypeId) -> Option<Value> {
        let kind = self.table.name(id);
        let entry = |(group, version): (&str, &str)| json!({"group": group, "kind": kind, "version": version});
        match self.table.scope(id) {
            KindScope::NotAKind => None,
            KindScope::CoreGroup => Some(json!([entry(("", "v1"))])),
            KindScope::OwnGroup => {
                let package = self.table.package(id);
                Some(json!([entry((package.group.unwrap_or_default(), package.version()))]))
            }
            KindScope::EveryGroup => Some(self.group_versions.iter().copied().map(entry).collect()),
        }
    }
}

fn has_field(table: &TypeTable, id: TypeId, name: &str) -> bool {
    table.fields(id).iter().any(|field| field.name == name && matches!(table.shape(field.shape), Shape::Named(_)))
}
