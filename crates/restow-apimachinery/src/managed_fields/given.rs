//! What a request says about `metadata.managedFields` itself.

use serde_json::{Value, json};

/// What a client said about the entries themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// What the object has, or nothing.
    Object,
    /// They are to go.
    Reset,
    /// Nothing; a configuration was applied, after which they are these.
    Applied(Value),
}

impl Given {
    /// Reads it off a body as it was sent: an empty list, or a list of one empty entry, resets.
    pub fn of(sent: &Value) -> Given {
        let entries = sent.pointer("/metadata/managedFields").and_then(Value::as_array);
        match entries.map(Vec::as_slice) {
            Some([]) => Given::Reset,
            Some([only]) if *only == json!({}) => Given::Reset,
            _ => Given::Object,
        }
    }
}
