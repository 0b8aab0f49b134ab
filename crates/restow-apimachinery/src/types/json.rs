//! Decodes an object's JSON as a Go server decodes it into a struct: finds fields that do not exist, duplicate fields
//! and wrong types.
//!
//! Unknown fields are dropped and reported; the caller treats them by `fieldValidation`. A value of the wrong type
//! makes the whole object undecodable; the message is that of Kubernetes.

mod special;
#[cfg(test)]
mod tests;
mod walk;

use serde_json::Value;

use super::table::{TypeId, TypeTable};
use crate::field::FieldProblem;
use walk::Walker;

/// The maximum nesting of an object; the same as for text.
const MAXIMUM_DEPTH: usize = 128;

/// A decoded object.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The object as a Go server would encode it: only known fields, unset fields with zero values or omitted by their
    /// tags, times and quantities in canonical form.
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
    /// A value has the wrong type; the message is that of Kubernetes.
    #[error("{0}")]
    Type(String),
    /// The value is nested too deeply. Patches can create such values.
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

/// All problems of an object's fields. If it cannot be decoded, that is the only problem.
pub fn check_fields(kind: TypeId, value: &Value) -> Vec<FieldProblem> {
    match normalize(kind, value.clone()) {
        Ok(decoded) => decoded.problems,
        Err(error) => vec![FieldProblem::Undecodable(error.to_string())],
    }
}

/// The message of strict field validation; `None` if there is no problem.
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
