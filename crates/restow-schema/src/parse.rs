//! Compiles a schema. Validation of the schema is elsewhere; invalid parts are ignored here.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use crate::format::Format;
use crate::node::{Additional, Below, Composition, Kind, Limits, ListType, Node};
use crate::pattern::Pattern;
use crate::raw::{AdditionalProperties, Raw};

/// Compiles levels. Equal patterns are shared.
#[derive(Default)]
pub(crate) struct Compiler {
    patterns: HashMap<String, Option<Arc<Pattern>>>,
}

impl Compiler {
    /// Compiles a level and all below it.
    pub(crate) fn node(&mut self, raw: Raw<'_>) -> Node {
        let kind = Kind::from_name(raw.kind());
        let int_or_string = raw.flag("x-kubernetes-int-or-string");
        let mut properties: Vec<(Box<str>, Node)> =
            raw.properties().map(|(name, property)| (name.into(), self.node(property))).collect();
        properties.sort_by(|left, right| left.0.cmp(&right.0));
        let mut node = Node {
            kind,
            int_or_string,
            nullable: raw.flag("nullable"),
            preserve_unknown_fields: raw.flag("x-kubernetes-preserve-unknown-fields"),
            embedded_resource: raw.flag("x-kubernetes-embedded-resource"),
            below: Below::default(),
            format: Format::find(kind, int_or_string, raw.text("format")),
            list_type: list_type(raw),
            properties: properties.into(),
            additional: self.additional(raw),
            items: raw.item().map(|item| Box::new(self.node(item))),
            required: raw.texts("required").map(Box::from).collect(),
            default: raw.get("default").map(|value| Box::new(value.clone())),
            limits: self.limits(raw),
            composition: self.composition(raw),
            rules: Box::default(),
        };
        node.below = below(&node);
        node
    }

    fn additional(&mut self, raw: Raw<'_>) -> Additional {
        match raw.additional_properties() {
            None => Additional::Unsaid,
            Some(AdditionalProperties::Allows(true)) => Additional::Allowed,
            Some(AdditionalProperties::Allows(false)) => Additional::Refused,
            Some(AdditionalProperties::Schema(schema)) => Additional::Schema(Box::new(self.node(schema))),
        }
    }

    fn limits(&mut self, raw: Raw<'_>) -> Option<Box<Limits>> {
        const KEYWORDS: &[&str] = &[
            "maximum",
            "minimum",
            "multipleOf",
            "maxLength",
            "minLength",
            "pattern",
            "maxItems",
            "minItems",
            "maxProperties",
            "minProperties",
            "enum",
        ];
        if !KEYWORDS.iter().any(|keyword| raw.get(keyword).is_some()) {
            return None;
        }
        Some(Box::new(Limits {
            maximum: raw.number("maximum"),
            exclusive_maximum: raw.flag("exclusiveMaximum"),
            minimum: raw.number("minimum"),
            exclusive_minimum: raw.flag("exclusiveMinimum"),
            multiple_of: raw.number("multipleOf"),
            max_length: raw.integer("maxLength"),
            min_length: raw.integer("minLength"),
            pattern: self.pattern(raw.text("pattern")),
            max_items: raw.integer("maxItems"),
            min_items: raw.integer("minItems"),
            max_properties: raw.integer("maxProperties"),
            min_properties: raw.integer("minProperties"),
            choices: raw.list("enum").into(),
        }))
    }

    fn pattern(&mut self, source: &str) -> Option<Arc<Pattern>> {
        if source.is_empty() {
            return None;
        }
        if let Some(known) = self.patterns.get(source) {
            return known.clone();
        }
        let pattern = Pattern::new(source).ok().map(Arc::new);
        self.patterns.insert(source.to_string(), pattern.clone());
        pattern
    }

    fn composition(&mut self, raw: Raw<'_>) -> Option<Box<Composition>> {
        let mut branches =
            |keyword| -> Box<[Node]> { raw.schemas(keyword).into_iter().map(|branch| self.node(branch)).collect() };
        let (all_of, any_of, one_of) = (branches("allOf"), branches("anyOf"), branches("oneOf"));
        let not = raw.schema("not").map(|branch| self.node(branch));
        let empty = all_of.is_empty() && any_of.is_empty() && one_of.is_empty() && not.is_none();
        (!empty).then(|| Box::new(Composition { all_of, any_of, one_of, not }))
    }
}

fn list_type(raw: Raw<'_>) -> ListType {
    match raw.list_type() {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(raw.texts("x-kubernetes-list-map-keys").map(Box::from).collect()),
        _ => ListType::Atomic,
    }
}

/// The flags of a level and its children; those of the children are set already.
fn below(node: &Node) -> Below {
    let mut marks = Below {
        defaults: false,
        sets_or_maps: node.list_type != ListType::Atomic,
        embedded_resources: node.embedded_resource,
        rules: false,
    };
    let additional = match &node.additional {
        Additional::Schema(schema) => Some(schema.as_ref()),
        _ => None,
    };
    let children = node.properties.iter().map(|(_, child)| child).chain(additional).chain(node.items.as_deref());
    for child in children {
        marks.defaults |= child.below.defaults || child.default.as_deref().is_some_and(|value| *value != Value::Null);
        marks.sets_or_maps |= child.below.sets_or_maps;
        marks.embedded_resources |= child.below.embedded_resources;
    }
    marks
}
