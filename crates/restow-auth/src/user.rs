//! The authenticated user of a request: name, uid, groups and extra fields. How the user was authenticated is not part
//! of this file.

use restow_api::validation::is_dns1123_subdomain;
use restow_apimachinery::go_syntax::quote;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The user name of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of all users with valid credentials.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of requests without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that is allowed everything; the server does not evaluate RBAC for it.
pub const MASTERS: &str = "system:masters";
/// The group of all service accounts.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// The key in a user's extra fields that identifies the credential without revealing it.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The namespace of the control plane's own service accounts.
const SYSTEM_NAMESPACE: &str = "kube-system";
const NAMESPACE_MAX_BYTES: usize = 63;

/// The user of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// Distinguishes users that had the same name at different times; may be empty.
    pub uid: String,
    /// The groups, in the order of the credential.
    pub groups: Vec<String>,
    /// Further information from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The result of authenticating a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// The user of the token; `system:authenticated` is not added yet.
    pub user: User,
    /// The requested audiences that the token is valid for.
    pub audiences: Vec<String>,
}

impl User {
    /// A user of this name, without groups.
    pub fn named(name: impl Into<String>) -> Self {
        User { name: name.into(), ..User::default() }
    }

    /// The user of all requests without credentials.
    pub fn anonymous() -> Self {
        User::named(ANONYMOUS).with_group(UNAUTHENTICATED)
    }

    /// The user of a service account, with its groups.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let name = service_account_username(namespace, name);
        User { name, uid: uid.into(), groups: service_account_groups(namespace), extra: BTreeMap::new() }
    }

    /// Adds a group.
    pub fn with_group(mut self, group: impl Into<String>) -> Self {
        self.groups.push(group.into());
        self
    }

    /// Adds the group `system:authenticated`, unless the user is anonymous or already in it or in
    /// `system:unauthenticated`.
    pub fn authenticated(self) -> Self {
        let has_group = self.name == ANONYMOUS || self.is_in(AUTHENTICATED) || self.is_in(UNAUTHENTICATED);
        if has_group { self } else { self.with_group(AUTHENTICATED) }
    }

    /// Whether the user is in the group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The flow of the user's requests, for limits and fair queues. The service accounts of a namespace share one flow: a
    /// user that may write in the namespace can create any number of them. In `kube-system` each account has its own
    /// flow, because only cluster administrators create accounts there.
    pub fn flow_distinguisher(&self) -> Cow<'_, str> {
        match split_service_account_username(&self.name) {
            Some((namespace, _)) if namespace != SYSTEM_NAMESPACE => {
                Cow::Owned(format!("{SERVICE_ACCOUNTS}:{namespace}"))
            }
            _ => Cow::Borrowed(&self.name),
        }
    }

    /// The user as a `UserInfo` of `authentication.k8s.io/v1`: empty fields are omitted.
    pub fn to_user_info(&self) -> Value {
        let mut info = Map::new();
        for (field, value) in [("username", &self.name), ("uid", &self.uid)] {
            if !value.is_empty() {
                info.insert(field.into(), json!(value));
            }
        }
        if !self.groups.is_empty() {
            info.insert("groups".into(), json!(self.groups));
        }
        if !self.extra.is_empty() {
            info.insert("extra".into(), json!(self.extra));
        }
        Value::Object(info)
    }
}

/// For logs: the name and the groups.
impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", quote(&self.name), self.groups.join(","))
    }
}

/// The user name of a service account.
pub fn service_account_username(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

/// The groups of a service account, without `system:authenticated`.
pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![SERVICE_ACCOUNTS.into(), format!("{SERVICE_ACCOUNTS}:{namespace}")]
}

/// The namespace and the name of a service account, from its user name; `None` if the name is not one of a service
/// account.
pub fn split_service_account_username(username: &str) -> Option<(&str, &str)> {
    let (namespace, name) = username.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    let namespace_is_label = namespace.len() <= NAMESPACE_MAX_BYTES && !namespace.contains('.');
    let valid =
        namespace_is_label && is_dns1123_subdomain(namespace).is_empty() && is_dns1123_subdomain(name).is_empty();
    valid.then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authenticated_group_is_added_once() {
        let check = |user: User, groups: &[&str]| assert_eq!(user.authenticated().groups, groups);
        check(User::named("ann"), &[AUTHENTICATED]);
        check(User::named("ann").with_group("dev"), &["dev", AUTHENTICATED]);
        check(User::named("ann").with_group(AUTHENTICATED), &[AUTHENTICATED]);
        check(User::named("ann").with_group(UNAUTHENTICATED), &[UNAUTHENTICATED]);
        check(User::anonymous(), &[UNAUTHENTICATED]);
    }

    #[test]
    fn service_account_names_are_split_only_when_valid() {
        let check = |name: &str, parts| assert_eq!(split_service_account_username(name), parts, "{name}");
        check("system:serviceaccount:kube-system:a.b", Some(("kube-system", "a.b")));
        check("system:serviceaccount:a.b:c", None);
        check("system:serviceaccount:a", None);
        check("system:serviceaccount:a:b:c", None);
        check("system:serviceaccount::b", None);
        check("system:serviceaccount:A:b", None);
        check("ann", None);
    }

    #[test]
    fn a_user_is_written_without_empty_fields() {
        assert_eq!(User::default().to_user_info(), json!({}));
        let user = User::service_account("a", "b", "1");
        let expected = json!({"username": "system:serviceaccount:a:b", "uid": "1",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:a"]});
        assert_eq!(user.to_user_info(), expected);
    }
}
