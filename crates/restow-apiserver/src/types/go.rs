//! How Go prints things, where Kubernetes' messages show it: quoted strings and numbers.

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

/// A floating-point number as Go writes it: whole numbers have no fraction.
pub(crate) fn float(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn prints_as_go_does() {
        assert_eq!(quote("a\"b\n\u{1}é"), "\"a\\\"b\\n\\x01é\"");
    }
}
