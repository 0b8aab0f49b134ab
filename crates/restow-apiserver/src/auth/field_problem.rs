//! A field of a request that breaks a rule, in Kubernetes' words. The server puts these into its answers.

use serde_json::Value;
use std::fmt;

/// One broken rule.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldProblem {
    /// The path of the field: `spec.expirationSeconds`.
    pub field: String,
    /// What kind of rule.
    pub rule: BrokenRule,
    /// What the rule says.
    pub detail: String,
}

/// The kinds of rules that a review's field can break.
#[derive(Clone, Debug, PartialEq)]
pub enum BrokenRule {
    /// The value is not allowed.
    Invalid(Value),
    /// A value is needed and there is none.
    Required,
    /// There must not be a value.
    Forbidden,
}

impl FieldProblem {
    /// The value is not allowed.
    pub fn invalid(field: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        FieldProblem { field: field.into(), rule: BrokenRule::Invalid(value.into()), detail: detail.into() }
    }

    /// A value is needed.
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldProblem { field: field.into(), rule: BrokenRule::Required, detail: detail.into() }
    }

    /// There must not be a value.
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldProblem { field: field.into(), rule: BrokenRule::Forbidden, detail: detail.into() }
    }

    /// The complaint without the field, as in the causes of a `Status`.
    pub fn message(&self) -> String {
        match &self.rule {
            BrokenRule::Invalid(value) => format!("Invalid value: {value}: {}", self.detail),
            BrokenRule::Required => format!("Required value: {}", self.detail),
            BrokenRule::Forbidden => format!("Forbidden: {}", self.detail),
        }
    }

    /// The reason that a `Status` gives for this cause.
    pub fn reason(&self) -> &'static str {
        match self.rule {
            BrokenRule::Invalid(_) => "FieldValueInvalid",
            BrokenRule::Required => "FieldValueRequired",
            BrokenRule::Forbidden => "FieldValueForbidden",
        }
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message())
    }
}
