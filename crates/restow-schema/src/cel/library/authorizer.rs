//! `authorizer`: expressions that ask what a user may do. The question is put together here; somebody else answers it.

use super::{NONE, Opaque, Outcome, opaque};
use crate::cel::value::Val;

/// Who answers whether a user may do something.
pub trait Authorizer: Sync {
    /// Answers a question.
    fn decide(&self, question: &Question) -> Verdict;
}

/// What is asked: whether who made the request, or a service account, may do something with a path or a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// The namespace and name of the service account that it is about instead.
    pub service_account: Option<(String, String)>,
    /// The path, where it is about one.
    pub path: Option<String>,
    /// The API group.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// What is to be done; empty until that is said.
    pub verb: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Why.
    pub reason: String,
}

/// Says one thing more of a question.
pub(super) fn say<'a>(arguments: &[Val<'a>], change: impl Fn(&mut Question, String)) -> Outcome<'a> {
    match arguments {
        [Val::Opaque(question), Val::Text(text)] => {
            let mut question = question_of(question).ok_or(NONE)?.clone();
            change(&mut question, text.as_str().to_string());
            Ok(opaque(Opaque::Question(question)))
        }
        _ => Err(NONE),
    }
}

/// Asks about a service account instead of who made the request.
pub(super) fn service_account<'a>(arguments: &[Val<'a>]) -> Outcome<'a> {
    match arguments {
        [Val::Opaque(_), Val::Text(namespace), Val::Text(name)] => {
            let account = Some((namespace.as_str().to_string(), name.as_str().to_string()));
            Ok(opaque(Opaque::Authorizer(Question { service_account: account, ..Question::default() })))
        }
        _ => Err(NONE),
    }
}

/// The whole question, with what is to be done.
pub(crate) fn question(arguments: &[Val<'_>]) -> Option<Question> {
    match arguments {
        [Val::Opaque(question), Val::Text(verb)] => {
            let question = question_of(question)?.clone();
            Some(Question { verb: verb.as_str().to_string(), ..question })
        }
        _ => None,
    }
}

/// An answer as a value.
pub(crate) fn answer<'a>(verdict: Verdict) -> Val<'a> {
    opaque(Opaque::Verdict(verdict))
}

pub(super) fn of_verdict<'a>(arguments: &[Val<'a>], part: impl Fn(&Verdict) -> Val<'a>) -> Outcome<'a> {
    match arguments {
        [Val::Opaque(value)] => match value.as_ref() {
            Opaque::Verdict(verdict) => Ok(part(verdict)),
            _ => Err(NONE),
        },
        _ => Err(NONE),
    }
}

fn question_of(value: &Opaque) -> Option<&Question> {
    match value {
        Opaque::Authorizer(question) | Opaque::Question(question) => Some(question),
        _ => None,
    }
}
