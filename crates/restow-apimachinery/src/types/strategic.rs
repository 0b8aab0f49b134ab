//! Strategic merge patches: merge patches that know which lists are sets of named things.
//!
//! A plain merge patch replaces lists. Here, a list whose type says so is merged item by item: by the value of a key field
//! when its items are objects, as a set when they are not. Directives, which are fields that begin with `$`, say where a
//! patch means something else.
//!
//! | directive | meaning |
//! |---|---|
//! | `$patch: replace` | this object, or the list that this item stands in, replaces what was there |
//! | `$patch: delete` | the object, or the item with this key, goes |
//! | `$deleteFromPrimitiveList/F` | these values go from the list `F` |
//! | `$setElementOrder/F` | the order of the items of `F` that the patch knows of |
//! | `$retainKeys` | of this object only these fields stay |

use super::table::Form;
use super::table::{FieldExtra, PatchStrategy, ShapeId, TypeId, TypeTable};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet, VecDeque};
use thiserror::Error;

/// A patch that cannot be applied.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PatchError {
    /// A directive is unknown or invalid.
    #[error("invalid directive {0}")]
    Directive(String),
    /// An item of a list that is merged by a key does not have that key.
    #[error("map: {item} does not contain declared merge key: {key}")]
    MissingKey {
        /// The item.
        item: String,
        /// The key.
        key: String,
    },
}

type Fields = Map<String, Value>;

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_VALUES: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Applies a patch to an object of a known kind.
///
/// # Errors
/// The patch has a directive that does not exist, or an item without its key.
pub fn strategic_merge_patch(kind: TypeId, original: &Value, patch: &Value) -> Result<Value, PatchError> {
    let original = original.as_object().cloned().unwrap_or_default();
    let patch = patch.as_object().cloned().unwrap_or_default();
    let patcher = Patcher { table: TypeTable::shared() };
    Ok(Value::Object(patcher.object(Some(Within::Struct(kind)), original, patch)?.unwrap_or_default()))
}

struct Patcher {
    table: &'static TypeTable,
}

/// The type of the fields of an object: those of a struct, or one type for all.
#[derive(Clone, Copy)]
enum Within {
    Struct(TypeId),
    Map(ShapeId),
}

/// The type of one field.
#[derive(Clone, Copy, Default)]
struct Known {
    shape: Option<ShapeId>,
    extra: FieldExtra,
}

impl Known {
    fn merges(&self) -> bool {
        self.extra.patch_strategy.is_some_and(PatchStrategy::merges)
    }

    fn replaces(&self) -> bool {
        self.extra.patch_strategy == Some(PatchStrategy::Replace)
    }
}

impl Patcher {
    /// The patched object; `None` when the patch deletes it.
    fn object(
        &self,
        within: Option<Within>,
        mut target: Fields,
        mut patch: Fields,
    ) -> Result<Option<Fields>, PatchError> {
        match patch.remove(PATCH).as_ref().map(|directive| directive.as_str().unwrap_or_default()) {
            None | Some("merge") => {}
            Some("delete") => return Ok(None),
            Some("replace") => return Ok(Some(without_directives(patch))),
            Some(other) => return Err(PatchError::Directive(format!("{PATCH}: {other}"))),
        }
        if let Some(kept) = patch.remove(RETAIN) {
            let kept = kept.as_array().ok_or_else(|| PatchError::Directive(RETAIN.into()))?;
            let kept: HashSet<&str> = kept.iter().filter_map(Value::as_str).collect();
            target.retain(|field, _| kept.contains(field.as_str()));
        }
        let mut orders = Fields::new();
        for directive in patch.keys().filter(|field| field.starts_with('$')).cloned().collect::<Vec<_>>() {
            let argument = patch.remove(&directive).unwrap_or_default();
            if let Some(field) = directive.strip_prefix(DELETE_VALUES) {
                remove_values(&mut target, field, &argument);
            } else if let Some(field) = directive.strip_prefix(ORDER) {
                orders.insert(field.to_string(), argument);
            } else {
                return Err(PatchError::Directive(directive));
            }
        }
        for (field, value) in patch {
            let known = self.field(within, &field);
            match self.value(known, target.remove(&field), value, orders.remove(&field).as_ref())? {
                Some(value) => target.insert(field, value),
                None => None,
            };
        }
        // An order without a patch of the list itself still sorts it.
        for (field, order) in orders {
            let known = self.field(within, &field);
            if let Some(Value::Array(items)) = target.remove(&field) {
                let items = self.list(known, items, Vec::new(), Some(&order))?;
                target.insert(field, Value::Array(items));
            }
        }
        Ok(Some(target))
    }

    fn value(
        &self,
        known: Known,
        old: Option<Value>,
        new: Value,
        order: Option<&Value>,
    ) -> Result<Option<Value>, PatchError> {
        match (old, new) {
            (_, Value::Null) => Ok(None),
            (old, Value::Object(patch)) if !known.replaces() => {
                let old = match old {
                    Some(Value::Object(fields)) => fields,
                    _ => Fields::new(),
                };
                Ok(self.object(self.within(known.shape), old, patch)?.map(Value::Object))
            }
            (old, Value::Array(patch)) if known.merges() => {
                let old = match old {
                    Some(Value::Array(items)) => items,
                    _ => Vec::new(),
                };
                Ok(Some(Value::Array(self.list(known, old, patch, order)?)))
            }
            (_, new) => Ok(Some(new)),
        }
    }

