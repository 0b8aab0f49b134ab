//! Paths into objects: the dotted paths of scale subresources and selectable fields, and the JSONPath of printer columns.
//!
//! A printer column's path is the part of JSONPath that Kubernetes' own columns use: fields, quoted fields, indices,
//! slices, wildcards, `..` and filters that compare a field with a literal. Results are borrowed.

use serde_json::Value;

use crate::raw::Raw;

mod steps;

pub use steps::{JsonPath, JsonPathError};

/// The value at a dotted path such as `.spec.replicas`; `None` if it is absent.
pub fn lookup<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.strip_prefix('.').unwrap_or(path).split('.').try_fold(value, |value, name| value.get(name))
}

/// A mutable reference to the value at a dotted path; missing objects on the path are created.
pub fn lookup_mut<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut current = value;
    for name in path.strip_prefix('.').unwrap_or(path).split('.') {
        if current.is_null() {
            *current = Value::Object(serde_json::Map::new());
        }
        current = current.as_object_mut()?.entry(name).or_insert(Value::Null);
    }
    Some(current)
}

/// Whether `['name']` may be used in a field path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Brackets {
    /// Allowed, in a rule's `fieldPath`.
    Allowed,
    /// Refused, in selectable fields.
    Refused,
}

/// Checks that a path names a field of a schema. Returns the path for messages, and the field's schema.
pub(crate) fn field_path<'a>(path: &str, schema: Raw<'a>, brackets: Brackets) -> Result<(String, Raw<'a>), String> {
    let mut current = schema;
    let mut shown = String::new();
    let mut rest = path;
    while !rest.is_empty() {
        let name;
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[', ']']).unwrap_or(after.len());
            if end == 0 && after.is_empty() {
                return Err("unexpected end of JSON path".to_string());
            }
            // As in Kubernetes, a separator in the position of a name counts as the name.
            let end = end.max(after.chars().next().map_or(0, char::len_utf8));
            let (found, after) = after.split_at(end);
            name = found.to_string();
            rest = after;
        } else if let Some(after) = rest.strip_prefix('[') {
            if brackets == Brackets::Refused {
                return Err("array notation is not allowed".to_string());
            }
            let (found, after) = quoted(after)?;
            name = found;
            rest = after;
        } else {
            let end = rest.find(['.', '[', ']']).unwrap_or(rest.len()).max(1);
            return Err(format!("expected [ or . but got: {}", rest.get(..end).unwrap_or(rest)));
        }
        let named = current.properties().next().is_some();
        current = match (named, current.additional_schema()) {
            (true, _) => current.property(&name).ok_or("does not refer to a valid field")?,
            (false, Some(schema)) => schema,
            (false, None) => return Err("does not refer to a valid field".to_string()),
        };
        if !named {
            shown.push_str(&format!("[{name}]"));
        } else {
            if !shown.is_empty() {
                shown.push('.');
            }
            shown.push_str(&name);
        }
    }
    Ok((shown, current))
}

/// A name in single quotes and the bracket after it.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let Some(body) = text.strip_prefix('\'') else {
        let end = text.find(['.', '[', ']']).unwrap_or(text.len());
        return Err(format!("expected single quoted string but got {}", text.get(..end.max(1)).unwrap_or(text)));
    };
    let mut name = String::new();
    let mut characters = body.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '\'' => {
                let after = body.get(index + 1..).unwrap_or_default();
                return match after.strip_prefix(']') {
                    Some(after) => Ok((name, after)),
                    None if after.is_empty() => Err("unexpected end of JSON path".to_string()),
                    None => Err(format!("expected ] but got {after}")),
                };
            }
            '\\' => match characters.next().map(|(_, escaped)| escaped) {
                Some('a') => name.push('\u{7}'),
                Some('b') => name.push('\u{8}'),
                Some('f') => name.push('\u{c}'),
                Some('n') => name.push('\n'),
                Some('r') => name.push('\r'),
                Some('t') => name.push('\t'),
                Some('v') => name.push('\u{b}'),
                Some(plain @ ('\'' | '\\')) => name.push(plain),
                other => return Err(format!("invalid string literal: invalid escape char \\{}", other.unwrap_or(' '))),
            },
            plain => name.push(plain),
        }
    }
    Err("unexpected end of JSON path".to_string())
}
