//! Values as Go writes them, with `%q`, with `%#v` and as JSON: Kubernetes' messages and objects hold them.

pub(crate) use restow_schema::go_text::quote;
use serde_json::{Number, Value};

/// A list of texts as Go's `%q` writes it: `["a" "b"]`.
pub(crate) fn quote_all<T: AsRef<str>>(texts: &[T]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quote(text.as_ref())).collect();
    format!("[{}]", quoted.join(" "))
}

/// A list of texts as Go's `%#v` writes it: `[]string{"a", "b"}`, or `[]string(nil)`.
pub(crate) fn literal<T: AsRef<str>>(texts: &[T]) -> String {
    if texts.is_empty() {
        return "[]string(nil)".into();
    }
    let quoted: Vec<String> = texts.iter().map(|text| quote(text.as_ref())).collect();
    format!("[]string{{{}}}", quoted.join(", "))
}

/// Several errors as one: alone as it is, many in brackets, each once.
pub(crate) fn aggregate(errors: &[String]) -> String {
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
    fn texts_are_quoted_as_go_does() {
        let check = |text: &str, expected: &str| assert_eq!(quote(text), expected);
        check("a b", r#""a b""#);
        check("a\"\\\n\t\u{0}\u{1b}é", r#""a\"\\\n\t\x00\x1bé""#);
        check("\u{85}", r#""\u0085""#);
        assert_eq!(quote_all(&["a", "b"]), r#"["a" "b"]"#);
        assert_eq!(quote_all::<&str>(&[]), "[]");
        assert_eq!(literal(&["a", "b"]), r#"[]string{"a", "b"}"#);
    }

    #[test]
    fn errors_are_joined_without_repeats() {
        assert_eq!(aggregate(&["a".into()]), "a");
        assert_eq!(aggregate(&["a".into(), "b".into(), "a".into()]), "[a, b]");
        assert_eq!(aggregate(&["a".into(), "a".into()]), "a");
    }
}
