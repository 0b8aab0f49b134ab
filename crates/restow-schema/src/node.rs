//! A schema in the form in which it is applied: what pruning, defaulting and validation look at, and nothing else.

use std::sync::Arc;

use serde_json::Value;

use crate::format::Format;
use crate::pattern::Pattern;
use crate::rules::Rule;

/// One level of a schema. What most levels do not have is boxed, so that large schemas stay small in memory.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) kind: Option<Kind>,
    pub(crate) int_or_string: bool,
    pub(crate) nullable: bool,
    pub(crate) preserve_unknown_fields: bool,
    pub(crate) embedded_resource: bool,
    /// What lies in this level or below, so that walks can skip what has nothing for them.
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
    pub(crate) rules: Box<[Rule]>,
}

/// The types that JSON schemas name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Array,
    Boolean,
    Integer,
    Number,
    Object,
    String,
}

/// Marks of what a level contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Below {
    pub(crate) defaults: bool,
    pub(crate) sets_or_maps: bool,
    pub(crate) embedded_resources: bool,
    pub(crate) rules: bool,
}

/// What is said of fields that are not named.
#[derive(Debug, Default)]
pub(crate) enum Additional {
    #[default]
    Unsaid,
    Allowed,
    Refused,
    Schema(Box<Node>),
}

/// How the items of a list are told apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Box<[Box<str>]>),
}

/// Bounds on values.
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

/// Value validations that combine others.
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

    /// The schema of a field: as named, or as any other.
    pub(crate) fn field(&self, name: &str) -> Option<&Node> {
        self.property(name).or(match &self.additional {
            Additional::Schema(node) => Some(node),
            _ => None,
        })
    }

    /// Whether fields that are not named may be there at all.
    pub(crate) fn has_additional(&self) -> bool {
        !matches!(self.additional, Additional::Unsaid)
    }

    /// The types that a value may have; none means that any will do.
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

    /// Whether the level says anything about types.
    pub(crate) fn has_types(&self) -> bool {
        self.int_or_string || self.kind.is_some()
    }
}
