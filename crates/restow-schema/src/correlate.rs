//! Which part of an old object corresponds to a part of the new one, and whether the two are equal.
//!
//! Rules that an unchanged part breaks are not held against an update. Fields correspond by name and items of a list of
//! type `map` by their keys; items of other lists do not correspond, so there a list is changed or not as a whole.

use serde_json::{Map, Value};

use crate::node::{ListType, Node};

/// A value with the old value that corresponds to it and the schema of both.
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

    /// The same for an item.
    pub(crate) fn item(self, index: usize) -> Option<Correlated<'a>> {
        let new = self.new.as_array()?.get(index)?;
        let old = matching_item(&self.schema.list_type, new, self.old.as_array()?)?;
        Some(Correlated { schema: self.schema.items.as_deref()?, new, old })
    }

    /// Whether nothing has changed; the order of lists of type `map` does not matter.
    pub(crate) fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) => {
                if new == old {
                    return true;
                }
                new.len() == old.len()
                    && matches!(self.schema.list_type, ListType::Map(_))
                    && (0..new.len()).all(|index| self.item(index).is_some_and(Correlated::is_unchanged))
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

/// The item of an old list with the same keys.
pub(crate) fn matching_item<'a>(list_type: &ListType, item: &Value, old: &'a [Value]) -> Option<&'a Value> {
    let ListType::Map(keys) = list_type else { return None };
    let item = item.as_object()?;
    old.iter().find(|candidate| candidate.as_object().is_some_and(|candidate| same_keys(keys, item, candidate)))
}

fn same_keys(keys: &[Box<str>], left: &Map<String, Value>, right: &Map<String, Value>) -> bool {
    keys.iter().all(|key| left.get(key.as_ref()) == right.get(key.as_ref()))
}
