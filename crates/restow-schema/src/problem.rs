//! Validation errors of a schema or an object, with Kubernetes' messages.

use std::fmt;

use serde_json::Value;

use restow_apimachinery::go_syntax;

/// A validation error of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The type of the error.
    pub kind: ProblemKind,
    /// The field, such as `spec.containers[0].name`; `<nil>` for the whole object.
    pub path: String,
    /// The invalid value, unless the message omits it.
    pub value: Option<Value>,
    /// The rest of the message; may be empty.
    pub detail: String,
}

/// The types of validation errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// A required value is missing.
    Required,
    /// The value is invalid.
    Invalid,
    /// The value has the wrong type.
    TypeInvalid,
    /// The value is not supported.
    NotSupported,
    /// The value must not be set or changed.
    Forbidden,
    /// The value is a duplicate.
    Duplicate,
    /// The value is too long.
    TooLong,
    /// There are too many items.
    TooMany,
    /// An internal error.
    Internal,
}

impl ProblemKind {
    /// The reason of such a cause in a `Status`.
    pub fn reason(self) -> &'static str {
        match self {
            ProblemKind::Required => "FieldValueRequired",
            ProblemKind::Invalid => "FieldValueInvalid",
            ProblemKind::TypeInvalid => "FieldValueTypeInvalid",
            ProblemKind::NotSupported => "FieldValueNotSupported",
            ProblemKind::Forbidden => "FieldValueForbidden",
            ProblemKind::Duplicate => "FieldValueDuplicate",
            ProblemKind::TooLong => "FieldValueTooLong",
            ProblemKind::TooMany => "FieldValueTooMany",
            ProblemKind::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            ProblemKind::Required => "Required value",
            ProblemKind::Invalid | ProblemKind::TypeInvalid => "Invalid value",
            ProblemKind::NotSupported => "Unsupported value",
            ProblemKind::Forbidden => "Forbidden",
            ProblemKind::Duplicate => "Duplicate value",
            ProblemKind::TooLong => "Too long",
            ProblemKind::TooMany => "Too many",
            ProblemKind::Internal => "Internal error",
        }
    }

    fn shows_value(self) -> bool {
        !matches!(self, ProblemKind::Required | ProblemKind::Forbidden | ProblemKind::TooLong | ProblemKind::Internal)
    }
}

impl Problem {
    /// A required value at `path` is missing.
    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::Required, path: path.into(), value: None, detail: detail.into() }
    }

    /// The value at `path` is invalid.
    pub fn invalid(path: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::Invalid, path: path.into(), value: Some(value.into()), detail: detail.into() }
    }

    /// The value at `path` is invalid, and too large or too secret for the message.
    pub fn invalid_omitted(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::Invalid, path: path.into(), value: None, detail: detail.into() }
    }

    /// The value at `path` has the wrong type.
    pub fn type_invalid(path: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::TypeInvalid, path: path.into(), value: Some(value.into()), detail: detail.into() }
    }

    /// A value at `path` is not allowed.
    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::Forbidden, path: path.into(), value: None, detail: detail.into() }
    }

    /// The value at `path` is a duplicate.
    pub fn duplicate(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Problem { kind: ProblemKind::Duplicate, path: path.into(), value: Some(value.into()), detail: String::new() }
    }

    /// The value at `path` is not one of `supported`.
    pub fn not_supported<'a>(
        path: impl Into<String>,
        value: impl Into<Value>,
        supported: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let quoted: Vec<String> = supported.into_iter().map(go_syntax::quote).collect();
        let detail = if quoted.is_empty() { String::new() } else { format!("supported values: {}", quoted.join(", ")) };
        Problem { kind: ProblemKind::NotSupported, path: path.into(), value: Some(value.into()), detail }
    }

    /// The text at `path` has more than `limit` bytes (Kubernetes' message says bytes in all cases).
    pub fn too_long(path: impl Into<String>, limit: i64) -> Self {
        let unit = if limit == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {limit} {unit}");
        Problem { kind: ProblemKind::TooLong, path: path.into(), value: None, detail }
    }

    /// There are `actual` items at `path`, and `limit` are allowed.
    pub fn too_many(path: impl Into<String>, actual: usize, limit: i64) -> Self {
        let unit = if limit == 1 { "item" } else { "items" };
        let detail = format!("must have at most {limit} {unit}");
        Problem { kind: ProblemKind::TooMany, path: path.into(), value: Some(actual.into()), detail }
    }

    /// An internal error.
    pub fn internal(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::Internal, path: path.into(), value: None, detail: detail.into() }
    }

    /// The message without the path, for a cause of a `Status`.
    pub fn body(&self) -> String {
        let mut text = self.kind.words().to_string();
        if let (true, Some(value)) = (self.kind.shows_value(), &self.value) {
            text.push_str(": ");
            text.push_str(&go_syntax::show(value));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}
