//! Impersonation: a request acts as another user, named in `Impersonate-…` headers. This file reads the headers and lists
//! the permissions that the requesting user needs.

use crate::user::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, service_account_groups, split_service_account_username};
use crate::{Attributes, ResourceAttributes, User};
use restow_apimachinery::go_syntax::{literal, quote};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";
const PREFIX: &str = "impersonate-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The impersonation that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonation {
    /// The user to act as.
    pub user: User,
    /// The requesting user must be allowed all of these.
    pub checks: Vec<Attributes>,
}

/// Why the headers are refused. The response is 400: a request with impersonation headers must never run as the
/// requesting user.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ImpersonationError {
    /// There are impersonation headers, but none with a user name.
    #[error("requested {0} without impersonating a user name")]
    NoUser(String),
    /// The value of a header, or the unescaped key in its name, is not UTF-8.
    #[error("the header {0:?} is not valid UTF-8")]
    InvalidUtf8(String),
    /// The request has a header twice that may occur only once.
    #[error("the header {0:?} is given more than once")]
    Duplicate(String),
    /// The name begins with `Impersonate-`, but there is no such header.
    #[error("the header {0:?} is not known")]
    Unknown(String),
}

impl Impersonation {
    /// Whether this is an impersonation header. A proxy must not forward such headers.
    pub fn is_header(name: &str) -> bool {
        name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
    }

    /// Reads the headers, in their order and with names in any case. Returns `None` if there is no impersonation header.
    pub fn from_headers<'a>(
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Option<Self>, ImpersonationError> {
        let mut given = headers.into_iter().filter(|(name, _)| Self::is_header(name)).peekable();
        if given.peek().is_none() {
            return Ok(None);
        }
        let wanted = read(given)?;
        if wanted.name.is_empty() {
            return Err(ImpersonationError::NoUser(in_go_syntax(&wanted)));
        }
        let checks = checks(&wanted);
        Ok(Some(Impersonation { user: with_implied_groups(wanted), checks }))
    }
}

fn read<'a>(headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<User, ImpersonationError> {
    let mut wanted = User::default();
    let mut seen = BTreeSet::new();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        let text = str::from_utf8(value).map_err(|_| ImpersonationError::InvalidUtf8(name.clone()))?;
        match name.as_str() {
            USER | UID => {
                if !seen.insert(name.clone()) {
                    return Err(ImpersonationError::Duplicate(name));
                }
                let field = if name == USER { &mut wanted.name } else { &mut wanted.uid };
                *field = text.into();
            }
            GROUP => wanted.groups.push(text.into()),
            _ => match name.strip_prefix(EXTRA_PREFIX) {
                Some(key) => {
                    let key = unescape(key).ok_or_else(|| ImpersonationError::InvalidUtf8(name.clone()))?;
                    wanted.extra.entry(key).or_default().push(text.into());
                }
                None => return Err(ImpersonationError::Unknown(name)),
            },
        }
    }
    Ok(wanted)
}

fn checks(wanted: &User) -> Vec<Attributes> {
    let check = |group: &str, resource: &str, name: &str| ResourceAttributes {
        verb: "impersonate".into(),
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        name: name.into(),
        ..ResourceAttributes::default()
    };
    let mut checks = Vec::new();
    checks.push(match split_service_account_username(&wanted.name) {
        Some((namespace, name)) => {
            ResourceAttributes { namespace: namespace.into(), ..check("", "serviceaccounts", name) }
        }
        None => check("", "users", &wanted.name),
    });
    if !wanted.uid.is_empty() {
        checks.push(check(AUTHENTICATION, "uids", &wanted.uid));
    }
    checks.extend(wanted.groups.iter().map(|group| check("", "groups", group)));
    for (key, values) in &wanted.extra {
        let values = values.iter().map(|value| check(AUTHENTICATION, "userextras", value));
        checks.extend(values.map(|check| ResourceAttributes { subresource: key.clone(), ..check }));
    }
    checks.into_iter().map(Attributes::from).collect()
}

/// Adds the implied groups: those of a service account if no group is given, and `system:authenticated` or
/// `system:unauthenticated`.
fn with_implied_groups(mut user: User) -> User {
    if user.groups.is_empty() {
        let account = split_service_account_username(&user.name);
        user.groups = account.map(|(namespace, _)| service_account_groups(namespace)).unwrap_or_default();
    }
    let implied = if user.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    if user.is_in(implied) || user.is_in(UNAUTHENTICATED) { user } else { user.with_group(implied) }
}

/// Replaces `%XX`. A string with an invalid escape is returned unchanged. `None` if the result is not UTF-8.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = after;
            continue;
        }
        let digit = |index: usize| after.get(index).and_then(|&digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Some(text.into()) };
        bytes.push((high * 16 + low) as u8);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

fn in_go_syntax(user: &User) -> String {
    let (uid, groups, extra) = (quote(&user.uid), literal(&user.groups), extra_in_go_syntax(&user.extra));
    format!("&user.DefaultInfo{{Name:\"\", UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

fn extra_in_go_syntax(extra: &BTreeMap<String, Vec<String>>) -> String {
    if extra.is_empty() {
        return "map[string][]string(nil)".into();
    }
    let entries = extra.iter().map(|(key, values)| format!("{}:{}", quote(key), literal(values)));
    format!("map[string][]string{{{}}}", entries.collect::<Vec<_>>().join(", "))
}
