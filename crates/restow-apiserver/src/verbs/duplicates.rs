//! Finding fields that occur twice in JSON, which a parser passes over.

use crate::types::FieldProblem;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// The most that are told.
const MOST: usize = 100;

/// Every field that occurs more than once in its object. What is not JSON has none; the parser will say so.
pub(super) fn duplicates(text: &[u8]) -> Vec<FieldProblem> {
    let mut found = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    // Whoever parses the text reports what is wrong with it.
    let _ = Walk { path: String::new(), found: &mut found }.deserialize(&mut deserializer);
    found
}

struct Walk<'a> {
    path: String,
    found: &'a mut Vec<FieldProblem>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let path = if self.path.is_empty() { name.clone() } else { format!("{}.{name}", self.path) };
            if !seen.insert(name) && self.found.len() < MOST {
                self.found.push(FieldProblem::Duplicate(path.clone()));
            }
            map.next_value_seed(Walk { path, found: &mut *self.found })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut number = 0;
        while items
            .next_element_seed(Walk { path: format!("{}[{number}]", self.path), found: &mut *self.found })?
            .is_some()
        {
            number += 1;
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        serde::Deserialize::deserialize(deserializer).map(|IgnoredAny| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_occur_twice_are_told_with_their_paths() {
        let text = br#"{"a": 1, "b": [{"c": null, "c": true}], "a": "x", "d": {"a": 1.5}}"#;
        let found: Vec<String> = duplicates(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["duplicate field \"b[0].c\"", "duplicate field \"a\""]);
        assert!(duplicates(b"{").is_empty());
    }
}
