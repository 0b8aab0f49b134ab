//! How Go prints things, where Kubernetes' messages show it: quoted strings, and values of any kind.

use std::fmt::Write as _;

use serde_json::{Number, Value};

/// A string in quotes, as Go's `%q` writes it.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            control if control.is_control() => {
                let code = u32::from(control);
                let _ = if code < 0x80 { write!(quoted, "\\x{code:02x}") } else { write!(quoted, "\\u{code:04x}") };
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// A value as Go's `%v` writes it: `map[a:1 b:[x y]]`.
pub(crate) fn print(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(set) => set.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(print).collect::<Vec<_>>().join(" ")),
        Value::Object(entries) => {
            let mut parts: Vec<_> = entries.iter().collect();
            parts.sort_by_key(|(key, _)| *key);
            let parts: Vec<_> = parts.into_iter().map(|(key, value)| format!("{key}:{}", print(value))).collect();
            format!("map[{}]", parts.join(" "))
        }
    }
}

/// A floating-point number as Go writes it: whole numbers have no fraction.
pub(crate) fn float(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// The name of the Go type that holds a decoded JSON value.
pub(crate) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prints_as_go_does() {
        assert_eq!(quote("a\"b\n\u{1}é"), "\"a\\\"b\\n\\x01é\"");
        assert_eq!(print(&json!({"b": [1, "x", null], "a": {"c": true}})), "map[a:map[c:true] b:[1 x <nil>]]");
    }
}
