//! Reading JSON into Rust types as Kubernetes reads it into Go types: a field that is missing or null has its empty value,
//! fields that the type does not have are ignored, and a field of another type is an error that names its path.
//!
//! Types that are read derive `Deserialize` with `#[serde(default)]`. Nulls are not seen through `#[serde(flatten)]`.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserialize, Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde_json::{Error, Value};

/// A field has another type than its kind says.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct WrongType(String);

/// Reads a value.
pub fn read<'de, T: Deserialize<'de>>(value: &'de Value) -> Result<T, WrongType> {
    serde_path_to_error::deserialize(Lenient(value)).map_err(|error| WrongType(error.to_string()))
}

/// A value whose nulls are empty objects and lists, and whose fields that are null are missing. A null among the items of a
/// list of strings, or among the values of a map of strings, is an error: as an empty string it could mean something.
struct Lenient<'de>(&'de Value);

impl<'de> IntoDeserializer<'de, Error> for Lenient<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Lenient<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let items = match self.0 {
            Value::Array(items) => items.as_slice(),
            Value::Null => &[],
            other => return other.deserialize_any(visitor),
        };
        visitor.visit_seq(SeqDeserializer::new(items.iter().map(Lenient)))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.visit_entries(visitor, |_| true)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.visit_entries(visitor, |value| !value.is_null())
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct identifier ignored_any
    }
}

impl<'de> Lenient<'de> {
    fn visit_entries<V: Visitor<'de>>(self, visitor: V, counts: fn(&Value) -> bool) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(_) | Value::Null => {
                let entries = self.0.as_object().into_iter().flatten().filter(|(_, value)| counts(value));
                visitor.visit_map(MapDeserializer::new(entries.map(|(key, value)| (key.as_str(), Lenient(value)))))
            }
            // Serde would take the items for the fields, in their order.
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            other => other.deserialize_any(visitor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Outer {
        text: String,
        number: Option<i64>,
        list_of_texts: Vec<String>,
        items: Vec<Outer>,
        inner: Option<Box<Outer>>,
        map: BTreeMap<String, String>,
        lists: BTreeMap<String, Vec<String>>,
        word: Word,
        anything: Value,
    }

    #[derive(Clone, Copy, Debug, Default, PartialEq, serde::Deserialize)]
    enum Word {
        Known,
        #[default]
        #[serde(other)]
        Other,
    }

    #[test]
    fn missing_fields_and_nulls_are_empty() {
        let check = |value: Value, expected: Outer| assert_eq!(read::<Outer>(&value), Ok(expected), "{value}");
        let empty = Outer::default;
        check(json!(null), empty());
        check(json!({"unknown": 1}), empty());
        let nulls = json!({"text": null, "number": null, "listOfTexts": null, "items": null, "inner": null, "map": null,
            "lists": null, "word": null, "anything": null});
        check(nulls.clone(), empty());
        check(json!({"items": [null, nulls]}), Outer { items: vec![empty(), empty()], ..empty() });
        check(json!({"lists": {"a": null}}), Outer { lists: [("a".into(), Vec::new())].into(), ..empty() });
        check(
            json!({"inner": {"text": "a"}}),
            Outer { inner: Some(Box::new(Outer { text: "a".into(), ..empty() })), ..empty() },
        );
        check(json!({"word": "Known", "number": 1}), Outer { word: Word::Known, number: Some(1), ..empty() });
        check(json!({"word": "new"}), empty());
        check(json!({"anything": {"a": [null]}}), Outer { anything: json!({"a": [null]}), ..empty() });
    }

    #[test]
    fn errors_name_the_path() {
        let check = |value: Value, path: &str| {
            let error = read::<Outer>(&value).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{path}: invalid type: ")), "{value}: {error}");
        };
        check(json!({"text": 1}), "text");
        check(json!({"number": "1"}), "number");
        check(json!({"word": 1}), "word");
        check(json!({"items": [{}, {"listOfTexts": ["a", 1]}]}), "items[1].listOfTexts[1]");
        check(json!({"listOfTexts": [null]}), "listOfTexts[0]");
        check(json!({"listOfTexts": "a"}), "listOfTexts");
        check(json!({"map": {"a": null}}), "map.a");
        check(json!({"items": [["a"]]}), "items[0]");
        check(json!({"inner": {"items": {}}}), "inner.items");
    }
}
