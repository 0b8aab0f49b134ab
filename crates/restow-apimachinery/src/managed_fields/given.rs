//! The `metadata.managedFields` in a request.

use serde_json::{Value, json};

/// The managed fields that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// Those in the object, if there are any.
    Object,
    /// The client resets them.
    Reset,
    /// None. A configuration was applied, with these as the result.
    Applied(Value),
}

impl Given {
    /// Parses a request body: an empty list, or a list of one empty entry, resets the managed fields.
    pub fn of(sent: &Value) -> Given {
        let entries = sent.pointer("/metadata/managedFields").and_then(Value::as_array);
        match entries.map(Vec::as_slice) {
            Some([]) => Given::Reset,
            Some([only]) if *only == json!({}) => Given::Reset,
            _ => Given::Object,
        }
    }
}
