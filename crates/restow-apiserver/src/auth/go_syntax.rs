//! Values as Go's `%q` and `%#v` write them, because Kubernetes' messages hold them and people search for those.

use std::fmt::Write;

/// A text as Go's `%q` writes it.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            // Writing to a text cannot fail.
            control if control.is_ascii_control() => _ = write!(quoted, "\\x{:02x}", u32::from(control)),
            control if control.is_control() => _ = write!(quoted, "\\u{:04x}", u32::from(control)),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

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
