//! Who asks: a name and groups, as authentication found them. Nothing here knows how they were proven.

use restow_api::validation::is_dns1123_subdomain;
use restow_apimachinery::go_syntax::quote;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The name of a user who showed no credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of everyone who showed valid credentials.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of everyone who did not.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that may do everything, before any policy is asked.
pub const MASTERS: &str = "system:masters";
/// The group of all service accounts.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// The key in a user's extra fields that names the credential that was shown, without revealing it.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The namespace of the cluster's own controllers.
const SYSTEM_NAMESPACE: &str = "kube-system";
const NAMESPACE_MAX_BYTES: usize = 63;

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// What tells apart users who had the same name at different times; may be empty.
    pub uid: String,
    /// The groups, in the order in which they were found.
    pub groups: Vec<String>,
    /// Anything else that the authenticator knows.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A token that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// Whose it is; not yet in the group of the authenticated.
    pub user: User,
    /// Those of the wanted audiences that it is for.
    pub audiences: Vec<String>,
}

impl User {
    /// A user of this name with no groups yet.
    pub fn named(name: impl Into<String>) -> Self {
        User { name: name.into(), ..User::default() }
    }

    /// The user that stands for everyone without credentials.
    pub fn anonymous() -> Self {
        User::named(ANONYMOUS).with_group(UNAUTHENTICATED)
    }

    /// A service account, with the groups that go with it.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let name = service_account_username(namespace, name);
        User { name, uid: uid.into(), groups: service_account_groups(namespace), extra: BTreeMap::new() }
    }

    /// The same user, also in this group.
    pub fn with_group(mut self, group: impl Into<String>) -> Self {
        self.groups.push(group.into());
        self
    }

    /// The same user, also in the group of the authenticated, unless it is anonymous or says itself which it is.
    pub fn authenticated(self) -> Self {
        let settled = self.name == ANONYMOUS || self.is_in(AUTHENTICATED) || self.is_in(UNAUTHENTICATED);
        if settled { self } else { self.with_group(AUTHENTICATED) }
    }

    /// Whether the user is in the group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// Whom the user shares places and turns with. Whoever may write in a namespace can make any number of service accounts
    /// there, so those of a namespace count as one; only who controls the cluster makes accounts in `kube-system`.
    pub fn flow(&self) -> Cow<'_, str> {
        match split_service_account_username(&self.name) {
            Some((namespace, _)) if namespace != SYSTEM_NAMESPACE => {
                Cow::Owned(format!("{SERVICE_ACCOUNTS}:{namespace}"))
            }
            _ => Cow::Borrowed(&self.name),
        }
    }

    /// The user as a `UserInfo` of `authentication.k8s.io/v1`: fields without a value are left out.
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

/// For logs: the name, and the groups in brackets.
impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", quote(&self.name), self.groups.join(","))
    }
}

/// The user name of a service account.
pub fn service_account_username(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

/// The groups of a service account, but for that of the authenticated.
pub fn service_account_groups(namespace: &str) -> Vec<String> {
    vec![SERVICE_ACCOUNTS.into(), format!("{SERVICE_ACCOUNTS}:{namespace}")]
}

/// The namespace and name in a service account's user name; nothing when it is not one.
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
    fn everyone_with_credentials_is_authenticated_once() {
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
