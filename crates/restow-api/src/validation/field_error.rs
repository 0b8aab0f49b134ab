//! One complaint about one field.

use std::fmt;

/// A field that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {}", self.body())]
pub struct FieldError {
    /// The kind of complaint.
    pub kind: FieldErrorKind,
    /// The path of the field: `status.storageVersions[1].apiServerID`.
    pub field: String,
    /// The value that was refused.
    pub bad_value: BadValue,
    /// The rule that it breaks.
    pub detail: String,
}

/// The kinds of complaints that our own validation makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// A value that breaks a rule.
    Invalid,
    /// A value that must occur once only.
    Duplicate,
    /// A value that is missing.
    Required,
}

/// A refused value, in a form that can be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadValue {
    /// There is no value, or showing it would not help.
    Absent,
    /// The field was not set though it should have been.
    Null,
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
}

impl FieldError {
    /// A complaint that a text breaks a rule.
    pub fn invalid(field: impl Into<String>, value: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Invalid, field, BadValue::Text(value.into()), detail)
    }

    /// A complaint that a list of texts breaks a rule.
    pub fn invalid_list(field: impl Into<String>, values: &[String], detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Invalid, field, BadValue::Texts(values.to_vec()), detail)
    }

    /// A complaint that a field is not set though a rule gives it a value.
    pub fn unset(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Invalid, field, BadValue::Null, detail)
    }

    /// A complaint that a text occurs twice.
    pub fn duplicate(field: impl Into<String>, value: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Duplicate, field, BadValue::Text(value.into()), "")
    }

    /// A complaint that a value is missing.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Required, field, BadValue::Absent, detail)
    }

    fn new(kind: FieldErrorKind, field: impl Into<String>, bad_value: BadValue, detail: impl Into<String>) -> Self {
        FieldError { kind, field: field.into(), bad_value, detail: detail.into() }
    }

    /// The complaint without the field, as in the causes of a `Status`.
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

/// Lists are shown in Go's syntax, because that is what Kubernetes' own message holds.
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
    fn complaints_read_as_those_of_kubernetes() {
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
