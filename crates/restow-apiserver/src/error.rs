//! What can go wrong with a request, in the terms of the API. Nothing here knows HTTP; `status.rs` maps it.

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
        /// The name that was asked for.
        name: String,
    },
    /// There is no such version or resource in a group that is served.
    #[error("the server could not find the requested resource")]
    NoSuchResource,
    /// Nothing of what is served begins like this path.
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
    /// What a patch made cannot be had.
    #[error("the server rejected our request due to an error in our request")]
    Unprocessable,
    /// The request cannot be understood.
    #[error("{0}")]
    BadRequest(String),
    /// Nobody knows who asks.
    #[error("Unauthorized")]
    Unauthorized,
    /// Who asks may not do that.
    #[error("{resource}{} is forbidden: {message}", quoted(name))]
    Forbidden {
        /// The resource.
        resource: GroupResource,
        /// The object's name; empty for a whole collection.
        name: String,
        /// Why.
        message: String,
    },
    /// Somebody refused the request in words of their own: a webhook, a policy, or who manages the fields in question.
    #[error("{message}")]
    Denied {
        /// The code to answer.
        code: u16,
        /// The reason that it gives; may be empty.
        reason: String,
        /// What it says.
        message: String,
        /// What else it says.
        details: Option<serde_json::Value>,
    },
    /// The path is not for who asks.
    #[error("forbidden: {0}")]
    ForbiddenPath(String),
    /// The resource has no such verb.
    #[error("the server does not allow this method on the requested resource")]
    MethodNotAllowed,
    /// No representation that the client accepts; what there is instead.
    #[error("{0}")]
    NotAcceptable(String),
    /// The body is in a form that the server does not read.
    #[error("{0}")]
    UnsupportedMediaType(String),
    /// The body is too large.
    #[error("{0}")]
    TooLarge(String),
    /// The list or watch reaches back further than the history kept. The token, if any, continues an inconsistent list.
    #[error("{message}")]
    Expired {
        /// What expired.
        message: String,
        /// A continue token with which to go on, at the latest revision.
        continue_token: Option<String>,
    },
    /// The revision asked for is ahead of the server.
    #[error("Timeout: Too large resource version: {requested}, current: {current}")]
    TooLargeResourceVersion {
        /// The revision asked for.
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
    /// Too many pods of a group would be gone at once.
    #[error("Cannot evict pod as it would violate the pod's disruption budget.")]
    DisruptionBudget {
        /// What the budget says.
        cause: String,
        /// When to try again, where that is known.
        retry_after: Option<Duration>,
    },
    /// The store holds what no server of ours wrote, or in a format that this release does not know.
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
    /// The object lies in the store and cannot be read.
    #[error("Internal error occurred: {0}")]
    Corrupt(CorruptObject),
    /// Objects of a list lie in the store and cannot be read.
    #[error("{}", corrupt_message(resource, objects))]
    CorruptList {
        /// The resource.
        resource: GroupResource,
        /// The objects; the first ones, where they are many.
        objects: Vec<CorruptObject>,
    },
    /// An object is gone that could not be read, so that nobody can be told what it was.
    #[error("saw a DELETED event, but object data is corrupt - {}", .0.problem())]
    CorruptDeleted(CorruptObject),
    /// The objects of the cluster make no sense together, where Kubernetes answers with code 500 and no reason.
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

/// A name in quotes behind what it belongs to; nothing where there is none.
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

/// Maps what the store says, where the caller has no better answer.
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
    /// The history asked for is gone, with Kubernetes' words.
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