    fn list(
        &self,
        known: Known,
        old: Vec<Value>,
        patch: Vec<Value>,
        order: Option<&Value>,
    ) -> Result<Vec<Value>, PatchError> {
        let Some(key) = known.extra.merge_key else { return Ok(merge_values(old, patch, order)) };
        if patch.iter().any(|item| item.get(PATCH).is_some_and(|directive| directive == "replace")) {
            let kept = patch.into_iter().filter(|item| item.get(PATCH).is_none());
            return Ok(kept.collect());
        }
        let element = known.shape.and_then(|shape| match self.table.target_form(shape) {
            Form::List(element) | Form::WrappedList(element) => self.within(Some(element)),
            _ => None,
        });
        let places = Places::of(old.iter().filter_map(|item| item.get(key)));
        let mut named: HashMap<String, VecDeque<usize>> = HashMap::new();
        for (index, item) in old.iter().enumerate() {
            if let Some(name) = item.get(key) {
                named.entry(name.to_string()).or_default().push_back(index);
            }
        }
        let mut rest: Vec<Option<Value>> = old.into_iter().map(Some).collect();
        let mut touched = Vec::new();
        for item in patch {
            let Value::Object(item) = item else {
                return Err(PatchError::MissingKey { item: item.to_string(), key: key.into() });
            };
            let Some(name) = item.get(key).cloned() else {
                return Err(PatchError::MissingKey { item: Value::Object(item).to_string(), key: key.into() });
            };
            let place = named.get_mut(&name.to_string()).and_then(VecDeque::pop_front);
            let before = match place.and_then(|place| rest.get_mut(place)).and_then(Option::take) {
                Some(Value::Object(fields)) => fields,
                _ => Fields::new(),
            };
            if let Some(patched) = self.object(element, before, item)? {
                touched.push(Value::Object(patched));
            }
        }
        let wanted = match order.and_then(Value::as_array) {
            Some(order) => Places::of(order.iter().filter_map(|item| item.get(key))),
            None => Places::of(touched.iter().filter_map(|item| item.get(key))),
        };
        let all = touched.into_iter().chain(rest.into_iter().flatten()).collect();
        Ok(arrange(all, |item| item.get(key).unwrap_or(&Value::Null), &wanted, &places))
    }

    fn field(&self, within: Option<Within>, name: &str) -> Known {
        match within {
            None => Known::default(),
            Some(Within::Map(value)) => Known { shape: Some(value), extra: FieldExtra::default() },
            Some(Within::Struct(id)) => match self.table.field_by_name(id, name, &mut Vec::new()) {
                Some(field) => Known { shape: Some(field.shape), extra: self.table.extra(field) },
                None => Known::default(),
            },
        }
    }

    fn within(&self, shape: Option<ShapeId>) -> Option<Within> {
        match self.table.target_form(shape?) {
            Form::Struct(id) => Some(Within::Struct(id)),
            Form::Map(value) => Some(Within::Map(value)),
            _ => None,
        }
    }
}

/// Merges lists of plain values as sets.
fn merge_values(old: Vec<Value>, patch: Vec<Value>, order: Option<&Value>) -> Vec<Value> {
    let places = Places::of(&old);
    let mut all = old;
    let wanted = match order.and_then(Value::as_array) {
        Some(order) => Places::of(order),
        None => Places::of(&patch),
    };
    let known: HashSet<String> = all.iter().map(Value::to_string).collect();
    all.extend(patch.into_iter().filter(|value| !known.contains(&value.to_string())));
    arrange(all, |value| value, &wanted, &places)
}

/// The first positions of values in a list. Lists can be long, so they are not searched.
struct Places(HashMap<String, usize>);

impl Places {
    fn of<'a>(list: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut places = HashMap::new();
        for (place, value) in list.into_iter().enumerate() {
            places.entry(value.to_string()).or_insert(place);
        }
        Places(places)
    }

    fn get(&self, value: &Value) -> Option<usize> {
        self.0.get(&value.to_string()).copied()
    }
}

/// Sorts items: those in the patch in its order, the others in their old order. If both could come first, a new item
/// comes first.
fn arrange(items: Vec<Value>, name_of: impl Fn(&Value) -> &Value, wanted: &Places, places: &Places) -> Vec<Value> {
    let place = |list: &Places, item: &Value| list.get(name_of(item));
    let (mut first, second): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|item| place(wanted, item).is_some());
    first.sort_by_cached_key(|item| place(wanted, item));
    let mut others = second.into_iter().peekable();
    let mut arranged = Vec::with_capacity(first.len());
    for item in first {
        if let Some(own) = place(places, &item) {
            while let Some(other) = others.next_if(|other| place(places, other).is_some_and(|place| place < own)) {
                arranged.push(other);
            }
        }
        arranged.push(item);
    }
    arranged.extend(others);
    arranged
}

