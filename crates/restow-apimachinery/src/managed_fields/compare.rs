//! The differences between two objects of one type.

use super::ownership::Node;
use super::set::{FieldSet, Member};
use crate::types::MergeRule;
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The differences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields that were added or changed.
    pub changed: FieldSet,
    /// Fields that were removed.
    pub removed: FieldSet,
}

impl Comparison {
    /// Whether nothing was changed or removed.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

/// Compares two objects.
pub fn compare(root: Node<'_>, old: &Map<String, Value>, new: &Map<String, Value>) -> Comparison {
    let mut found = Difference::default();
    found.fields(root, old, new);
    Comparison { changed: found.changed.below, removed: found.removed.below }
}

#[derive(Default)]
struct Difference {
    changed: Member,
    removed: Member,
}

impl Difference {
    /// The differences between two values that are not equal.
    fn between(node: Node<'_>, old: Option<&Value>, new: Option<&Value>) -> Self {
        let mut found = Difference::default();
        let rule = node.rule();
        let blank = |value: Option<&Value>| match value {
            None | Some(Value::Null) => true,
            Some(Value::Object(fields)) => fields.is_empty(),
            Some(Value::Array(items)) => items.is_empty(),
            Some(_) => false,
        };
        match (rule, old, new) {
            _ if blank(old) && blank(new) => found.whole(old, new),
            (MergeRule::Fields | MergeRule::ByForm, old, new) if form(old, new) == Form::Object => {
                found.fields(node, fields_of(old), fields_of(new));
                found.container(old, new);
            }
            (MergeRule::Items(keys), old, new) if form(old, new) == Form::List => {
                match (by_keys(&keys, node.item(), old), by_keys(&keys, node.item(), new)) {
                    (Some(old_items), Some(new_items)) => {
                        found.steps(&old_items, &new_items, |_| node.item());
                        found.container(old, new);
                    }
                    _ => found.whole(old, new),
                }
            }
            (MergeRule::Values, old, new) if form(old, new) == Form::List => {
                found.steps(&by_value(old), &by_value(new), |_| Node::Unknown);
                found.container(old, new);
            }
            _ => found.whole(old, new),
        }
        found
    }

    /// Compares a value that is owned as a whole.
    fn whole(&mut self, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (Some(_), None) => self.removed.own = true,
            (old, new) if old != new => self.changed.own = true,
            _ => {}
        }
    }

    /// The container of the items is owned by the manager that created it.
    fn container(&mut self, old: Option<&Value>, new: Option<&Value>) {
        self.changed.own |= old.is_none();
        self.removed.own |= new.is_none();
    }

    fn fields(&mut self, node: Node<'_>, old: &Map<String, Value>, new: &Map<String, Value>) {
        for (name, old, new) in pairs(old, new).filter(|(_, old, new)| old != new) {
            let found = Difference::between(node.field(name), old, new);
            self.below(["f:", name].concat(), found);
        }
    }

    fn steps<'a>(
        &mut self,
        old: &BTreeMap<String, &'a Value>,
        new: &BTreeMap<String, &'a Value>,
        node: impl Fn(&str) -> Node<'a>,
    ) {
        for (step, old, new) in pairs(old, new).filter(|(_, old, new)| old != new) {
            let found = Difference::between(node(step), old.copied(), new.copied());
            self.below(step.clone(), found);
        }
    }

    fn below(&mut self, step: String, found: Difference) {
        if !found.removed.is_empty() {
            self.removed.below.add(step.clone(), found.removed);
        }
        self.changed.below.add(step, found.changed);
    }
}

/// Iterates over two sorted maps: each key with its values in both.
fn pairs<'a, V: 'a>(
    old: impl IntoIterator<Item = (&'a String, &'a V)>,
    new: impl IntoIterator<Item = (&'a String, &'a V)>,
) -> impl Iterator<Item = (&'a String, Option<&'a V>, Option<&'a V>)> {
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    std::iter::from_fn(move || {
        let order = match (old.peek(), new.peek()) {
            (Some((one, _)), Some((other, _))) => one.cmp(other),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        let before = if order.is_le() { old.next() } else { None };
        let after = if order.is_ge() { new.next() } else { None };
        let name = before.or(after)?.0;
        Some((name, before.map(|(_, value)| value), after.map(|(_, value)| value)))
    })
}

#[derive(PartialEq, Eq)]
enum Form {
    Object,
    List,
    Other,
}

/// The type of two values, of which one may be absent or `null`.
fn form(old: Option<&Value>, new: Option<&Value>) -> Form {
    let one = |value: Option<&Value>| match value {
        None | Some(Value::Null) => None,
        Some(Value::Object(_)) => Some(Form::Object),
        Some(Value::Array(_)) => Some(Form::List),
        Some(_) => Some(Form::Other),
    };
    match (one(old), one(new)) {
        (Some(form), None) | (None, Some(form)) => form,
        (Some(old), Some(new)) if old == new => old,
        _ => Form::Other,
    }
}

static NO_FIELDS: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);

fn fields_of(value: Option<&Value>) -> &Map<String, Value> {
    value.and_then(Value::as_object).unwrap_or(&NO_FIELDS)
}

fn items_of(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The items by their keys; `None` if two have the same keys, or one has no keys.
fn by_keys<'a>(keys: &[String], item: Node<'_>, list: Option<&'a Value>) -> Option<BTreeMap<String, &'a Value>> {
    let mut found = BTreeMap::new();
    for value in items_of(list) {
        if found.insert(key_step(keys, item, value)?, value).is_some() {
            return None;
        }
    }
    Some(found)
}

/// The step to an item of a list with keys; `None` if it has none of the keys.
pub(super) fn key_step(keys: &[String], item: Node<'_>, value: &Value) -> Option<String> {
    let fields = value.as_object()?;
    let named = |key: &String| {
        let value = fields.get(key).cloned().or_else(|| item.key_default(key))?;
        Some((key.clone(), value))
    };
    let named: Map<String, Value> = keys.iter().filter_map(named).collect();
    (!named.is_empty()).then(|| format!("k:{}", Value::Object(named)))
}

fn by_value(list: Option<&Value>) -> BTreeMap<String, &Value> {
    items_of(list).iter().map(|item| (format!("v:{item}"), item)).collect()
}
