//! What a failed call means: whether it can have been applied, and whether a retry may succeed.
//!
//! Many errors of etcd differ only in their text. Everything that knows those texts is here.

use crate::version::ServerVersion;
use restow_store::StoreError;
use std::error::Error;
use tonic::{Code, Status};

/// Why one attempt failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It was certainly not applied; a retry, at this or another member, may succeed.
    NotApplied(Problem),
    /// It may or may not have been applied.
    OutcomeUnknown(Problem),
    /// The token was rejected, and nothing was applied.
    Unauthenticated(String),
    /// The cluster rejected the request; a retry would be rejected, too.
    Rejected(Rejection),
}

/// A problem with a member or the connection to it.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// For messages.
    pub(crate) reason: String,
    /// Whether the connection is broken.
    pub(crate) disconnected: bool,
}

/// Why the cluster rejected a request.
#[derive(Clone, Debug)]
pub(crate) enum Rejection {
    Compacted,
    FutureRevision,
    LeaseNotFound,
    Full(String),
    RequestTooLarge(String),
    /// The response is larger than [`MAX_RESPONSE_BYTES`](crate::cluster) or the server's limit.
    ResponseTooLarge(String),
    Denied(String),
    Invalid(String),
    Corrupted(String),
    TooOld(ServerVersion),
}

/// Why a call failed, after all its attempts.
#[derive(Clone, Debug)]
pub(crate) enum CallError {
    Rejected(Rejection),
    Unavailable(String),
    OutcomeUnknown(String),
}

impl Failure {
    /// The member cannot be reached.
    pub(crate) fn unreachable(reason: impl Into<String>) -> Self {
        Failure::NotApplied(Problem { reason: reason.into(), disconnected: true })
    }

    /// A request was sent, and no response came.
    pub(crate) fn no_response(reason: impl Into<String>) -> Self {
        Failure::OutcomeUnknown(Problem { reason: reason.into(), disconnected: true })
    }

    /// Interprets the status of a call.
    pub(crate) fn from_status(status: &Status) -> Self {
        if status.source().is_some() {
            let problem = Problem { reason: with_sources(status), disconnected: true };
            return if was_not_sent(status) { Failure::NotApplied(problem) } else { Failure::OutcomeUnknown(problem) };
        }
        Self::from_message(status.code(), status.message())
    }

    /// Interprets an error of the server: the status of a call, or the reason why a watch was canceled.
    pub(crate) fn from_message(code: Code, message: &str) -> Self {
        let text = || message.to_owned();
        let problem = || Problem { reason: message.to_owned(), disconnected: false };
        let contains = |part: &str| message.contains(part);
        if let Some(rejection) = known_rejection(message) {
            return Failure::Rejected(rejection);
        }
        // A dropped proposal never reached the raft log; the others are refused before they are proposed.
        let not_applied = [
            "etcdserver: no leader",
            "etcdserver: too many requests",
            "etcdserver: not capable",
            "etcdserver: rpc not supported for learner",
            "raft proposal dropped",
        ];
        if not_applied.into_iter().any(contains) {
            return Failure::NotApplied(problem());
        }
        if contains("invalid auth token") || contains("user name is empty") || contains("revision of auth store is old")
        {
            return Failure::Unauthenticated(text());
        }
        match code {
            Code::Unauthenticated => Failure::Unauthenticated(text()),
            Code::PermissionDenied => Failure::Rejected(Rejection::Denied(text())),
            Code::DataLoss => Failure::Rejected(Rejection::Corrupted(text())),
            Code::InvalidArgument | Code::FailedPrecondition | Code::Unimplemented => {
                Failure::Rejected(Rejection::Invalid(text()))
            }
            _ => Failure::OutcomeUnknown(problem()),
        }
    }

    /// The reason, for messages.
    pub(crate) fn reason(&self) -> String {
        match self {
            Failure::NotApplied(problem) | Failure::OutcomeUnknown(problem) => problem.reason.clone(),
            Failure::Unauthenticated(reason) => reason.clone(),
            Failure::Rejected(rejection) => StoreError::from(CallError::Rejected(rejection.clone())).to_string(),
        }
    }
}

