//! Reading fields of JSON objects: a field that is missing or null has its empty value, as in Kubernetes, and a field
//! of another type is an error that names it.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use thiserror::Error;

/// A field holds another type than its kind says.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field} is not {expected}")]
pub struct WrongType {
    field: String,
    expected: &'static str,
}

impl WrongType {
    fn new(field: &str, expected: &'static str) -> Self {
        WrongType { field: field.into(), expected }
    }

    /// The same complaint about a field further out.
    pub fn within(self, outer: &str) -> Self {
        WrongType { field: format!("{outer}.{}", self.field), expected: self.expected }
    }
}

/// The text in the field; empty when there is none.
pub fn text<'a>(object: &'a Value, field: &str) -> Result<&'a str, WrongType> {
    match present(object, field) {
        None => Ok(""),
        Some(value) => value.as_str().ok_or_else(|| WrongType::new(field, "a string")),
    }
}

/// The whole number in the field.
pub fn integer(object: &Value, field: &str) -> Result<Option<i64>, WrongType> {
    match present(object, field) {
        None => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| WrongType::new(field, "an integer")),
    }
}

/// The items in the field; none when there is none.
pub fn items<'a>(object: &'a Value, field: &str) -> Result<&'a [Value], WrongType> {
    match present(object, field) {
        None => Ok(&[]),
        Some(value) => value.as_array().map(Vec::as_slice).ok_or_else(|| WrongType::new(field, "a list")),
    }
}

/// The list of texts in the field; empty when there is none.
pub fn texts(object: &Value, field: &str) -> Result<Vec<String>, WrongType> {
    let texts: Option<Vec<String>> = items(object, field)?.iter().map(|item| item.as_str().map(String::from)).collect();
    texts.ok_or_else(|| WrongType::new(field, "a list of strings"))
}

/// The object in the field.
pub fn object<'a>(object: &'a Value, field: &str) -> Result<Option<&'a Value>, WrongType> {
    match present(object, field) {
        None => Ok(None),
        Some(value) if value.is_object() => Ok(Some(value)),
        Some(_) => Err(WrongType::new(field, "an object")),
    }
}

/// The map from texts to texts in the field; empty when there is none.
pub fn text_map(outer: &Value, field: &str) -> Result<BTreeMap<String, String>, WrongType> {
    let entries = object(outer, field)?.and_then(Value::as_object).into_iter().flatten();
    let texts: Option<_> = entries.map(|(key, value)| value.as_str().map(|text| (key.clone(), text.into()))).collect();
    texts.ok_or_else(|| WrongType::new(field, "a map of strings"))
}

/// The map from texts to lists of texts in the field; empty when there is none.
pub fn texts_map(outer: &Value, field: &str) -> Result<BTreeMap<String, Vec<String>>, WrongType> {
    let Some(map) = object(outer, field)? else { return Ok(BTreeMap::new()) };
    let keys = map.as_object().into_iter().flat_map(Map::keys);
    keys.map(|key| texts(map, key).map(|texts| (key.clone(), texts)))
        .collect::<Result<_, _>>()
        .map_err(|e| e.within(field))
}

fn present<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get(field).filter(|value| !value.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_fields_are_empty_and_wrong_ones_are_named() {
        let value =
            json!({"text": "a", "number": 1, "list": ["a"], "mixed": ["a", 1], "null": null, "map": {"a": ["b"]}});
        assert_eq!(text(&value, "text"), Ok("a"));
        assert_eq!(text(&value, "null"), Ok(""));
        assert_eq!(text(&value, "missing"), Ok(""));
        assert_eq!(integer(&value, "number"), Ok(Some(1)));
        assert_eq!(texts(&value, "list"), Ok(vec!["a".into()]));
        assert_eq!(texts_map(&value, "map"), Ok([("a".into(), vec!["b".into()])].into()));
        let complaint = |error: WrongType| error.to_string();
        assert_eq!(text(&value, "number").map_err(complaint), Err("number is not a string".into()));
        assert_eq!(texts(&value, "mixed").map_err(complaint), Err("mixed is not a list of strings".into()));
        assert_eq!(texts_map(&json!({"m": {"a": 1}}), "m").map_err(complaint), Err("m.a is not a list".into()));
        assert_eq!(object(&value, "list").map_err(complaint), Err("list is not an object".into()));
        assert_eq!(text_map(&json!({"m": {"a": 1}}), "m").map_err(complaint), Err("m is not a map of strings".into()));
    }
}
