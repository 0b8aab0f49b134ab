//! The ownership of fields: whether a list or a map is owned as a whole or item by item.

use crate::types::{FieldShape, MergeRule, TypeId, TypeTable};
use serde_json::Value;
use std::collections::BTreeMap;

/// The ownership of the fields of a custom kind. That of built-in kinds is in the table of types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// The ownership of this value.
    pub rule: MergeRule,
    /// The declared fields.
    pub fields: BTreeMap<String, Ownership>,
    /// All other fields, or the items of a list.
    pub others: Option<Box<Ownership>>,
    /// The default of a field that is a key of a list.
    pub default: Option<Value>,
}

impl Ownership {
    /// Reads the list types, list keys and map types of a structural schema.
    pub fn from_schema(schema: &Value) -> Self {
        let text = |name: &str| schema[name].as_str().unwrap_or_default();
        let rule = match (text("x-kubernetes-list-type"), text("x-kubernetes-map-type")) {
            ("map", _) => {
                let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
                MergeRule::Items(keys.filter_map(Value::as_str).map(str::to_string).collect())
            }
            ("set", _) => MergeRule::Values,
            ("atomic", _) | (_, "atomic") => MergeRule::Whole,
            _ => MergeRule::ByForm,
        };
        let properties = schema["properties"].as_object().into_iter().flatten();
        let others = [&schema["items"], &schema["additionalProperties"]].into_iter().find(|value| value.is_object());
        Ownership {
            rule,
            fields: properties.map(|(name, schema)| (name.clone(), Ownership::from_schema(schema))).collect(),
            others: others.map(|schema| Box::new(Ownership::from_schema(schema))),
            default: Some(&schema["default"]).filter(|value| !value.is_null() && !is_container(value)).cloned(),
        }
    }
}

fn is_container(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

/// A position in a type while an object of that type is traversed.
#[derive(Clone, Copy)]
pub enum Node<'a> {
    /// An object of a custom kind, whose metadata is that of every object.
    Root(Option<&'a Ownership>),
    /// An object of a built-in type.
    Struct(TypeId),
    /// A field of a built-in type, or an item in one.
    Field(FieldShape),
    /// A value in an object of a custom kind.
    Custom(&'a Ownership),
    /// A value of unknown type.
    Unknown,
}

impl<'a> Node<'a> {
    /// How values at this node are merged.
    pub fn rule(self) -> MergeRule {
        match self {
            Node::Root(_) | Node::Struct(_) => MergeRule::Fields,
            Node::Field(shape) => TypeTable::shared().merge_rule(shape),
            Node::Custom(ownership) => ownership.rule.clone(),
            Node::Unknown => MergeRule::ByForm,
        }
    }

    /// The node of a field.
    pub fn field(self, name: &str) -> Node<'a> {
        let custom = |ownership: Option<&'a Ownership>| {
            let known = ownership.and_then(|own| own.fields.get(name).or(own.others.as_deref()));
            known.map_or(Node::Unknown, Node::Custom)
        };
        match self {
            Node::Root(_) if name == "metadata" => {
                TypeTable::shared().metadata_shape().map_or(Node::Unknown, Node::Field)
            }
            Node::Root(ownership) => custom(ownership),
            Node::Custom(ownership) => custom(Some(ownership)),
            Node::Struct(id) => TypeTable::shared().field_shape(id, name).map_or(Node::Unknown, Node::Field),
            Node::Field(shape) => TypeTable::shared().inner_shape(shape, name).map_or(Node::Unknown, Node::Field),
            Node::Unknown => Node::Unknown,
        }
    }

    /// Whether a field of this name is part of the type; otherwise it is a key of a map.
    pub fn declares(self, name: &str) -> bool {
        match self {
            Node::Root(ownership) => {
                matches!(name, "apiVersion" | "kind" | "metadata")
                    || ownership.is_some_and(|own| own.fields.contains_key(name))
            }
            Node::Custom(ownership) => ownership.fields.contains_key(name),
            Node::Struct(_) => true,
            Node::Field(shape) => TypeTable::shared().struct_of(shape).is_some(),
            Node::Unknown => false,
        }
    }

    /// The default of a field that is a key of a list.
    pub fn key_default(self, name: &str) -> Option<Value> {
        match self {
            Node::Custom(ownership) => ownership.fields.get(name)?.default.clone(),
            // In built-in types, only this key is optional.
            Node::Field(_) if name == "protocol" => Some("TCP".into()),
            _ => None,
        }
    }

    /// The node of a list's items.
    pub fn item(self) -> Node<'a> {
        match self {
            Node::Field(shape) => TypeTable::shared().item_shape(shape).map_or(Node::Unknown, Node::Field),
            Node::Custom(ownership) => ownership.others.as_deref().map_or(Node::Unknown, Node::Custom),
            Node::Root(_) | Node::Struct(_) | Node::Unknown => Node::Unknown,
        }
    }
}
