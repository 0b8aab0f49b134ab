//! Impersonation: acting as someone else, named in `Impersonate-…` headers, for those who may.

use crate::auth::user::{
    ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, service_account_groups, split_service_account_username,
};
use crate::auth::{Attributes, ResourceAttributes, User};
use crate::go_syntax::{literal, quote};
use std::collections::BTreeMap;
use thiserror::Error;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// A wish to act as someone else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonation {
    /// Who to act as.
    pub user: User,
    /// What whoever asks must be allowed, all of it.
    pub checks: Vec<Attributes>,
}

/// Something of a user is given, but no user. The server answers that the request is bad.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("requested {0} without impersonating a user name")]
pub struct NoUserToImpersonate(String);

impl Impersonation {
    /// Whether a header is about impersonation; such headers must not reach anything behind this server.
    pub fn is_header(name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        [USER, GROUP, UID].contains(&name.as_str()) || name.starts_with(EXTRA_PREFIX)
    }

    /// Reads the headers: names in any case, in the order in which they came. Nothing when none is about impersonation.
    pub fn from_headers<'a>(
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Option<Self>, NoUserToImpersonate> {
        let wanted = read(headers);
        if wanted.name.is_empty() {
            let nothing = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
            return if nothing { Ok(None) } else { Err(NoUserToImpersonate(in_go_syntax(&wanted))) };
        }
        let checks = checks(&wanted);
        Ok(Some(Impersonation { user: with_implied_groups(wanted), checks }))
    }
}

fn read<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> User {
    let mut wanted = User::default();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            // Of a header that must be alone, the first counts.
            USER if wanted.name.is_empty() => wanted.name = value.into(),
            UID if wanted.uid.is_empty() => wanted.uid = value.into(),
            GROUP => wanted.groups.push(value.into()),
            _ => {
                if let Some(key) = name.strip_prefix(EXTRA_PREFIX) {
                    wanted.extra.entry(unescape(key)).or_default().push(value.into());
                }
            }
        }
    }
    wanted
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

/// Replaces `%XX`; a text in which that does not work stays as it is.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = after;
            continue;
        }
        let digit = |index: usize| after.get(index).and_then(|&digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return text.into() };
        bytes.push((high * 16 + low) as u8);
        rest = &after[2..];
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.into())
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
