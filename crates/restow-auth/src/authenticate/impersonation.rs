//! Impersonation: acting as someone else, named in `Impersonate-…` headers, for those who may.

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

/// A wish to act as someone else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonation {
    /// Who to act as.
    pub user: User,
    /// What whoever asks must be allowed, all of it.
    pub checks: Vec<Attributes>,
}

/// Why it cannot be told who to act as. The server answers that the request is bad: whoever wants to act as another must
/// never be served as themselves.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ImpersonationError {
    /// Something of a user is given, but no user.
    #[error("requested {0} without impersonating a user name")]
    NoUser(String),
    /// A header, or what its name stands for, is not UTF-8.
    #[error("the header {0:?} is not valid UTF-8")]
    NotText(String),
    /// A header that must be alone stands there twice.
    #[error("the header {0:?} is given more than once")]
    Twice(String),
    /// A header is about impersonation, and nobody knows what it means.
    #[error("the header {0:?} is not known")]
    Unknown(String),
}

impl Impersonation {
    /// Whether a header is about impersonation; such headers must not reach anything behind this server.
    pub fn is_header(name: &str) -> bool {
        name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
    }

    /// Reads the headers: names in any case, in the order in which they came. Nothing when none is about impersonation;
    /// where one is, it is understood or refused.
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
    let mut alone = BTreeSet::new();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        let text = str::from_utf8(value).map_err(|_| ImpersonationError::NotText(name.clone()))?;
        match name.as_str() {
            USER | UID => {
                if !alone.insert(name.clone()) {
                    return Err(ImpersonationError::Twice(name));
                }
                let field = if name == USER { &mut wanted.name } else { &mut wanted.uid };
                *field = text.into();
            }
            GROUP => wanted.groups.push(text.into()),
            _ => match name.strip_prefix(EXTRA_PREFIX) {
                Some(key) => {
                    let key = unescape(key).ok_or_else(|| ImpersonationError::NotText(name.clone()))?;
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

/// Adds the groups that go without saying: those of a service account when none are given, and whether the user is
/// authenticated.
fn with_implied_groups(mut user: User) -> User {
    if user.groups.is_empty() {
        let account = split_service_account_username(&user.name);
        user.groups = account.map(|(namespace, _)| service_account_groups(namespace)).unwrap_or_default();
    }
    let implied = if user.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    if user.is_in(implied) || user.is_in(UNAUTHENTICATED) { user } else { user.with_group(implied) }
}

/// Replaces `%XX`; a text in which that does not work stays as it is. `None` where what comes of it is not a text.
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
