//! Values as Go prints them, with `%v`, `%q`, `%#v` and as JSON. Kubernetes' messages and objects contain them.

use std::fmt::Write;

use serde_json::{Number, Value};

/// A value in a message about a field.
pub fn show(value: &Value) -> String {
    match value {
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => show_number(number),
        Value::String(text) => quote(text),
        _ => {
            let mut text = String::new();
            write_json(value, &mut text);
            text
        }
    }
}

/// A number: integers plainly, others in Go's shortest form.
pub fn show_number(number: &Number) -> String {
    match number.as_i64() {
        Some(whole) => whole.to_string(),
        None => show_float(number.as_f64().unwrap_or(f64::NAN)),
    }
}

/// Go's `%v` of a float: the shortest digits, with an exponent below 1e-4 and from 1e6 on.
pub fn show_float(float: f64) -> String {
    float_text(float, -4, 6)
}

/// Go's JSON of a float, which uses an exponent only below 1e-6 and from 1e21 on.
fn json_float(float: f64) -> String {
    let text = float_text(float, -6, 21);
    // In JSON, Go writes a small exponent with one digit.
    match text.split_once("e-0") {
        Some((digits, exponent)) => format!("{digits}e-{exponent}"),
        None => text,
    }
}

fn float_text(float: f64, smallest: i32, largest: i32) -> String {
    if float.is_nan() {
        return "NaN".to_string();
    }
    if float.is_infinite() {
        return if float > 0.0 { "+Inf" } else { "-Inf" }.to_string();
    }
    if float == 0.0 {
        return if float.is_sign_negative() { "-0" } else { "0" }.to_string();
    }
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < smallest || exponent >= largest {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{float}")
}

/// Go's `%q` of a string.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            control if (control as u32) < 0x20 || control == '\u{7f}' => {
                let _ = write!(quoted, "\\x{:02x}", control as u32);
            }
            hidden if is_unprintable(hidden) => {
                let code = hidden as u32;
                let _ = if code < 0x10000 { write!(quoted, "\\u{code:04x}") } else { write!(quoted, "\\U{code:08x}") };
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

/// Characters beyond ASCII that Go does not print as themselves: controls, separators and other spaces, formats.
fn is_unprintable(character: char) -> bool {
    if character.is_ascii() {
        return false;
    }
    character.is_control()
        || character.is_whitespace()
        || matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}')
        || matches!(character, '\u{feff}' | '\u{e000}'..='\u{f8ff}' | '\u{fff9}'..='\u{fffb}')
}

/// JSON as Go marshals it: keys sorted, the characters of HTML escaped.
pub fn write_json(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => {
                let _ = write!(out, "{whole}");
            }
            None => out.push_str(&json_float(number.as_f64().unwrap_or(0.0))),
        },
        Value::String(text) => write_json_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_json(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by(|left, right| left.0.cmp(right.0));
            out.push('{');
            for (index, (key, field)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_json_string(key, out);
                out.push(':');
                write_json(field, out);
            }
            out.push('}');
        }
    }
}

fn write_json_string(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", character as u32);
            }
            control if (control as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", control as u32);
            }
            plain => out.push(plain),
        }
    }
    out.push('"');
}

/// A duration in Go's notation (`1h30m`, `-1.5s`), in nanoseconds.
pub fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let whole = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, after) = rest.split_at(whole);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(after.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", after),
        };
        if digits.is_empty() && fraction.is_empty() {
            return None;
        }
        let units = [
            ("ns", 1i128),
            ("us", 1_000),
            ("µs", 1_000),
            ("μs", 1_000),
            ("ms", 1_000_000),
            ("s", 1_000_000_000),
            ("m", 60_000_000_000),
            ("h", 3_600_000_000_000),
        ];
        let letters = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let (_, nanoseconds) = units.into_iter().find(|(name, _)| *name == unit)?;
        if !digits.is_empty() {
            total = total.checked_add(digits.parse::<i128>().ok()?.checked_mul(nanoseconds)?)?;
        }
        if let Some(fraction) = fraction.get(..fraction.len().min(18)).filter(|fraction| !fraction.is_empty()) {
            total =
                total.checked_add(fraction.parse::<i128>().ok()? * nanoseconds / 10i128.pow(fraction.len() as u32))?;
        }
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// A list of texts as Go's `%q` writes it: `["a" "b"]`.
pub fn quote_all<T: AsRef<str>>(texts: &[T]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quote(text.as_ref())).collect();
    format!("[{}]", quoted.join(" "))
}

/// A list of texts as Go's `%#v` writes it: `[]string{"a", "b"}`, or `[]string(nil)`.
pub fn literal<T: AsRef<str>>(texts: &[T]) -> String {
    if texts.is_empty() {
        return "[]string(nil)".into();
    }
    let quoted: Vec<String> = texts.iter().map(|text| quote(text.as_ref())).collect();
    format!("[]string{{{}}}", quoted.join(", "))
}

/// Aggregates errors: one as it is, several in brackets, without duplicates.
pub fn aggregate(errors: &[String]) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for error in errors {
        if !distinct.contains(&error.as_str()) {
            distinct.push(error);
        }
    }
    match distinct[..] {
        [one] => one.into(),
        _ => format!("[{}]", distinct.join(", ")),
    }
}

/// A floating-point number as Go writes it: whole numbers have no fraction.
pub fn float(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_printed_as_in_go() {
        let cases = [
            (json!(-1), "-1"),
            (json!(1.5), "1.5"),
            (json!(1e21), "1e+21"),
            (json!(0.00001), "1e-05"),
            (json!(100000.0), "100000"),
            (json!(18446744073709551615u64), "1.8446744073709552e+19"),
            (json!(1500000.5), "1.5000005e+06"),
            (json!("a\"b\u{7f}\u{200b}ü"), "\"a\\\"b\\x7f\\u200bü\""),
            (json!(true), "true"),
            (json!(null), "null"),
            (json!({"b": [1, "<x>"], "a": 1e-7}), "{\"a\":1e-7,\"b\":[1,\"\\u003cx\\u003e\"]}"),
        ];
        for (value, expected) in cases {
            assert_eq!(show(&value), expected, "{value}");
        }
    }

    #[test]
    fn texts_are_quoted_as_in_go() {
        let check = |text: &str, expected: &str| assert_eq!(quote(text), expected);
        check("a b", r#""a b""#);
        check("a\"\\\n\t\u{0}\u{1b}é", r#""a\"\\\n\t\x00\x1bé""#);
        check("\u{85}", r#""\u0085""#);
        assert_eq!(quote_all(&["a", "b"]), r#"["a" "b"]"#);
        assert_eq!(quote_all::<&str>(&[]), "[]");
        assert_eq!(literal(&["a", "b"]), r#"[]string{"a", "b"}"#);
    }

    #[test]
    fn errors_are_aggregated_without_duplicates() {
        assert_eq!(aggregate(&["a".into()]), "a");
        assert_eq!(aggregate(&["a".into(), "b".into(), "a".into()]), "[a, b]");
        assert_eq!(aggregate(&["a".into(), "a".into()]), "a");
    }
}