fn known_rejection(message: &str) -> Option<Rejection> {
    let text = || message.to_owned();
    let contains = |part: &str| message.contains(part);
    Some(match () {
        () if contains("required revision has been compacted") => Rejection::Compacted,
        () if contains("required revision is a future revision") => Rejection::FutureRevision,
        () if contains("requested lease not found") => Rejection::LeaseNotFound,
        () if contains("database space exceeded") => Rejection::Full(text()),
        () if contains("request is too large") || contains("received message larger than max") => {
            Rejection::RequestTooLarge(text())
        }
        () if contains("decoded message length too large") || contains("trying to send message larger than max") => {
            Rejection::ResponseTooLarge(text())
        }
        () if contains("permission denied") || contains("authentication failed") => Rejection::Denied(text()),
        () if contains("too large lease TTL") => Rejection::Invalid(text()),
        () if contains("corrupt cluster") => Rejection::Corrupted(text()),
        () => return None,
    })
}

impl From<CallError> for StoreError {
    /// For callers without a more specific error.
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable(reason) => StoreError::Unavailable(reason),
            CallError::OutcomeUnknown(reason) => StoreError::OutcomeUnknown(reason),
            CallError::Rejected(rejection) => match rejection {
                Rejection::Full(reason) => StoreError::Full(reason),
                Rejection::Denied(reason) => StoreError::Denied(reason),
                Rejection::Corrupted(reason) => StoreError::Corrupted(reason),
                Rejection::RequestTooLarge(reason) => {
                    StoreError::Invalid(format!("{reason}; the server's limit is its --max-request-bytes"))
                }
                Rejection::Invalid(reason) | Rejection::ResponseTooLarge(reason) => StoreError::Invalid(reason),
                Rejection::TooOld(version) => StoreError::Unavailable(format!("etcd {version} is too old")),
                Rejection::Compacted | Rejection::FutureRevision | Rejection::LeaseNotFound => {
                    StoreError::Corrupted(format!("etcd returned the unexpected error {rejection:?}"))
                }
            },
        }
    }
}

/// An error with all its sources, on one line.
pub(crate) fn with_sources(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Whether the request did not leave this process: there was no connection, or it was closed while the request was queued.
fn was_not_sent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(cause) = source {
        if cause.is::<tonic::ConnectError>() {
            return true;
        }
        if cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        source = cause.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: Code, message: &str) -> &'static str {
        match Failure::from_status(&Status::new(code, message)) {
            Failure::NotApplied(_) => "not applied",
            Failure::OutcomeUnknown(_) => "outcome unknown",
            Failure::Unauthenticated(_) => "unauthenticated",
            Failure::Rejected(rejection) => match rejection {
                Rejection::Compacted => "compacted",
                Rejection::FutureRevision => "future",
                Rejection::LeaseNotFound => "no lease",
                Rejection::Full(_) => "full",
                Rejection::RequestTooLarge(_) => "request too large",
                Rejection::ResponseTooLarge(_) => "response too large",
                Rejection::Denied(_) => "denied",
                Rejection::Invalid(_) => "invalid",
                Rejection::Corrupted(_) => "corrupted",
                Rejection::TooOld(_) => "too old",
            },
        }
    }

    #[test]
    fn errors_of_etcd_are_classified() {
        let check = |code, message: &str, expected| assert_eq!(kind(code, message), expected, "{message}");
        check(Code::Unavailable, "etcdserver: no leader", "not applied");
        check(Code::ResourceExhausted, "etcdserver: too many requests", "not applied");
        check(Code::FailedPrecondition, "etcdserver: not capable", "not applied");
        check(Code::Unavailable, "etcdserver: rpc not supported for learner", "not applied");
        check(Code::Unavailable, "etcdserver: leader changed", "outcome unknown");
        check(Code::Unavailable, "etcdserver: server stopped", "outcome unknown");
        check(Code::Unavailable, "etcdserver: request timed out", "outcome unknown");
        check(Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost", "outcome unknown");
        check(Code::DeadlineExceeded, "context deadline exceeded", "outcome unknown");
        check(Code::Unknown, "something new", "outcome unknown");
        check(Code::Unauthenticated, "etcdserver: invalid auth token", "unauthenticated");
        check(Code::InvalidArgument, "etcdserver: user name is empty", "unauthenticated");
        check(Code::PermissionDenied, "etcdserver: permission denied", "denied");
        check(Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", "denied");
        check(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted", "compacted");
        check(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision", "future");
        check(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", "full");
        check(Code::InvalidArgument, "etcdserver: request is too large", "request too large");
        check(Code::ResourceExhausted, "grpc: received message larger than max (9 vs. 8)", "request too large");
        check(Code::NotFound, "etcdserver: requested lease not found", "no lease");
        check(Code::DataLoss, "etcdserver: corrupt cluster", "corrupted");
        check(Code::InvalidArgument, "etcdserver: duplicate key given in txn request", "invalid");
    }
}
