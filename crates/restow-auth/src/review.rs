//! Reviews: SubjectAccessReview and its variants, SelfSubjectReview, TokenReview. Each function takes the posted object and
//! returns the object of the response. Reviews are not stored.

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

/// Why a review is refused.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ReviewError {
    /// Fields are invalid.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Invalid(Vec<FieldError>),
    /// The request is malformed.
    #[error("{0}")]
    BadRequest(String),
}

impl From<WrongType> for ReviewError {
    fn from(error: WrongType) -> Self {
        ReviewError::BadRequest(error.to_string())
    }
}

/// The posted object with this status.
fn with_status(request: &Value, status: Value) -> Value {
    let mut review = request.clone();
    if let Some(fields) = review.as_object_mut() {
        fields.insert("status".into(), status);
    }
    review
}
