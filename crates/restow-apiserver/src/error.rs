//! The errors of requests, in terms of the API. `status.rs` maps them to an HTTP code and a `Status`; only `Denied` carries a
//! code of its own, because webhooks and policies choose it.

pub(crate) mod corrupt;
pub(crate) mod status;

use crate::error::corrupt::CorruptObject;
use restow_api::GroupResource;
use restow_apimachinery::field::FieldError;
use restow_store::StoreError;
use std::time::Duration;
use thiserror::Error;

/// A request that failed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ApiError {
    /// There is no such object.
    #[error("{resource} \"{name}\" not found")]
    NotFound {
        /// The resource.
        resource: GroupResource,
        /// The requested name.
        name: String,
    },
    /// There is no such version or resource in a group that is served.
    #[error("the server could not find the requested resource")]
    NoSuchResource,
    /// The path is not served.
    #[error("404 page not found")]
    NoSuchPath,
    /// An object of that name exists.
    #[error("{resource} \"{name}\" already exists")]
    AlreadyExists {
        /// The resource.
        resource: GroupResource,
        /// The name that is taken.
        name: String,
    },
    /// The object is not as the caller expected.
    #[error("Operation cannot be fulfilled on {resource} \"{name}\": {message}")]
    Conflict {
        /// The resource.
        resource: GroupResource,
        /// The object's name.
        name: String,
        /// What did not match.
        message: String,
    },
    /// The same, where Kubernetes names a kind or a subresource instead of the resource.
    #[error("Operation cannot be fulfilled on {kind} \"{name}\": {message}")]
    ConflictOn {
        /// What it is called.
        kind: String,
        /// The object's name.
        name: String,
        /// What did not match.
        message: String,
    },
    /// The object breaks rules of its kind.
    #[error("{}", invalid_message(kind, name, causes))]
    Invalid {
        /// The kind and its group, as in `Deployment.apps`.
        kind: GroupKind,
        /// The object's name.
        name: String,
        /// Each broken rule.
        causes: Vec<FieldError>,
    },
    /// The result of a patch is not a valid object.
    #[error("the server rejected our request due to an error in our request")]
    Unprocessable,
    /// The request is malformed.
    #[error("{0}")]
    BadRequest(String),
    /// The user is not authenticated.
    #[error("Unauthorized")]
    Unauthorized,
    /// The user is not allowed to do that.
    #[error("{resource}{} is forbidden: {message}", quoted(name))]
    Forbidden {
        /// The resource.
        resource: GroupResource,
        /// The object's name; empty for a whole collection.
        name: String,
        /// Why.
        message: String,
    },
    /// Denied with a code and message of the denier: a webhook, a policy, or field managers in conflict.
    #[error("{message}")]
    Denied {
        /// The HTTP code.
        code: u16,
        /// The reason; may be empty.
        reason: String,
        /// The message.
        message: String,
        /// The details.
        details: Option<serde_json::Value>,
    },
    /// The user is not allowed to access the path.
    #[error("forbidden: {0}")]
    ForbiddenPath(String),
    /// The resource has no such verb.
    #[error("the server does not allow this method on the requested resource")]
    MethodNotAllowed,
    /// No representation that the client accepts; the message lists the available ones.
    #[error("{0}")]
    NotAcceptable(String),
    /// The media type of the body is not supported.
    #[error("{0}")]
    UnsupportedMediaType(String),
    /// The body is too large.
    #[error("{0}")]
    TooLarge(String),
    /// The revision of the list or watch is compacted. The token, if any, continues an inconsistent list.
    #[error("{message}")]
    Expired {
        /// What expired.
        message: String,
        /// A continue token with which to go on, at the latest revision.
        continue_token: Option<String>,
    },
    /// The requested revision is ahead of the server.
    #[error("Timeout: Too large resource version: {requested}, current: {current}")]
    TooLargeResourceVersion {
        /// The requested revision.
        requested: u64,
        /// The latest one.
        current: u64,
    },
    /// The server is too busy; try again.
    #[error("Too many requests, please try again later.")]
    TooManyRequests {
        /// When to try again.
        retry_after: Duration,
    },
    /// An eviction would violate a disruption budget.
    #[error("Cannot evict pod as it would violate the pod's disruption budget.")]
    DisruptionBudget {
        /// What the budget says.
        cause: String,
        /// When to try again, where that is known.
        retry_after: Option<Duration>,
    },
    /// The store has data that no Restow API server wrote, or a format that this release does not know.
    #[error("{0}")]
    UnusableStore(String),
    /// The server cannot serve this now; try again.
    #[error("{message}")]
    Unavailable {
        /// Why.
        message: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// The request took too long. A write may or may not have been applied.
    #[error("Timeout: {0}")]
    Timeout(String),
    /// A fault of the server.
    #[error("Internal error occurred: {0}")]
    Internal(String),
    /// The stored object cannot be decoded.
    #[error("Internal error occurred: {0}")]
    Corrupt(CorruptObject),
    /// Stored objects of a list cannot be decoded.
    #[error("{}", corrupt_message(resource, objects))]
    CorruptList {
        /// The resource.
        resource: GroupResource,
        /// The objects; the first ones, where they are many.
        objects: Vec<CorruptObject>,
    },
    /// A deleted object could not be decoded, so that a watch cannot send it.
    #[error("saw a DELETED event, but object data is corrupt - {}", .0.problem())]
    CorruptDeleted(CorruptObject),
    /// An inconsistency of objects, for which Kubernetes responds with code 500 and no reason.
    #[error("{0}")]
    Unexplained(String),
}

