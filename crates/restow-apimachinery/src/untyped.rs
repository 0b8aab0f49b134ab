//! Parses JSON without a type: its value, and the duplicate fields, which an ordinary parser ignores.
//!
//! Most clients, and this server, sort the fields of objects. Sorted fields need no search: they are collected in a
//! list, which becomes a map at the end.

use crate::field::FieldProblem;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// The maximum number of reported duplicates.
const MOST: usize = 100;

/// The value of a text, and all duplicate fields; the last one of each wins.
pub fn read(text: &[u8]) -> Result<(Value, Vec<FieldProblem>), serde_json::Error> {
    let mut found = Vec::new();
    let reader = Reader { place: Place::Root, found: &mut found, brief: false };
    let value = match std::str::from_utf8(text) {
        // Check UTF-8 once, and not again for each text in it.
        Ok(text) => reader.read(serde_json::Deserializer::from_str(text))?,
        Err(_) => reader.read(serde_json::Deserializer::from_slice(text))?,
    };
    Ok((value, found))
}

/// The value of a stored object without its managed fields. They are often half of it, and the callers do not need
/// them.
pub fn read_briefly(text: &[u8]) -> Result<Value, serde_json::Error> {
    let reader = Reader { place: Place::Root, found: &mut Vec::new(), brief: true };
    reader.read(serde_json::Deserializer::from_slice(text))
}

/// The fields of an object while it is parsed.
#[derive(Default)]
pub struct Fields {
    /// The sorted fields, as long as all are sorted.
    lined_up: Vec<(String, Value)>,
    /// All fields, after one was out of order.
    mixed: Map<String, Value>,
}

impl Fields {
    /// Whether there is a field of this name.
    pub fn contains(&self, name: &str) -> bool {
        match self.lined_up.last() {
            None => self.mixed.contains_key(name),
            Some((last, _)) if last.as_str() < name => false,
            Some(_) => self.lined_up.binary_search_by(|(known, _)| known.as_str().cmp(name)).is_ok(),
        }
    }

    /// Adds a field, or replaces the one with the same name.
    pub fn insert(&mut self, name: String, value: Value) {
        if self.mixed.is_empty() {
            if self.lined_up.last().is_none_or(|(last, _)| *last < name) {
                return self.lined_up.push((name, value));
            }
            self.mixed = std::mem::take(&mut self.lined_up).into_iter().collect();
        }
        self.mixed.insert(name, value);
    }

    /// All fields as a map.
    pub fn into_map(self) -> Map<String, Value> {
        if self.mixed.is_empty() { self.lined_up.into_iter().collect() } else { self.mixed }
    }
}

/// The path of a value. It is formatted only for a report.
#[derive(Clone, Copy)]
enum Place<'a> {
    Root,
    Field(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Root => Ok(()),
            Place::Field(Place::Root, name) => f.write_str(name),
            Place::Field(above, name) => write!(f, "{above}.{name}"),
            Place::Item(above, number) => write!(f, "{above}[{number}]"),
        }
    }
}

struct Reader<'a> {
    place: Place<'a>,
    found: &'a mut Vec<FieldProblem>,
    /// Whether managed fields are skipped.
    brief: bool,
}

impl Reader<'_> {
    fn read<'de, R: serde_json::de::Read<'de>>(
        self,
        mut deserializer: serde_json::Deserializer<R>,
    ) -> Result<Value, serde_json::Error> {
        let value = self.deserialize(&mut deserializer)?;
        deserializer.end()?;
        Ok(value)
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut fields = Fields::default();
        while let Some(name) = entries.next_key::<String>()? {
            let place = Place::Field(&self.place, &name);
            if fields.contains(&name) && self.found.len() < MOST {
                self.found.push(FieldProblem::Duplicate(place.to_string()));
            }
            if self.brief && name == "managedFields" && matches!(self.place, Place::Field(Place::Root, "metadata")) {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = entries.next_value_seed(Reader { place, found: &mut *self.found, brief: self.brief })?;
            fields.insert(name, value);
        }
        Ok(Value::Object(fields.into_map()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let place = Place::Item(&self.place, list.len());
            match items.next_element_seed(Reader { place, found: &mut *self.found, brief: self.brief })? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_fields_are_reported_with_their_paths() {
        let text = br#"{"a": 1, "b": [{"c": null, "c": true}], "a": "x", "d": {"a": 1.5}}"#;
        let (value, found) = read(text).unwrap();
        assert_eq!(value, serde_json::from_slice::<Value>(text).unwrap());
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["duplicate field \"b[0].c\"", "duplicate field \"a\""]);
    }

    #[test]
    fn fields_in_any_order_make_the_same_map() {
        for names in [vec!["a", "b", "c"], vec!["c", "a", "b", "a"], vec!["a", "a"], vec!["b", "c", "a", "c"], vec![]] {
            let (mut fields, mut expected) = (Fields::default(), Map::new());
            for (number, name) in names.iter().enumerate() {
                assert_eq!(fields.contains(name), expected.contains_key(*name), "{names:?}");
                fields.insert(name.to_string(), number.into());
                expected.insert(name.to_string(), number.into());
            }
            assert_eq!(fields.into_map(), expected, "{names:?}");
        }
    }

    #[test]
    fn json_is_accepted_and_refused_as_by_serde_json() {
        for text in ["{", "{}{}", "", "[1, -2, 1e400]", "[-1, 18446744073709551615, 1e3, null, \"\\u00e4\"]"] {
            let ours = read(text.as_bytes()).map(|(value, _)| value).map_err(|error| error.to_string());
            assert_eq!(ours, serde_json::from_str::<Value>(text).map_err(|error| error.to_string()), "{text}");
        }
    }
}
