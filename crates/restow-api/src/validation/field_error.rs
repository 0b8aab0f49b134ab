//! A validation error of one field.

use std::fmt;

/// A validation error of a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {}", self.body())]
pub struct FieldError {
    /// The type of the error.
    pub kind: FieldErrorKind,
    /// The path of the field: `status.storageVersions[1].apiServerID`.
    pub field: String,
    /// The invalid value.
    pub bad_value: BadValue,
    /// The violated rule.
    pub detail: String,
}

/// The types of errors that our own validation reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// A value is invalid.
    Invalid,
    /// A value is a duplicate.
    Duplicate,
    /// A value is missing.
    Required,
}

/// An invalid value in a printable form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadValue {
    /// There is no value, or it would not help to show it.
    Absent,
    /// The field is not set.
    Null,
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
}

impl FieldError {
    /// The error for an invalid text.
    pub fn invalid(field: impl Into<String>, value: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Invalid, field, BadValue::Text(value.into()), detail)
    }

    /// The error for an invalid list of texts.
    pub fn invalid_list(field: impl Into<String>, values: &[String], detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Invalid, field, BadValue::Texts(values.to_vec()), detail)
    }

    /// The error for a field that is not set but must have a value.
    pub fn unset(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Invalid, field, BadValue::Null, detail)
    }

    /// The error for a duplicate text.
    pub fn duplicate(field: impl Into<String>, value: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Duplicate, field, BadValue::Text(value.into()), "")
    }

    /// The error for a missing value.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Required, field, BadValue::Absent, detail)
    }

    fn new(kind: FieldErrorKind, field: impl Into<String>, bad_value: BadValue, detail: impl Into<String>) -> Self {
        FieldError { kind, field: field.into(), bad_value, detail: detail.into() }
    }

    /// The message without the field, as in the causes of a `Status`.
    pub fn body(&self) -> String {
        let mut body = self.kind.to_string();
        if self.bad_value != BadValue::Absent {
            body.push_str(&format!(": {}", self.bad_value));
        }
        if !self.detail.is_empty() {
            body.push_str(&format!(": {}", self.detail));
        }
        body
    }
}

impl FieldErrorKind {
    /// The machine-readable reason, as in the causes of a `Status`.
    pub fn reason(self) -> &'static str {
        match self {
            FieldErrorKind::Invalid => "FieldValueInvalid",
            FieldErrorKind::Duplicate => "FieldValueDuplicate",
            FieldErrorKind::Required => "FieldValueRequired",
        }
    }
}

impl fmt::Display for FieldErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FieldErrorKind::Invalid => "Invalid value",
            FieldErrorKind::Duplicate => "Duplicate value",
            FieldErrorKind::Required => "Required value",
        })
    }
}

/// Lists are shown in Go's syntax, as in Kubernetes' messages.
impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadValue::Absent => Ok(()),
            BadValue::Null => f.write_str("\"null\""),
            BadValue::Text(text) => write!(f, "{text:?}"),
            BadValue::Texts(texts) if texts.is_empty() => f.write_str("[]string(nil)"),
            BadValue::Texts(texts) => {
                let quoted: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
                write!(f, "[]string{{{}}}", quoted.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_errors_have_the_messages_of_kubernetes() {
        let check = |error: FieldError, expected: &str| assert_eq!(error.to_string(), expected);
        check(FieldError::invalid("a.b", "x", "must be y"), r#"a.b: Invalid value: "x": must be y"#);
        check(FieldError::unset("a", "must be y"), r#"a: Invalid value: "null": must be y"#);
        check(FieldError::duplicate("a[1].id", "x"), r#"a[1].id: Duplicate value: "x""#);
        check(FieldError::required("a", "reason cannot be empty"), "a: Required value: reason cannot be empty");
        check(
            FieldError::invalid_list("a", &["v1".into(), "v2".into()], "too few"),
            r#"a: Invalid value: []string{"v1", "v2"}: too few"#,
        );
    }
}
