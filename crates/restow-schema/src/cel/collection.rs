//! Lists and maps that expressions make: how much they may hold, and finding values in them by hash.
//!
//! Values are shared, so a list of twice the same list takes no memory, and a hundred such steps make more parts than
//! anybody can walk through. A collection therefore counts all parts below it and how deep they lie, and has no more than
//! [`MOST_PARTS`] and [`DEEPEST`]: whatever walks through values recurses as deep as that and no deeper.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;

use super::eval::EvalError;
use super::value::Val;

/// The maximum number of values in a collection, with those of nested collections.
const MOST_PARTS: usize = 4_000_000;
/// The maximum nesting of values, not counting JSON.
const DEEPEST: usize = 200;

/// The number of values below a value, and their nesting.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    parts: usize,
    depth: usize,
}

impl Extent {
    fn of(value: &Val<'_>) -> Extent {
        let mut wraps = 1;
        let mut value = value;
        while let Val::Optional(Some(inner)) = value {
            value = inner;
            wraps += 1;
        }
        let inner = match value {
            Val::List(items) => items.extent,
            Val::Map(entries) => entries.extent,
            _ => Extent::default(),
        };
        Extent { parts: inner.parts.saturating_add(wraps), depth: inner.depth + wraps }
    }

    /// Adds values; an error if the limit is exceeded.
    fn with<'v, 'a: 'v>(self, added: impl IntoIterator<Item = &'v Val<'a>>) -> Result<Extent, EvalError> {
        let sum = added.into_iter().map(Extent::of).fold(self, |sum, added| Extent {
            parts: sum.parts.saturating_add(added.parts),
            depth: sum.depth.max(added.depth),
        });
        if sum.parts > MOST_PARTS || sum.depth > DEEPEST { Err(EvalError::CostExceeded) } else { Ok(sum) }
    }
}

/// Refuses a value that is nested too deeply. Optionals contain one value and have no check of their own.
pub(crate) fn shallow(value: Val<'_>) -> Result<Val<'_>, EvalError> {
    if matches!(value, Val::Optional(_)) {
        Extent::default().with([&value])?;
    }
    Ok(value)
}

/// The items of a list.
#[derive(Debug)]
pub(crate) struct ListItems<'a> {
    items: Vec<Val<'a>>,
    extent: Extent,
}

impl<'a> ListItems<'a> {
    pub(crate) fn new(items: Vec<Val<'a>>) -> Result<ListItems<'a>, EvalError> {
        let extent = Extent::default().with(&items)?;
        Ok(ListItems { items, extent })
    }
}

impl<'a> Deref for ListItems<'a> {
    type Target = [Val<'a>];

    fn deref(&self) -> &[Val<'a>] {
        &self.items
    }
}

/// The entries of a map, in the order of insertion.
#[derive(Debug, Default)]
pub(crate) struct Entries<'a> {
    keys: Members<'a>,
    values: Vec<Val<'a>>,
    extent: Extent,
}

impl<'a> Entries<'a> {
    /// Adds an entry. Returns whether the key is new.
    pub(crate) fn insert(&mut self, key: Val<'a>, value: Val<'a>) -> Result<bool, EvalError> {
        let extent = self.extent.with([&key, &value])?;
        if !self.keys.insert(key) {
            return Ok(false);
        }
        self.values.push(value);
        self.extent = extent;
        Ok(true)
    }

    pub(crate) fn get(&self, key: &Val<'a>) -> Option<&Val<'a>> {
        self.values.get(self.keys.position(key)?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Val<'a>, &Val<'a>)> {
        self.keys.values.iter().zip(&self.values)
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }
}

/// A set of values with lookup by hash.
#[derive(Debug, Default)]
pub(crate) struct Members<'a> {
    values: Vec<Val<'a>>,
    places: HashMap<u64, Vec<usize>>,
    hasher: RandomState,
}

impl<'a> Members<'a> {
    /// The set of these values.
    pub(crate) fn of(values: impl IntoIterator<Item = Val<'a>>) -> Members<'a> {
        let mut members = Members::default();
        for value in values {
            members.insert(value);
        }
        members
    }

    /// Adds a value. Returns whether it is new.
    pub(crate) fn insert(&mut self, value: Val<'a>) -> bool {
        let places = self.places.entry(hash(&self.hasher, &value)).or_default();
        let values = &self.values;
        if places.iter().filter_map(|place| values.get(*place)).any(|known| known.equals(&value)) {
            return false;
        }
        places.push(values.len());
        self.values.push(value);
        true
    }

    /// The position of a value in the set.
    pub(crate) fn position(&self, value: &Val<'a>) -> Option<usize> {
        let places = self.places.get(&hash(&self.hasher, value))?;
        places.iter().copied().find(|place| self.values.get(*place).is_some_and(|known| known.equals(value)))
    }

    pub(crate) fn contains(&self, value: &Val<'a>) -> bool {
        self.position(value).is_some()
    }

    /// The values, in the order of insertion.
    pub(crate) fn into_values(self) -> Vec<Val<'a>> {
        self.values
    }
}

/// A hash that is the same for equal values. It ignores the order of items, because some lists have no order.
fn hash(hasher: &RandomState, value: &Val<'_>) -> u64 {
    let sum = |hashes: &mut dyn Iterator<Item = u64>| hashes.fold(0, u64::wrapping_add);
    match value {
        Val::Bool(flag) => hasher.hash_one((1, flag)),
        Val::Int(number) => number_hash(hasher, *number as f64),
        Val::Uint(number) => number_hash(hasher, *number as f64),
        Val::Double(number) => number_hash(hasher, *number),
        Val::Text(text) => hasher.hash_one((3, text.as_str())),
        Val::Bytes(bytes) => hasher.hash_one((4, bytes)),
        Val::Duration(nanoseconds) => hasher.hash_one((5, nanoseconds)),
        Val::Timestamp(instant) => hasher.hash_one((6, instant)),
        Val::Type(name) => hasher.hash_one((7, name)),
        Val::Opaque(opaque) => hasher.hash_one((8, opaque.to_string())),
        Val::Optional(inner) => hasher.hash_one((9, inner.as_ref().map(|inner| hash(hasher, inner)))),
        other => match (other.items(), other.entries()) {
            (Some(items), _) => hasher.hash_one((10, sum(&mut items.iter().map(|item| hash(hasher, item))))),
            (_, Some(entries)) => {
                let entry =
                    |(key, value): &(Val<'_>, Val<'_>)| hasher.hash_one((hash(hasher, key), hash(hasher, value)));
                hasher.hash_one((11, sum(&mut entries.iter().map(entry))))
            }
            _ => hasher.hash_one(0),
        },
    }
}

/// The hash of a number. Numbers of all types are compared by value.
fn number_hash(hasher: &RandomState, number: f64) -> u64 {
    let number = if number == 0.0 { 0.0 } else { number };
    hasher.hash_one((2, number.to_bits()))
}
