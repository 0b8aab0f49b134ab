//! The compiled form of a schema: only the data that pruning, defaulting and validation need.

use std::sync::Arc;

use serde_json::Value;

use crate::format::Format;
use crate::pattern::Pattern;
use crate::rules::ValidationRule;

/// One level of a schema. Rare data is boxed, so that large schemas take little memory.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) kind: Option<Kind>,
    pub(crate) int_or_string: bool,
    pub(crate) nullable: bool,
    pub(crate) preserve_unknown_fields: bool,
    pub(crate) embedded_resource: bool,
    /// Flags of this level and all below it, so that a traversal can skip levels.
    pub(crate) below: Below,
    pub(crate) format: Option<Format>,
    pub(crate) list_type: ListType,
    /// Sorted by name.
    pub(crate) properties: Box<[(Box<str>, Node)]>,
    pub(crate) additional: Additional,
    pub(crate) items: Option<Box<Node>>,
    pub(crate) required: Box<[Box<str>]>,
    pub(crate) default: Option<Box<Value>>,
    pub(crate) limits: Option<Box<Limits>>,
    pub(crate) composition: Option<Box<Composition>>,
    pub(crate) rules: Box<[ValidationRule]>,
}

/// The types of JSON schemas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Array,
    Boolean,
    Integer,
    Number,
    Object,
    String,
}

/// Flags of a level's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Below {
    pub(crate) defaults: bool,
    pub(crate) sets_or_maps: bool,
    pub(crate) embedded_resources: bool,
    pub(crate) rules: bool,
}

/// `additionalProperties`.
#[derive(Debug, Default)]
pub(crate) enum Additional {
    #[default]
    Unsaid,
    Allowed,
    Refused,
    Schema(Box<Node>),
}

/// The list type.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Box<[Box<str>]>),
}

/// Limits on values.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) max_length: Option<i64>,
    pub(crate) min_length: Option<i64>,
    pub(crate) pattern: Option<Arc<Pattern>>,
    pub(crate) max_items: Option<i64>,
    pub(crate) min_items: Option<i64>,
    pub(crate) max_properties: Option<i64>,
    pub(crate) min_properties: Option<i64>,
    pub(crate) choices: Box<[Value]>,
}

/// `allOf`, `anyOf`, `oneOf` and `not`.
#[derive(Debug, Default)]
pub(crate) struct Composition {
    pub(crate) all_of: Box<[Node]>,
    pub(crate) any_of: Box<[Node]>,
    pub(crate) one_of: Box<[Node]>,
    pub(crate) not: Option<Node>,
}

impl Kind {
    /// The type of that name.
    pub(crate) fn from_name(name: &str) -> Option<Kind> {
        Some(match name {
            "array" => Kind::Array,
            "boolean" => Kind::Boolean,
            "integer" => Kind::Integer,
            "number" => Kind::Number,
            "object" => Kind::Object,
            "string" => Kind::String,
            _ => return None,
        })
    }

    /// The name of this type.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Array => "array",
            Kind::Boolean => "boolean",
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Object => "object",
            Kind::String => "string",
        }
    }
}

impl Node {
    /// The schema of a named property.
    pub(crate) fn property(&self, name: &str) -> Option<&Node> {
        let found = self.properties.binary_search_by(|(known, _)| known.as_ref().cmp(name)).ok()?;
        self.properties.get(found).map(|(_, node)| node)
    }

    /// The schema of a field: of its property, or of additional properties.
    pub(crate) fn field(&self, name: &str) -> Option<&Node> {
        self.property(name).or(match &self.additional {
            Additional::Schema(node) => Some(node),
            _ => None,
        })
    }

    /// Whether additional properties are allowed.
    pub(crate) fn has_additional(&self) -> bool {
        !matches!(self.additional, Additional::Unsaid)
    }

    /// The allowed types of a value for messages; empty means any.
    pub(crate) fn type_names(&self) -> &'static str {
        match (self.int_or_string, self.kind) {
            (true, _) => "integer,string",
            (false, Some(kind)) => kind.name(),
            (false, None) => "",
        }
    }

    /// Whether a value of this type is allowed.
    pub(crate) fn admits(&self, kind: Kind) -> bool {
        if self.int_or_string { matches!(kind, Kind::Integer | Kind::String) } else { self.kind == Some(kind) }
    }

    /// Whether the level has a type.
    pub(crate) fn has_types(&self) -> bool {
        self.int_or_string || self.kind.is_some()
    }
}
