//! Maps an error to an HTTP code and a `Status`. This is the only place that does.

use crate::error::ApiError;
use crate::error::corrupt::{CorruptObject, MAX_REPORTED};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The response to a failed request.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusResponse {
    /// The HTTP code.
    pub code: u16,
    /// The `Status` object.
    pub body: Value,
    /// The `Retry-After`.
    pub retry_after: Option<Duration>,
}

/// The response for an error.
pub fn status_of(error: &ApiError) -> StatusResponse {
    let (code, reason) = code_and_reason(error);
    let retry_after = match error {
        ApiError::TooManyRequests { retry_after } | ApiError::Unavailable { retry_after, .. } => Some(*retry_after),
        ApiError::TooLargeResourceVersion { .. } => Some(Duration::from_secs(1)),
        ApiError::DisruptionBudget { retry_after, .. } => *retry_after,
        _ => None,
    };
    let mut metadata = Map::new();
    if let ApiError::Expired { continue_token: Some(token), .. } = error {
        metadata.insert("continue".into(), token.clone().into());
    }
    let mut body = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": metadata,
        "status": "Failure",
        "message": error.to_string(),
        "code": code,
    });
    if !reason.is_empty() {
        body["reason"] = reason.into();
    }
    if let Some(details) = details_of(error, retry_after) {
        body["details"] = details;
    }
    StatusResponse { code, body, retry_after }
}

fn code_and_reason(error: &ApiError) -> (u16, &str) {
    match error {
        ApiError::NotFound { .. } | ApiError::NoSuchResource | ApiError::NoSuchPath => (404, "NotFound"),
        ApiError::AlreadyExists { .. } => (409, "AlreadyExists"),
        ApiError::Conflict { .. } | ApiError::ConflictOn { .. } => (409, "Conflict"),
        ApiError::Invalid { .. } | ApiError::Unprocessable => (422, "Invalid"),
        ApiError::BadRequest(_) => (400, "BadRequest"),
        ApiError::Unauthorized => (401, "Unauthorized"),
        ApiError::Forbidden { .. } | ApiError::ForbiddenPath(_) => (403, "Forbidden"),
        ApiError::Denied { code, reason, .. } => (*code, reason),
        ApiError::MethodNotAllowed => (405, "MethodNotAllowed"),
        ApiError::NotAcceptable(_) => (406, "NotAcceptable"),
        ApiError::UnsupportedMediaType(_) => (415, "UnsupportedMediaType"),
        ApiError::TooLarge(_) => (413, "RequestEntityTooLarge"),
        ApiError::Expired { .. } => (410, "Expired"),
        ApiError::TooLargeResourceVersion { .. } | ApiError::Timeout(_) => (504, "Timeout"),
        ApiError::TooManyRequests { .. } | ApiError::DisruptionBudget { .. } => (429, "TooManyRequests"),
        ApiError::Unavailable { .. } => (503, "ServiceUnavailable"),
        ApiError::Internal(_) | ApiError::Corrupt(_) | ApiError::UnusableStore(_) => (500, "InternalError"),
        ApiError::CorruptList { .. } | ApiError::CorruptDeleted(_) => (500, "StoreReadError"),
        ApiError::Unexplained(_) => (500, ""),
    }
}

fn details_of(error: &ApiError, retry_after: Option<Duration>) -> Option<Value> {
    let mut details = Map::new();
    match error {
        ApiError::NotFound { resource, name }
        | ApiError::AlreadyExists { resource, name }
        | ApiError::Conflict { resource, name, .. }
        | ApiError::Forbidden { resource, name, .. } => {
            put(&mut details, "name", name);
            put(&mut details, "group", resource.group());
            put(&mut details, "kind", resource.resource());
        }
        ApiError::ConflictOn { kind, name, .. } => {
            put(&mut details, "name", name);
            put(&mut details, "kind", kind);
        }
        ApiError::Invalid { kind, name, causes } => {
            put(&mut details, "name", name);
            put(&mut details, "group", &kind.group);
            put(&mut details, "kind", &kind.kind);
            let causes: Vec<Value> = causes
                .iter()
                .map(|cause| {
                    json!({"reason": cause.cause_reason(), "message": cause.cause_message(), "field": cause.field})
                })
                .collect();
            details.insert("causes".into(), causes.into());
        }
        ApiError::TooLargeResourceVersion { .. } => {
            details.insert(
                "causes".into(),
                json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]),
            );
        }
        ApiError::DisruptionBudget { cause, .. } => {
            details.insert("causes".into(), json!([{"reason": "DisruptionBudget", "message": cause}]));
        }
        ApiError::Internal(message) => {
            details.insert("causes".into(), json!([{"message": message}]));
        }
        ApiError::Corrupt(object) => {
            details.insert("causes".into(), json!([{"message": object.to_string()}]));
        }
        ApiError::CorruptList { resource, objects } => {
            put(&mut details, "name", "list");
            put(&mut details, "group", resource.group());
            put(&mut details, "kind", resource.resource());
            details.insert("causes".into(), corrupt_causes(objects).into());
        }
        ApiError::Denied { details, .. } => return details.clone(),
        ApiError::NoSuchResource
        | ApiError::MethodNotAllowed
        | ApiError::Unprocessable
        | ApiError::ForbiddenPath(_) => return Some(json!({})),
        // Kubernetes has empty details for some media type errors, and none for others.
        ApiError::NotAcceptable(message) | ApiError::UnsupportedMediaType(message) if message.starts_with(['4']) => {
            return Some(json!({}));
        }
        _ => {}
    }
    if let Some(after) = retry_after {
        details.insert("retryAfterSeconds".into(), after.as_secs().max(1).into());
    }
    (!details.is_empty()).then_some(Value::Object(details))
}

/// One cause for each object, and one more if the list is truncated.
fn corrupt_causes(objects: &[CorruptObject]) -> Vec<Value> {
    let cause = |object: &CorruptObject| json!({"reason": "UnexpectedServerResponse", "message": object.to_string(), "field": object.key});
    let mut causes: Vec<Value> = objects.iter().map(cause).collect();
    if objects.len() >= MAX_REPORTED {
        causes.push(json!({"reason": "FieldValueTooMany", "message": "too many errors, the list is truncated"}));
    }
    causes
}

fn put(details: &mut Map<String, Value>, field: &str, text: &str) {
    if !text.is_empty() {
        details.insert(field.into(), text.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::GroupKind;
    use restow_api::GroupResource;
    use restow_apimachinery::field::FieldError;

    #[test]
    fn a_missing_object_is_named_by_group_kind_and_name() {
        let resource = GroupResource::new("apps", "deployments").unwrap();
        let response = status_of(&ApiError::NotFound { resource, name: "web".into() });
        assert_eq!(response.code, 404);
        assert_eq!(response.body["message"], "deployments.apps \"web\" not found");
        assert_eq!(response.body["details"], json!({"name": "web", "group": "apps", "kind": "deployments"}));
    }

    #[test]
    fn an_invalid_object_lists_every_cause() {
        let kind = GroupKind { group: String::new(), kind: "ConfigMap".into() };
        let causes = vec![
            FieldError::required("metadata.name", "name or generateName is required"),
            FieldError::forbidden("data", "no"),
        ];
        let response = status_of(&ApiError::Invalid { kind, name: "x".into(), causes });
        assert_eq!(response.code, 422);
        assert_eq!(
            response.body["message"],
            "ConfigMap \"x\" is invalid: [metadata.name: Required value: name or generateName is required, data: Forbidden: no]"
        );
        assert_eq!(response.body["details"]["causes"][0]["reason"], "FieldValueRequired");
    }
}
