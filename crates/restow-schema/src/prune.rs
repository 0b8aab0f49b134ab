//! Pruning: removes fields that a schema does not specify.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::embedded::OBJECT_META_FIELDS;
use crate::node::{Additional, Node};

/// The fields of every resource, which a schema need not specify.
const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes unknown fields of a resource and returns their paths, sorted.
pub(crate) fn prune_resource(node: &Node, value: &mut Value) -> Vec<String> {
    let mut pruner = Pruner::default();
    pruner.level(Some(node), value, Place { embedded: true, root: true, keeps: false });
    pruner.removed.sort();
    pruner.removed
}

/// Removes unknown fields of a part of a resource.
pub(crate) fn prune_part(node: &Node, value: &mut Value) -> Vec<String> {
    let mut pruner = Pruner::default();
    pruner.level(Some(node), value, Place { embedded: node.embedded_resource, root: false, keeps: false });
    pruner.removed.sort();
    pruner.removed
}

#[derive(Default)]
struct Pruner {
    path: String,
    removed: Vec<String>,
}

#[derive(Clone, Copy)]
struct Place {
    embedded: bool,
    root: bool,
    /// Whether the list around this item preserves unknown fields.
    keeps: bool,
}

impl Pruner {
    fn level(&mut self, node: Option<&Node>, value: &mut Value, place: Place) {
        match value {
            Value::Object(fields) => self.object(node, fields, place),
            Value::Array(items) => {
                // A list without a schema has no known content. A list that preserves unknown fields also preserves
                // those of its items, unless the schema of the items is stricter.
                let keeps = place.keeps || node.is_some_and(|node| node.preserve_unknown_fields);
                let item = node.and_then(|node| node.items.as_deref());
                if keeps && item.is_none() {
                    return;
                }
                for (index, value) in items.iter_mut().enumerate() {
                    if !value.is_object() && !value.is_array() {
                        continue;
                    }
                    let length = self.path.len();
                    let _ = write!(self.path, "[{index}]");
                    self.level(item, value, Place { keeps, ..Place::below(item) });
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, node: Option<&Node>, fields: &mut Map<String, Value>, place: Place) {
        let length = self.path.len();
        let mut unknown: Vec<String> = Vec::new();
        for (name, value) in fields.iter_mut() {
            if place.embedded && META_FIELDS.contains(&name.as_str()) {
                if name == "metadata" && !place.root {
                    self.embedded_metadata(value);
                }
                continue;
            }
            let child = match node {
                None => Found::Unknown,
                Some(node) => find(node, name),
            };
            match child {
                Found::Kept => {}
                Found::Known(child) => {
                    if value.is_object() || value.is_array() {
                        self.push(name);
                        self.level(child, value, Place::below(child));
                        self.path.truncate(length);
                    }
                }
                Found::Unknown if place.keeps => {}
                Found::Unknown => unknown.push(name.clone()),
            }
        }
        for name in unknown {
            fields.remove(&name);
            if !(place.root && META_FIELDS.contains(&name.as_str())) {
                self.record(&name);
            }
        }
    }

    /// The metadata of an embedded resource has the fields of all metadata.
    fn embedded_metadata(&mut self, value: &mut Value) {
        let Some(fields) = value.as_object_mut() else { return };
        let length = self.path.len();
        self.push("metadata");
        let unknown: Vec<String> =
            fields.keys().filter(|name| !OBJECT_META_FIELDS.contains(&name.as_str())).cloned().collect();
        for name in unknown {
            fields.remove(&name);
            self.record(&name);
        }
        self.path.truncate(length);
    }

    fn push(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(name);
    }

    fn record(&mut self, name: &str) {
        let length = self.path.len();
        self.push(name);
        self.removed.push(self.path.clone());
        self.path.truncate(length);
    }
}

enum Found<'a> {
    Kept,
    Known(Option<&'a Node>),
    Unknown,
}

fn find<'a>(node: &'a Node, name: &str) -> Found<'a> {
    if let Some(child) = node.property(name) {
        return Found::Known(Some(child));
    }
    match &node.additional {
        Additional::Schema(child) => Found::Known(Some(child)),
        // Any value is allowed here, but without a schema: all fields in it are removed.
        _ if node.has_additional() => Found::Known(None),
        _ if node.preserve_unknown_fields => Found::Kept,
        _ => Found::Unknown,
    }
}

impl Place {
    fn below(node: Option<&Node>) -> Place {
        Place { embedded: node.is_some_and(|node| node.embedded_resource), root: false, keeps: false }
    }
}