/// A kind within a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupKind {
    /// The group; empty for the core group.
    pub group: String,
    /// The kind.
    pub kind: String,
}

impl std::fmt::Display for GroupKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group.as_str() {
            "" => f.write_str(&self.kind),
            group => write!(f, "{}.{group}", self.kind),
        }
    }
}

/// A name in quotes; nothing if it is empty.
fn quoted(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" \"{name}\"") }
}

fn invalid_message(kind: &GroupKind, name: &str, causes: &[FieldError]) -> String {
    let mut causes: Vec<String> = causes.iter().map(FieldError::to_string).collect();
    causes.dedup();
    let causes = match causes.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    format!("{kind} \"{name}\" is invalid: {causes}")
}

fn corrupt_message(resource: &GroupResource, objects: &[CorruptObject]) -> String {
    let mut message = format!("failed to read one or more {resource} from the storage");
    if let Some(first) = objects.first() {
        message.push_str(&format!(": {first}"));
    }
    if objects.len() > 1 {
        message.push_str(&format!(" (and {} more)", objects.len() - 1));
    }
    message
}

/// Maps errors of the store, where the caller has no better error.
impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Compacted { .. } | StoreError::HistoryLost => ApiError::expired(),
            StoreError::FutureRevision { requested, current } => {
                ApiError::TooLargeResourceVersion { requested: requested.get(), current: current.get() }
            }
            StoreError::TooLarge { size, limit, .. } => ApiError::TooLarge(format!(
                "Request entity too large: the object takes {size} bytes in storage, the limit is {limit}"
            )),
            StoreError::OutcomeUnknown(reason) => {
                ApiError::Timeout(format!("the store did not confirm in time, the outcome is unknown: {reason}"))
            }
            StoreError::Unavailable(_) | StoreError::Full(_) => {
                ApiError::Unavailable { message: error.to_string(), retry_after: Duration::from_secs(1) }
            }
            StoreError::Conflict { .. }
            | StoreError::Invalid(_)
            | StoreError::Corrupted(_)
            | StoreError::Denied(_)
            | _ => ApiError::Internal(error.to_string()),
        }
    }
}

impl ApiError {
    /// The requested history is compacted; Kubernetes' message.
    pub fn expired() -> Self {
        ApiError::Expired {
            message: "The provided continue parameter is too old to display a consistent list result.".into(),
            continue_token: None,
        }
    }

    /// A bad request.
    pub fn bad_request(message: impl Into<String>) -> Self {
        ApiError::BadRequest(message.into())
    }
}
