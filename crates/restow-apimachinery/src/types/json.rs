//! Reading an object's JSON the way a Go server reads it into a struct: which fields do not exist, which occur twice,
//! which hold the wrong type, and what remains.
//!
//! Unknown fields are dropped and reported; what the caller does with the report is `fieldValidation`. A value of the
//! wrong type makes the whole object undecodable, and the message is the one that Kubernetes gives.

mod special;
#[cfg(test)]
mod tests;
mod walk;

use std::fmt;

use serde_json::Value;

use super::table::{TypeId, TypeTable};
use crate::go_syntax::quote;
use walk::Walker;

/// How deep an object may be nested; the same as for text.
const MAXIMUM_DEPTH: usize = 128;

/// Something that is wrong with an object's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldProblem {
    /// A field that the type does not have; the path is written as Kubernetes writes it, `spec.containers[0].foo`.
    Unknown(String),
    /// A field that occurs more than once.
    Duplicate(String),
    /// A value that the field cannot hold, in the words of Go's decoder. The object cannot be decoded at all.
    Undecodable(String),
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldProblem::Unknown(path) => write!(formatter, "unknown field {}", quote(path)),
            FieldProblem::Duplicate(path) => write!(formatter, "duplicate field {}", quote(path)),
            FieldProblem::Undecodable(message) => formatter.write_str(message),
        }
    }
}

/// An object that could be decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The object as a Go server would write it back: known fields only, unset fields filled in or left out by their
    /// tags, times and quantities in their usual form.
    pub value: Value,
    /// Unknown and duplicate fields, in the order in which they occur; at most 100.
    pub problems: Vec<FieldProblem>,
}

/// Why an object's JSON could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text is not JSON, or is nested too deeply.
    #[error("{0}")]
    Syntax(serde_json::Error),
    /// A value has the wrong type; the message is the one that Kubernetes gives.
    #[error("{0}")]
    Type(String),
    /// The value is nested more deeply than any text that is read may be, which patches can bring about.
    #[error("exceeded max depth")]
    TooDeep,
}

/// Decodes an object of a known kind from JSON text.
///
/// # Errors
/// The text is not JSON, or some value does not fit its field.
pub fn decode_json(kind: TypeId, text: &[u8]) -> Result<Decoded, JsonError> {
    let mut walker = Walker::new(TypeTable::shared());
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = walker.decode(kind, &mut deserializer).map_err(JsonError::Syntax)?;
    deserializer.end().map_err(JsonError::Syntax)?;
    walker.into_decoded(value)
}

/// Does the same with JSON that has been read already, for instance the result of a patch.
///
/// # Errors
/// Some value does not fit its field, or the object is nested too deeply.
pub fn normalize(kind: TypeId, value: Value) -> Result<Decoded, JsonError> {
    if exceeds_depth(&value, MAXIMUM_DEPTH) {
        return Err(JsonError::TooDeep);
    }
    let mut walker = Walker::new(TypeTable::shared());
    let value = walker.decode(kind, value).map_err(JsonError::Syntax)?;
    walker.into_decoded(value)
}

/// Everything that is wrong with an object's fields. If it cannot be decoded, that is the only problem reported.
pub fn check_fields(kind: TypeId, value: &Value) -> Vec<FieldProblem> {
    match normalize(kind, value.clone()) {
        Ok(decoded) => decoded.problems,
        Err(error) => vec![FieldProblem::Undecodable(error.to_string())],
    }
}

/// The message with which strict field validation refuses an object; `None` if there is nothing to refuse.
pub fn strict_decoding_error(problems: &[FieldProblem]) -> Option<String> {
    let list: Vec<_> = problems.iter().map(ToString::to_string).collect();
    (!list.is_empty()).then(|| format!("strict decoding error: {}", list.join(", ")))
}

/// Whether a value is nested more deeply than so many levels.
pub fn exceeds_depth(value: &Value, levels: usize) -> bool {
    match value {
        Value::Object(entries) => levels == 0 || entries.values().any(|value| exceeds_depth(value, levels - 1)),
        Value::Array(items) => levels == 0 || items.iter().any(|value| exceeds_depth(value, levels - 1)),
        _ => false,
    }
}
