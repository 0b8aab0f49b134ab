//! An uncompiled schema: typed access to its keywords, for the checks before it is compiled.

use serde_json::{Map, Value};

/// One level of an uncompiled schema.
#[derive(Clone, Copy)]
pub(crate) struct Raw<'a>(pub(crate) &'a Map<String, Value>);

/// The forms of `items`.
pub(crate) enum SchemaItems<'a> {
    One(Raw<'a>),
    Many,
}

/// The forms of `additionalProperties`.
pub(crate) enum AdditionalProperties<'a> {
    Allows(bool),
    Schema(Raw<'a>),
}

impl<'a> Raw<'a> {
    /// A value as a schema, if it is an object.
    pub(crate) fn of(value: &'a Value) -> Option<Raw<'a>> {
        value.as_object().map(Raw)
    }

    /// The value of a keyword; `null` counts as absent.
    pub(crate) fn get(self, keyword: &str) -> Option<&'a Value> {
        self.0.get(keyword).filter(|value| !value.is_null())
    }

    /// A text keyword; empty if it is not set.
    pub(crate) fn text(self, keyword: &str) -> &'a str {
        self.get(keyword).and_then(Value::as_str).unwrap_or_default()
    }

    /// The `type`.
    pub(crate) fn kind(self) -> &'a str {
        self.text("type")
    }

    /// A boolean keyword.
    pub(crate) fn flag(self, keyword: &str) -> bool {
        self.get(keyword).and_then(Value::as_bool).unwrap_or(false)
    }

    /// An integer keyword.
    pub(crate) fn integer(self, keyword: &str) -> Option<i64> {
        let value = self.get(keyword)?;
        value.as_i64().or_else(|| value.as_f64().map(|float| float as i64))
    }

    /// A number keyword.
    pub(crate) fn number(self, keyword: &str) -> Option<f64> {
        self.get(keyword).and_then(Value::as_f64)
    }

    /// A list keyword.
    pub(crate) fn list(self, keyword: &str) -> &'a [Value] {
        self.get(keyword).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    /// A keyword with a list of texts.
    pub(crate) fn texts(self, keyword: &str) -> impl Iterator<Item = &'a str> {
        self.list(keyword).iter().filter_map(Value::as_str)
    }

    /// A keyword with a list of schemas.
    pub(crate) fn schemas(self, keyword: &str) -> Vec<Raw<'a>> {
        self.list(keyword).iter().filter_map(Raw::of).collect()
    }

    /// A keyword with a schema.
    pub(crate) fn schema(self, keyword: &str) -> Option<Raw<'a>> {
        self.get(keyword).and_then(Raw::of)
    }

    /// The properties.
    pub(crate) fn properties(self) -> impl Iterator<Item = (&'a str, Raw<'a>)> {
        let fields = self.get("properties").and_then(Value::as_object);
        fields.into_iter().flatten().filter_map(|(name, value)| Raw::of(value).map(|raw| (name.as_str(), raw)))
    }

    /// A property.
    pub(crate) fn property(self, name: &str) -> Option<Raw<'a>> {
        self.get("properties").and_then(|fields| fields.get(name)).and_then(Raw::of)
    }

    /// The schema or schemas of a list's items.
    pub(crate) fn items(self) -> Option<SchemaItems<'a>> {
        match self.get("items")? {
            Value::Object(fields) => Some(SchemaItems::One(Raw(fields))),
            Value::Array(_) => Some(SchemaItems::Many),
            _ => None,
        }
    }

    /// The schema of a list's items, if there is exactly one.
    pub(crate) fn item(self) -> Option<Raw<'a>> {
        match self.items() {
            Some(SchemaItems::One(raw)) => Some(raw),
            _ => None,
        }
    }

    /// `additionalProperties`.
    pub(crate) fn additional_properties(self) -> Option<AdditionalProperties<'a>> {
        match self.get("additionalProperties")? {
            Value::Bool(allows) => Some(AdditionalProperties::Allows(*allows)),
            Value::Object(fields) => Some(AdditionalProperties::Schema(Raw(fields))),
            _ => None,
        }
    }

    /// The schema of additional properties.
    pub(crate) fn additional_schema(self) -> Option<Raw<'a>> {
        match self.additional_properties() {
            Some(AdditionalProperties::Schema(raw)) => Some(raw),
            _ => None,
        }
    }

    /// `x-kubernetes-list-type`, if set.
    pub(crate) fn list_type(self) -> Option<&'a str> {
        self.get("x-kubernetes-list-type").and_then(Value::as_str)
    }

    /// `x-kubernetes-map-type`, if set.
    pub(crate) fn map_type(self) -> Option<&'a str> {
        self.get("x-kubernetes-map-type").and_then(Value::as_str)
    }

    /// `x-kubernetes-validations`.
    pub(crate) fn rules(self) -> Vec<Raw<'a>> {
        self.schemas("x-kubernetes-validations")
    }
}
