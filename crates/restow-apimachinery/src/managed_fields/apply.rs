//! Server-side apply, without I/O: the fields of a configuration, merging it into an object, and removing fields that
//! it no longer contains.

use super::compare::key_step;
use super::ownership::Node;
use super::set::{FieldSet, Member};
use crate::types::MergeRule;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The fields of a configuration.
pub fn fields_of(root: Node<'_>, configuration: &Map<String, Value>) -> FieldSet {
    below_object(root, configuration)
}

/// The object with the configuration merged into it.
pub fn merged(root: Node<'_>, object: &Map<String, Value>, configuration: &Map<String, Value>) -> Map<String, Value> {
    let mut result = object.clone();
    for (name, value) in configuration {
        let before = result.get(name);
        let value = merged_value(root.field(name), before, value);
        result.insert(name.clone(), value);
    }
    result
}

/// The path of the first value in a configuration that is owned as a whole and so cannot be merged, if there is one.
pub fn atomic_in(node: Node<'_>, configuration: &Map<String, Value>) -> Option<String> {
    let atomic =
        |(name, value): (&String, &Value)| atomic_value(node.field(name), value).map(|path| format!(".{name}{path}"));
    configuration.iter().find_map(atomic)
}

fn atomic_value(node: Node<'_>, value: &Value) -> Option<String> {
    match (node.rule(), value) {
        (MergeRule::Fields | MergeRule::ByForm, Value::Object(fields)) => atomic_in(node, fields),
        (MergeRule::Items(_), Value::Array(items)) => {
            let atomic = |(index, item)| atomic_value(node.item(), item).map(|path| format!("[{index}]{path}"));
            items.iter().enumerate().find_map(atomic)
        }
        (MergeRule::Values, Value::Array(_)) => None,
        (_, Value::Array(_) | Value::Object(_)) => Some(String::new()),
        _ => None,
    }
}

/// Removes the fields in `before` from an object, except those that are kept.
pub fn remove(root: Node<'_>, object: &mut Map<String, Value>, before: &FieldSet, kept: &FieldSet) {
    for (step, member) in before.members() {
        let Some(name) = step.strip_prefix("f:") else { continue };
        match kept.get(step) {
            None => drop(object.remove(name)),
            Some(rest) => {
                if let Some(value) = object.get_mut(name) {
                    remove_below(root.field(name), value, &member.below, &rest.below);
                }
            }
        }
    }
}

/// The position of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stands {
    /// In a field of its type.
    InField,
    /// In a map, or in a list whose items have keys.
    AmongOthers,
}

fn member(node: Node<'_>, stands: Stands, value: &Value) -> Member {
    let below = match (node.rule(), value) {
        (MergeRule::Fields | MergeRule::ByForm, Value::Object(fields)) => below_object(node, fields),
        (MergeRule::Items(keys), Value::Array(items)) => below_items(&keys, node.item(), items),
        (MergeRule::Values, Value::Array(items)) => {
            let value = |item: &Value| (format!("v:{item}"), Member { own: true, ..Member::default() });
            FieldSet::of(items.iter().map(value).collect())
        }
        _ => FieldSet::default(),
    };
    Member { own: stands == Stands::AmongOthers || below.is_empty(), below }
}

fn below_object(node: Node<'_>, fields: &Map<String, Value>) -> FieldSet {
    let mut found = FieldSet::default();
    for (name, value) in fields {
        let stands = if node.declares(name) { Stands::InField } else { Stands::AmongOthers };
        found.add(["f:", name].concat(), member(node.field(name), stands, value));
    }
    found
}

fn below_items(keys: &[String], item: Node<'_>, items: &[Value]) -> FieldSet {
    let one = |value| Some((key_step(keys, item, value)?, member(item, Stands::AmongOthers, value)));
    FieldSet::of(items.iter().filter_map(one).collect())
}

fn merged_value(node: Node<'_>, before: Option<&Value>, wanted: &Value) -> Value {
    match (node.rule(), before, wanted) {
        (MergeRule::Fields | MergeRule::ByForm, Some(Value::Object(before)), Value::Object(wanted)) => {
            Value::Object(merged(node, before, wanted))
        }
        (MergeRule::Items(keys), Some(Value::Array(before)), Value::Array(wanted)) => {
            let step = |value: &Value| key_step(&keys, node.item(), value);
            interleaved(before, wanted, step, |before, wanted| merged_value(node.item(), Some(before), wanted))
        }
        (MergeRule::Values, Some(Value::Array(before)), Value::Array(wanted)) => {
            interleaved(before, wanted, |value| Some(value.to_string()), |_, wanted| wanted.clone())
        }
        _ => wanted.clone(),
    }
}

