//! Lists of type `set` and `map`: items must be unique.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::node::{Additional, ListType, Node};
use crate::path::Path;
use crate::problem::Problem;
use restow_apimachinery::go_syntax::write_json;

/// The errors for duplicate items.
pub(crate) fn check(node: &Node, value: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    if node.below.sets_or_maps {
        level(node, value, &Path::ROOT, &mut problems);
    }
    problems
}

fn level(node: &Node, value: &Value, path: &Path<'_>, problems: &mut Vec<Problem>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if let Some(child) = node.property(name) {
                    if child.below.sets_or_maps {
                        level(child, field, &path.field(name), problems);
                    }
                } else if let Additional::Schema(child) = &node.additional
                    && child.below.sets_or_maps
                {
                    level(child, field, &path.key(name), problems);
                }
            }
        }
        Value::Array(items) => {
            match &node.list_type {
                ListType::Atomic => {}
                ListType::Set => duplicates(items.iter().map(identity), |index| {
                    problems.push(Problem::duplicate(path.index(index).in_brackets(), items[index].clone()));
                }),
                ListType::Map(_) if items.iter().any(|item| !item.is_object() && !item.is_null()) => {
                    let wrong = items.iter().enumerate().find(|(_, item)| !item.is_object() && !item.is_null());
                    problems.extend(wrong.map(|(index, item)| {
                        let words = "must be an object for an array of list-type map";
                        Problem::invalid(path.index(index).in_brackets(), item.clone(), words)
                    }));
                }
                ListType::Map(keys) => duplicates(items.iter().map(|item| keys_of(keys, item)), |index| {
                    let shown: Map<String, Value> = keys
                        .iter()
                        .filter_map(|key| Some((key.to_string(), items[index].get(key.as_ref())?.clone())))
                        .collect();
                    problems.push(Problem::duplicate(path.index(index).in_brackets(), shown));
                }),
            }
            if let Some(item) = node.items.as_deref().filter(|item| item.below.sets_or_maps) {
                for (index, value) in items.iter().enumerate() {
                    level(item, value, &path.index(index), problems);
                }
            }
        }
        _ => {}
    }
}

fn duplicates(identities: impl Iterator<Item = String>, mut found: impl FnMut(usize)) {
    if identities.size_hint().0 <= 1 {
        return;
    }
    let mut times: HashMap<String, usize> = HashMap::new();
    for (index, identity) in identities.enumerate() {
        let times = times.entry(identity).or_default();
        *times += 1;
        // Only the second occurrence is reported.
        if *times == 2 {
            found(index);
        }
    }
}

fn identity(value: &Value) -> String {
    match value {
        // A whole float and the same integer are different keys in Kubernetes.
        Value::Number(number) if !number.is_i64() => format!("float {number}"),
        other => {
            let mut text = String::new();
            write_json(other, &mut text);
            text
        }
    }
}

/// The keys of an item of a list of type `map`, as text.
pub(crate) fn keys_of(keys: &[Box<str>], item: &Value) -> String {
    keys.iter().map(|key| item.get(key.as_ref()).map_or("-".to_string(), identity) + "\u{0}").collect()
}
