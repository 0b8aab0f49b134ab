//! `SelfSubjectReview`: returns the requesting user.

use crate::User;
use jiff::Timestamp;
use restow_api::Time;
use serde_json::{Value, json};

/// Answers a `SelfSubjectReview` with the user of the request, after impersonation.
pub fn self_subject_review(user: &User, request: &Value, now: Timestamp) -> Value {
    let kind_of = |field: &str| request.get(field).cloned().unwrap_or(Value::Null);
    json!({
        "apiVersion": kind_of("apiVersion"),
        "kind": kind_of("kind"),
        "metadata": {"creationTimestamp": Time::new(now)},
        "status": {"userInfo": user.to_user_info()},
    })
}
