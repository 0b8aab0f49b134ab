//! Defaulting by a schema.

use serde_json::Value;

use crate::node::{Additional, Node};

/// Drops nulls that are not nullable and have no default, then sets the default of every missing field.
pub(crate) fn default_resource(node: &Node, value: &mut Value) {
    drop_nulls(node, value);
    if node.below.defaults {
        fill(node, value);
    }
}

/// Sets the defaults of a level and all below it.
pub(crate) fn fill(node: &Node, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, property) in &node.properties {
                let Some(default) = &property.default else { continue };
                match fields.get_mut(name.as_ref()) {
                    Some(Value::Null) if !property.nullable => {
                        fields.insert(name.to_string(), default.as_ref().clone());
                    }
                    Some(_) => {}
                    None => {
                        fields.insert(name.to_string(), default.as_ref().clone());
                    }
                }
            }
            for (name, field) in fields.iter_mut() {
                if let Some(property) = node.property(name) {
                    if property.below.defaults {
                        fill(property, field);
                    }
                } else if let Additional::Schema(schema) = &node.additional {
                    replace_null(schema, field);
                    if schema.below.defaults {
                        fill(schema, field);
                    }
                }
            }
        }
        Value::Array(items) => {
            let Some(item) = node.items.as_deref() else { return };
            for value in items {
                replace_null(item, value);
                if item.below.defaults {
                    fill(item, value);
                }
            }
        }
        _ => {}
    }
}

fn replace_null(node: &Node, value: &mut Value) {
    if let (Value::Null, false, Some(default)) = (&value, node.nullable, &node.default) {
        *value = default.as_ref().clone();
    }
}

fn drop_nulls(node: &Node, value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|name, field| match node.field(name) {
            Some(child) if field.is_null() => child.nullable || child.default.is_some(),
            Some(child) => {
                drop_nulls(child, field);
                true
            }
            None => true,
        }),
        Value::Array(items) => {
            if let Some(item) = node.items.as_deref() {
                items.iter_mut().for_each(|value| drop_nulls(item, value));
            }
        }
        _ => {}
    }
}
