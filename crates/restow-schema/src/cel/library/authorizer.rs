//! `authorizer`: authorization checks in expressions. The check is built here; the caller's [`Authorizer`] decides it.

use super::{FunctionResult, NONE, Opaque, opaque};
use crate::cel::value::Val;

/// Decides whether a user may do something.
pub trait Authorizer: Sync {
    /// Decides a check.
    fn decide(&self, check: &AuthorizationCheck) -> AuthorizationDecision;
}

/// An authorization check: may the user of the request, or a service account, do something with a path or a resource?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthorizationCheck {
    /// The namespace and name of the service account to check instead of the user.
    pub service_account: Option<(String, String)>,
    /// The path, in a check of a path.
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
    /// The verb; empty until `check` names it.
    pub verb: String,
}

/// What the authorizer decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationDecision {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Why.
    pub reason: String,
}

/// Sets one field of a check.
pub(super) fn set<'a>(arguments: &[Val<'a>], change: impl Fn(&mut AuthorizationCheck, String)) -> FunctionResult<'a> {
    match arguments {
        [Val::Opaque(check), Val::Text(text)] => {
            let mut check = check_of(check).ok_or(NONE)?.clone();
            change(&mut check, text.as_str().to_string());
            Ok(opaque(Opaque::Check(check)))
        }
        _ => Err(NONE),
    }
}

/// Checks a service account instead of the user of the request.
pub(super) fn service_account<'a>(arguments: &[Val<'a>]) -> FunctionResult<'a> {
    match arguments {
        [Val::Opaque(_), Val::Text(namespace), Val::Text(name)] => {
            let account = Some((namespace.as_str().to_string(), name.as_str().to_string()));
            Ok(opaque(Opaque::Authorizer(AuthorizationCheck {
                service_account: account,
                ..AuthorizationCheck::default()
            })))
        }
        _ => Err(NONE),
    }
}

/// The complete check, with its verb.
pub(crate) fn check(arguments: &[Val<'_>]) -> Option<AuthorizationCheck> {
    match arguments {
        [Val::Opaque(check), Val::Text(verb)] => {
            let check = check_of(check)?.clone();
            Some(AuthorizationCheck { verb: verb.as_str().to_string(), ..check })
        }
        _ => None,
    }
}

/// A decision as a value.
pub(crate) fn decision<'a>(decision: AuthorizationDecision) -> Val<'a> {
    opaque(Opaque::Decision(decision))
}

pub(super) fn of_decision<'a>(
    arguments: &[Val<'a>],
    part: impl Fn(&AuthorizationDecision) -> Val<'a>,
) -> FunctionResult<'a> {
    match arguments {
        [Val::Opaque(value)] => match value.as_ref() {
            Opaque::Decision(decision) => Ok(part(decision)),
            _ => Err(NONE),
        },
        _ => Err(NONE),
    }
}

fn check_of(value: &Opaque) -> Option<&AuthorizationCheck> {
    match value {
        Opaque::Authorizer(check) | Opaque::Check(check) => Some(check),
        _ => None,
    }
}
