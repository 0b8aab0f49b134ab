//! What is wrong with a schema or an object, worded as Kubernetes words it.

use std::fmt;

use serde_json::Value;

use restow_apimachinery::go_syntax;

/// One broken rule about one field.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// What kind of rule is broken.
    pub kind: ProblemKind,
    /// The field, as in `spec.containers[0].name`; `<nil>` where the rule refers to the whole object.
    pub path: String,
    /// The value that breaks the rule, unless it is left out of the message.
    pub value: Option<Value>,
    /// The rest of the message; may be empty.
    pub detail: String,
}

/// The kinds of rules that a field can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// A value is needed and there is none.
    Required,
    /// The value breaks a rule.
    Invalid,
    /// The value is not of the right type.
    TypeInvalid,
    /// The value is not one of those supported.
    NotSupported,
    /// The value must not be set or changed.
    Forbidden,
    /// The value occurs twice.
    Duplicate,
    /// The value is too long.
    TooLong,
    /// There are too many items.
    TooMany,
    /// The fault is not the client's.
    Internal,
}

impl ProblemKind {
    /// The reason that a `Status` gives for such a cause.
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
    /// A value is needed at `path`.
    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::Required, path: path.into(), value: None, detail: detail.into() }
    }

    /// The value at `path` breaks a rule.
    pub fn invalid(path: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::Invalid, path: path.into(), value: Some(value.into()), detail: detail.into() }
    }

    /// The value at `path` breaks a rule, and is too large or too secret to be repeated.
    pub fn invalid_omitted(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::Invalid, path: path.into(), value: None, detail: detail.into() }
    }

    /// The value at `path` is of the wrong type.
    pub fn type_invalid(path: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::TypeInvalid, path: path.into(), value: Some(value.into()), detail: detail.into() }
    }

    /// There must be no value at `path`.
    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::Forbidden, path: path.into(), value: None, detail: detail.into() }
    }

    /// The value at `path` was there already.
    pub fn duplicate(path: impl Into<String>, value: impl Into<Value>) -> Self {
        Problem { kind: ProblemKind::Duplicate, path: path.into(), value: Some(value.into()), detail: String::new() }
    }

    /// The value at `path` is none of `supported`.
    pub fn not_supported<'a>(
        path: impl Into<String>,
        value: impl Into<Value>,
        supported: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let quoted: Vec<String> = supported.into_iter().map(go_syntax::quote).collect();
        let detail = if quoted.is_empty() { String::new() } else { format!("supported values: {}", quoted.join(", ")) };
        Problem { kind: ProblemKind::NotSupported, path: path.into(), value: Some(value.into()), detail }
    }

    /// The text at `path` has more than `limit` bytes (Kubernetes says bytes, whatever it counted).
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

    /// Something went wrong that the client cannot mend.
    pub fn internal(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Problem { kind: ProblemKind::Internal, path: path.into(), value: None, detail: detail.into() }
    }

    /// The message without the path, as it stands in a cause of a `Status`.
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
