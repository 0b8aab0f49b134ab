//! Correlates parts of an old object with parts of the new one, and checks whether they are equal.
//!
//! Ratcheting: an update is not refused because an unchanged part is invalid. Fields correlate by name, and items of a
//! list of type `map` by their keys; items of other lists do not correlate, so such a list counts as changed or
//! unchanged as a whole.

use std::collections::HashMap;

use serde_json::Value;

use crate::list_type::keys_of;
use crate::node::{ListType, Node};

/// A value with its correlated old value and the schema of both.
#[derive(Clone, Copy)]
pub(crate) struct Correlated<'a> {
    pub(crate) schema: &'a Node,
    pub(crate) new: &'a Value,
    pub(crate) old: &'a Value,
}

impl<'a> Correlated<'a> {
    /// The same for a field.
    pub(crate) fn field(self, name: &str) -> Option<Correlated<'a>> {
        let new = self.new.as_object()?.get(name)?;
        let old = self.old.as_object()?.get(name)?;
        Some(Correlated { schema: self.schema.field(name)?, new, old })
    }

    /// The same for the items of a list; none correlates if the list is not of type `map`.
    pub(crate) fn items(self) -> OldItems<'a> {
        OldItems::new(self.schema, self.old.as_array().map(Vec::as_slice))
    }

    /// Whether nothing has changed; the order of lists of type `map` does not matter.
    pub(crate) fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) => {
                if new == old {
                    return true;
                }
                if new.len() != old.len() || !matches!(self.schema.list_type, ListType::Map(_)) {
                    return false;
                }
                let items = self.items();
                new.iter().all(|item| items.correlated(item).is_some_and(Correlated::is_unchanged))
            }
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len()
                    && new.iter().all(|(name, value)| match self.field(name) {
                        Some(child) => child.is_unchanged(),
                        None => self.schema.field(name).is_none() && old.get(name) == Some(value),
                    })
            }
            (new, old) => new == old,
        }
    }
}

/// The items of an old list, by their keys.
pub(crate) struct OldItems<'a> {
    schema: &'a Node,
    by_keys: HashMap<String, &'a Value>,
}

impl<'a> OldItems<'a> {
    /// The items of a list with this schema. Of several with the same keys, the first one is used.
    pub(crate) fn new(schema: &'a Node, old: Option<&'a [Value]>) -> OldItems<'a> {
        let mut by_keys = HashMap::new();
        if let ListType::Map(keys) = &schema.list_type {
            for item in old.unwrap_or_default().iter().filter(|item| item.is_object()) {
                by_keys.entry(keys_of(keys, item)).or_insert(item);
            }
        }
        OldItems { schema, by_keys }
    }

    /// The old item with the same keys.
    pub(crate) fn matching(&self, item: &Value) -> Option<&'a Value> {
        let ListType::Map(keys) = &self.schema.list_type else { return None };
        if !item.is_object() || self.by_keys.is_empty() {
            return None;
        }
        self.by_keys.get(&keys_of(keys, item)).copied()
    }

    /// An item with the old one with the same keys.
    pub(crate) fn correlated(&self, new: &'a Value) -> Option<Correlated<'a>> {
        Some(Correlated { schema: self.schema.items.as_deref()?, new, old: self.matching(new)? })
    }
}
