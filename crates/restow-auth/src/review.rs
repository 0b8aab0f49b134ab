//! The API kinds that ask who someone is and what they may do. Each function takes the object that was posted and
//! returns the object to answer with; nothing is stored.

mod self_subject;
mod subject_access;
mod subject_rules;
mod token;

#[cfg(test)]
mod tests;

pub use self_subject::self_subject_review;
pub use subject_access::{local_subject_access_review, self_subject_access_review, subject_access_review};
pub use subject_rules::self_subject_rules_review;
pub use token::token_review;

use restow_apimachinery::field::FieldError;
use restow_apimachinery::typed::WrongType;
use serde_json::Value;
use thiserror::Error;

/// A review that cannot be answered.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ReviewError {
    /// Fields break rules.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Invalid(Vec<FieldError>),
    /// The request makes no sense.
    #[error("{0}")]
    BadRequest(String),
}

impl From<WrongType> for ReviewError {
    fn from(error: WrongType) -> Self {
        ReviewError::BadRequest(error.to_string())
    }
}

/// The posted object, with this status.
fn with_status(request: &Value, status: Value) -> Value {
    let mut answer = request.clone();
    if let Some(fields) = answer.as_object_mut() {
        fields.insert("status".into(), status);
    }
    answer
}
