//! What a failed call means: whether it can have been applied, and whether someone else may succeed.
//!
//! etcd tells its errors apart by their text alone. Everything that knows those texts is here.

use crate::version::ServerVersion;
use restow_store::StoreError;
use std::error::Error;
use tonic::{Code, Status};

/// Why one attempt failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It was certainly not applied; another member, or this one later, may do it.
    NotApplied(Trouble),
    /// It may have been applied.
    InDoubt(Trouble),
    /// The token was not accepted, and nothing was applied.
    Unauthenticated(String),
    /// The cluster has decided; asking again would change nothing.
    Rejected(Rejection),
}

/// What went wrong between us and a member.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    /// For people.
    pub(crate) reason: String,
    /// Whether the connection is of no use any more.
    pub(crate) disconnected: bool,
}

/// A definite no.
#[derive(Clone, Debug)]
pub(crate) enum Rejection {
    Compacted,
    FutureRevision,
    LeaseNotFound,
    Full(String),
    RequestTooLarge(String),
    /// The answer is larger than we are willing to receive.
    AnswerTooLarge(String),
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
        Failure::NotApplied(Trouble { reason: reason.into(), disconnected: true })
    }

    /// A request was sent and nothing came back.
    pub(crate) fn no_answer(reason: impl Into<String>) -> Self {
        Failure::InDoubt(Trouble { reason: reason.into(), disconnected: true })
    }

    /// Reads the answer to a call.
    pub(crate) fn of(status: &Status) -> Self {
        if status.source().is_some() {
            let trouble = Trouble { reason: with_sources(status), disconnected: true };
            return if was_never_sent(status) { Failure::NotApplied(trouble) } else { Failure::InDoubt(trouble) };
        }
        Self::said(status.code(), status.message())
    }

    /// Reads what a server says, as the status of a call or as the reason for the end of a watch.
    pub(crate) fn said(code: Code, message: &str) -> Self {
        let text = || message.to_owned();
        let trouble = || Trouble { reason: message.to_owned(), disconnected: false };
        let says = |part: &str| message.contains(part);
        if let Some(rejection) = known_rejection(message) {
            return Failure::Rejected(rejection);
        }
        // A lost proposal never reached the log; the others are refused before they are proposed.
        let not_applied = [
            "etcdserver: no leader",
            "etcdserver: too many requests",
            "etcdserver: not capable",
            "etcdserver: rpc not supported for learner",
            "raft proposal dropped",
        ];
        if not_applied.into_iter().any(says) {
            return Failure::NotApplied(trouble());
        }
        if says("invalid auth token") || says("user name is empty") || says("revision of auth store is old") {
            return Failure::Unauthenticated(text());
        }
        match code {
            Code::Unauthenticated => Failure::Unauthenticated(text()),
            Code::PermissionDenied => Failure::Rejected(Rejection::Denied(text())),
            Code::DataLoss => Failure::Rejected(Rejection::Corrupted(text())),
            Code::InvalidArgument | Code::FailedPrecondition | Code::Unimplemented => {
                Failure::Rejected(Rejection::Invalid(text()))
            }
            _ => Failure::InDoubt(trouble()),
        }
    }

    /// For people.
    pub(crate) fn reason(&self) -> String {
        match self {
            Failure::NotApplied(trouble) | Failure::InDoubt(trouble) => trouble.reason.clone(),
            Failure::Unauthenticated(reason) => reason.clone(),
            Failure::Rejected(rejection) => StoreError::from(CallError::Rejected(rejection.clone())).to_string(),
        }
    }
}

fn known_rejection(message: &str) -> Option<Rejection> {
    let text = || message.to_owned();
    let says = |part: &str| message.contains(part);
    Some(match () {
        () if says("required revision has been compacted") => Rejection::Compacted,
        () if says("required revision is a future revision") => Rejection::FutureRevision,
        () if says("requested lease not found") => Rejection::LeaseNotFound,
        () if says("database space exceeded") => Rejection::Full(text()),
        () if says("request is too large") || says("received message larger than max") => {
            Rejection::RequestTooLarge(text())
        }
        () if says("decoded message length too large") || says("trying to send message larger than max") => {
            Rejection::AnswerTooLarge(text())
        }
        () if says("permission denied") || says("authentication failed") => Rejection::Denied(text()),
        () if says("too large lease TTL") => Rejection::Invalid(text()),
        () if says("corrupt cluster") => Rejection::Corrupted(text()),
        () => return None,
    })
}

impl From<CallError> for StoreError {
    /// For callers that have no better answer of their own.
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
                Rejection::Invalid(reason) | Rejection::AnswerTooLarge(reason) => StoreError::Invalid(reason),
                Rejection::TooOld(version) => StoreError::Unavailable(format!("etcd {version} is too old")),
                Rejection::Compacted | Rejection::FutureRevision | Rejection::LeaseNotFound => {
                    StoreError::Corrupted(format!("etcd answered {rejection:?} where it makes no sense"))
                }
            },
        }
    }
}

/// An error with everything that caused it, on one line.
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

/// Whether the request did not leave this process: there was no connection, or it was closed while the request waited
/// in line for it.
fn was_never_sent(status: &Status) -> bool {
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
        match Failure::of(&Status::new(code, message)) {
            Failure::NotApplied(_) => "not applied",
            Failure::InDoubt(_) => "in doubt",
            Failure::Unauthenticated(_) => "unauthenticated",
            Failure::Rejected(rejection) => match rejection {
                Rejection::Compacted => "compacted",
                Rejection::FutureRevision => "future",
                Rejection::LeaseNotFound => "no lease",
                Rejection::Full(_) => "full",
                Rejection::RequestTooLarge(_) => "request too large",
                Rejection::AnswerTooLarge(_) => "answer too large",
                Rejection::Denied(_) => "denied",
                Rejection::Invalid(_) => "invalid",
                Rejection::Corrupted(_) => "corrupted",
                Rejection::TooOld(_) => "too old",
            },
        }
    }

    #[test]
    fn what_etcd_says_is_understood() {
        let check = |code, message: &str, expected| assert_eq!(kind(code, message), expected, "{message}");
        check(Code::Unavailable, "etcdserver: no leader", "not applied");
        check(Code::ResourceExhausted, "etcdserver: too many requests", "not applied");
        check(Code::FailedPrecondition, "etcdserver: not capable", "not applied");
        check(Code::Unavailable, "etcdserver: rpc not supported for learner", "not applied");
        check(Code::Unavailable, "etcdserver: leader changed", "in doubt");
        check(Code::Unavailable, "etcdserver: server stopped", "in doubt");
        check(Code::Unavailable, "etcdserver: request timed out", "in doubt");
        check(Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost", "in doubt");
        check(Code::DeadlineExceeded, "context deadline exceeded", "in doubt");
        check(Code::Unknown, "something new", "in doubt");
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
