//! Errors about single fields of an object, with Kubernetes' messages.

use crate::go_syntax::quote;
use std::fmt;

/// A validation error of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the field, as in `spec.containers[0].name`.
    pub field: String,
    /// The type of the error.
    pub rule: FieldRule,
    /// The rest of the message.
    pub detail: String,
}

/// The types of field errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldRule {
    /// A required value is missing.
    Required,
    /// The value (shown as JSON) breaks a rule.
    Invalid(String),
    /// The value is not of the right type.
    TypeInvalid(String),
    /// The value (shown as JSON) is not one of those supported.
    NotSupported(String),
    /// The value must not be set or changed.
    Forbidden,
    /// The value (shown as JSON) occurs twice.
    Duplicate(String),
    /// The value is too long; the limit is in the detail.
    TooLong,
    /// The list has too many items; the limit is in the detail.
    TooMany(String),
    /// The referenced object does not exist.
    NotFound(String),
    /// A validation error of a schema, with the reason of the cause; the detail is the whole message.
    Worded(&'static str),
}

impl FieldError {
    /// The field is required.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldError { field: field.into(), rule: FieldRule::Required, detail: detail.into() }
    }

    /// The field's value breaks a rule.
    pub fn invalid(field: impl Into<String>, value: &serde_json::Value, detail: impl Into<String>) -> Self {
        FieldError { field: field.into(), rule: FieldRule::Invalid(value.to_string()), detail: detail.into() }
    }

    /// The field must not be set.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldError { field: field.into(), rule: FieldRule::Forbidden, detail: detail.into() }
    }

    /// The field is immutable.
    pub fn immutable(field: impl Into<String>, value: &serde_json::Value) -> Self {
        Self::invalid(field, value, "field is immutable")
    }

    /// The reason of this cause in a `Status`.
    pub fn cause_reason(&self) -> &'static str {
        match self.rule {
            FieldRule::Required => "FieldValueRequired",
            FieldRule::Invalid(_) => "FieldValueInvalid",
            FieldRule::TypeInvalid(_) => "FieldValueTypeInvalid",
            FieldRule::NotSupported(_) => "FieldValueNotSupported",
            FieldRule::Forbidden => "FieldValueForbidden",
            FieldRule::Duplicate(_) => "FieldValueDuplicate",
            FieldRule::TooLong => "FieldValueTooLong",
            FieldRule::TooMany(_) => "FieldValueTooMany",
            FieldRule::NotFound(_) => "FieldValueNotFound",
            FieldRule::Worded(reason) => reason,
        }
    }

    /// The message without the field's path.
    pub fn cause_message(&self) -> String {
        if let FieldRule::Worded(_) = self.rule {
            return self.detail.clone();
        }
        let (rule, value) = match &self.rule {
            FieldRule::Required => ("Required value", None),
            FieldRule::Invalid(value) | FieldRule::TypeInvalid(value) => ("Invalid value", Some(value)),
            FieldRule::NotSupported(value) => ("Unsupported value", Some(value)),
            FieldRule::Forbidden => ("Forbidden", None),
            FieldRule::Duplicate(value) => ("Duplicate value", Some(value)),
            FieldRule::TooLong => ("Too long", None),
            FieldRule::TooMany(value) => ("Too many", Some(value)),
            FieldRule::NotFound(value) => ("Not found", Some(value)),
            FieldRule::Worded(_) => ("", None),
        };
        let mut message = rule.to_string();
        if let Some(value) = value {
            message.push_str(": ");
            message.push_str(value);
        }
        if !self.detail.is_empty() {
            message.push_str(": ");
            message.push_str(&self.detail);
        }
        message
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.cause_message())
    }
}

/// A problem of an object's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldProblem {
    /// A field that the type does not have, with its path in Kubernetes' format: `spec.containers[0].foo`.
    Unknown(String),
    /// A field that occurs more than once.
    Duplicate(String),
    /// A value of the wrong type, with the message of Go's decoder. The object cannot be decoded at all.
    Undecodable(String),
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldProblem::Unknown(path) => write!(formatter, "unknown field {}", quote(path)),
            FieldProblem::Duplicate(path) => write!(formatter, "duplicate field {}", quote(path)),
            FieldProblem::Undecodable(message) => formatter.write_str(message),
        }
    }
}