fn remove_values(target: &mut Fields, field: &str, values: &Value) {
    let values: HashSet<String> = values.as_array().into_iter().flatten().map(Value::to_string).collect();
    if let Some(Value::Array(items)) = target.get_mut(field) {
        items.retain(|item| !values.contains(&item.to_string()));
    }
}

/// Removes directives from an object that replaces another.
fn without_directives(fields: Fields) -> Fields {
    fields.into_iter().filter(|(field, value)| !field.starts_with('$') && !value.is_null()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(original: Value, patch: Value, expected: Value) {
        let pod = TypeTable::shared().kind("v1", "Pod").unwrap();
        assert_eq!(strategic_merge_patch(pod, &original, &patch), Ok(expected), "{patch}");
    }

    fn containers(items: Value) -> Value {
        json!({"spec": {"containers": items}})
    }

    #[test]
    fn lists_with_a_merge_key_are_merged_by_it() {
        let original = || containers(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]));
        check(
            original(),
            containers(json!([{"name": "b", "image": "3"}])),
            containers(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "3"}])),
        );
        check(
            original(),
            containers(json!([{"name": "c"}])),
            containers(json!([{"name": "c"}, {"name": "a", "image": "1"}, {"name": "b", "image": "2"}])),
        );
        check(
            original(),
            containers(json!([{"name": "a", "$patch": "delete"}])),
            containers(json!([{"name": "b", "image": "2"}])),
        );
        check(
            original(),
            containers(json!([{"$patch": "replace"}, {"name": "z"}])),
            containers(json!([{"name": "z"}])),
        );
        check(
            original(),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
            containers(json!([{"name": "b", "image": "2"}, {"name": "a", "image": "1"}])),
        );
    }

    #[test]
    fn sets_of_values_are_merged_and_other_lists_replaced() {
        let finalizers = |list: Value| json!({"metadata": {"finalizers": list}});
        check(finalizers(json!(["a", "b"])), finalizers(json!(["b", "c"])), finalizers(json!(["a", "b", "c"])));
        check(
            finalizers(json!(["a", "b"])),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
            finalizers(json!(["b"])),
        );
        let command = |list: Value| containers(json!([{"name": "a", "command": list}]));
        check(command(json!(["x", "y"])), command(json!(["z"])), command(json!(["z"])));
    }

    /// A quadratic merge takes minutes for lists of this length, and a linear one no time.
    #[test]
    fn long_lists_are_merged_without_searching_them() {
        const LENGTH: usize = 100_000;
        let names = |from: usize| (from..from + LENGTH).map(|number| format!("f{number}"));
        let finalizers = |from: usize| -> Value { names(from).map(Value::from).collect() };
        let items = |from: usize| -> Value { names(from).map(|name| json!({"name": name})).collect() };
        let pod = TypeTable::shared().kind("v1", "Pod").unwrap();
        let original = json!({"metadata": {"finalizers": finalizers(0)}, "spec": {"containers": items(0)}});
        let patch = json!({
            "metadata": {
                "finalizers": finalizers(LENGTH / 2), "$setElementOrder/finalizers": finalizers(LENGTH / 2),
                "$deleteFromPrimitiveList/finalizers": finalizers(0),
            },
            "spec": {"containers": items(LENGTH / 2), "$setElementOrder/containers": items(LENGTH / 2)},
        });
        let merged = strategic_merge_patch(pod, &original, &patch).unwrap();
        assert_eq!(merged["metadata"]["finalizers"], finalizers(LENGTH / 2));
        assert_eq!(merged["spec"]["containers"].as_array().map(Vec::len), Some(LENGTH + LENGTH / 2));
    }

    #[test]
    fn maps_are_merged_replaced_or_retained_by_directives() {
        let labels = |map: Value| json!({"metadata": {"labels": map}});
        check(
            labels(json!({"a": "1", "b": "2"})),
            labels(json!({"b": null, "c": "3"})),
            labels(json!({"a": "1", "c": "3"})),
        );
        check(labels(json!({"a": "1"})), labels(json!({"$patch": "replace", "c": "3"})), labels(json!({"c": "3"})));
        check(labels(json!({"a": "1"})), labels(json!({"$patch": "delete"})), json!({"metadata": {}}));
        check(
            labels(json!({"a": "1", "b": "2"})),
            labels(json!({"$retainKeys": ["b", "c"], "c": "3"})),
            labels(json!({"b": "2", "c": "3"})),
        );
    }

    #[test]
    fn invalid_strategic_merge_patches_are_refused() {
        let pod = TypeTable::shared().kind("v1", "Pod").unwrap();
        for patch in [
            containers(json!([{"image": "x"}])),
            containers(json!(["x"])),
            json!({"$patch": "explode"}),
            json!({"metadata": {"$unknown": 1}}),
            json!({"metadata": {"$retainKeys": 1}}),
        ] {
            assert!(strategic_merge_patch(pod, &json!({}), &patch).is_err(), "{patch}");
        }
    }
}