/// Merges two lists: items of both in the order of the configuration, the others in their position. Lists whose items
/// have no keys are replaced.
fn interleaved(
    before: &[Value],
    wanted: &[Value],
    step: impl Fn(&Value) -> Option<String>,
    join: impl Fn(&Value, &Value) -> Value,
) -> Value {
    let by_step = |items: &[Value]| -> BTreeMap<String, Value> {
        items.iter().filter_map(|item| Some((step(item)?, item.clone()))).collect()
    };
    let (known, asked) = (by_step(before), by_step(wanted));
    if known.len() != before.len() || asked.len() != wanted.len() {
        // Items without distinct keys cannot be merged.
        return Value::Array(wanted.to_vec());
    }
    let is_in = |set: &BTreeMap<String, Value>, item: &Value| step(item).is_some_and(|step| set.contains_key(&step));
    let (mut before, mut wanted) = (before.iter().peekable(), wanted.iter().peekable());
    let mut result = Vec::new();
    loop {
        if let Some(item) = before.next_if(|item| !is_in(&asked, item)) {
            result.push(item.clone());
        } else if let Some(item) = wanted.next() {
            match step(item).and_then(|step| known.get(&step)) {
                Some(old) => {
                    before.next();
                    result.push(join(old, item));
                }
                None => result.push(item.clone()),
            }
        } else if before.next().is_none() {
            return Value::Array(result);
        }
    }
}

fn remove_below(node: Node<'_>, value: &mut Value, before: &FieldSet, kept: &FieldSet) {
    match (node.rule(), value) {
        (MergeRule::Fields | MergeRule::ByForm, Value::Object(fields)) => remove(node, fields, before, kept),
        (MergeRule::Items(keys), Value::Array(items)) => items.retain_mut(|item| {
            let Some(step) = key_step(&keys, node.item(), item) else { return true };
            let Some(member) = before.get(&step) else { return true };
            let Some(rest) = kept.get(&step) else { return false };
            // The keys of an item stay while the item exists.
            let mut rest = rest.below.clone();
            keys.iter().for_each(|key| rest.add(format!("f:{key}"), Member { own: true, ..Member::default() }));
            remove_below(node.item(), item, &member.below, &rest);
            true
        }),
        (MergeRule::Values, Value::Array(items)) => items.retain(|item| {
            let step = format!("v:{item}");
            before.get(&step).is_none() || kept.get(&step).is_some()
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TypeTable;
    use serde_json::json;

    fn pod() -> Node<'static> {
        Node::Struct(TypeTable::shared().kind("v1", "Pod").unwrap())
    }

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn the_fields_of_a_configuration_are_its_leaves_and_list_items() {
        let configuration = object(json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["x/y"]}, "spec": {
            "nodeSelector": {}, "containers": [{"name": "c", "args": ["1"], "ports": [{"containerPort": 80}]}]}}));
        assert_eq!(
            fields_of(pod(), &configuration).into_value(),
            json!({
                "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {"v:\"x/y\"": {}}},
                "f:spec": {"f:nodeSelector": {}, "f:containers": {"k:{\"name\":\"c\"}": {
                    ".": {}, "f:name": {}, "f:args": {},
                    "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                }}},
            })
        );
    }

    #[test]
    fn configurations_are_merged_item_by_item() {
        let live = object(json!({"spec": {"containers": [
            {"name": "a", "image": "1"}, {"name": "b", "image": "1"}, {"name": "c", "image": "1"}]}}));
        let wanted = object(json!({"spec": {"containers": [
            {"name": "c", "image": "2"}, {"name": "new"}, {"name": "a", "tty": true}]}}));
        assert_eq!(
            Value::Object(merged(pod(), &live, &wanted))["spec"]["containers"],
            json!([{"name": "c", "image": "2"}, {"name": "b", "image": "1"}, {"name": "new"},
                {"name": "a", "image": "1", "tty": true}])
        );
    }

    #[test]
    fn fields_that_no_manager_applies_any_more_are_removed() {
        let mut live = object(json!({"metadata": {"name": "p", "labels": {"a": "1", "b": "2"}}, "spec": {
            "hostname": "h", "containers": [{"name": "c", "image": "i", "tty": true}, {"name": "d", "image": "i"}]}}));
        let before = object(json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"hostname": "h",
            "containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i"}]}}));
        let kept = object(json!({"metadata": {"labels": {"b": "2"}}, "spec": {"containers": [{"name": "c"}]}}));
        remove(pod(), &mut live, &fields_of(pod(), &before), &fields_of(pod(), &kept));
        assert_eq!(
            Value::Object(live),
            json!({"metadata": {"name": "p", "labels": {"b": "2"}}, "spec": {"containers": [{"name": "c", "tty": true}]}})
        );
    }
}
