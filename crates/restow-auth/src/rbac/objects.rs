//! The four kinds as the index needs them, read from API objects. What is malformed is refused here, with a reason, so
//! that it can never allow anything.

use crate::json::{WrongType, items, object, text, text_map};
use crate::rbac::label_selector::LabelSelector;
use crate::rbac::policy_rule::PolicyRule;
use crate::rbac::role_rules::RoleRules;
use crate::user::service_account_username;
use restow_apimachinery::go_syntax::quote;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// The kinds that make up the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RbacKind {
    /// Rules within a namespace.
    Role,
    /// Gives a role to subjects within a namespace.
    RoleBinding,
    /// Rules for the whole cluster, or to be given within namespaces.
    ClusterRole,
    /// Gives a ClusterRole to subjects everywhere.
    ClusterRoleBinding,
}

/// The kinds that a binding can refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoleKind {
    /// A Role in the binding's namespace.
    Role,
    /// A ClusterRole.
    ClusterRole,
}

/// The role that a binding gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoleRef {
    /// Its kind.
    pub kind: RoleKind,
    /// Its name.
    pub name: String,
}

/// Someone to whom a binding gives a role.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A user, by name.
    User(String),
    /// Everyone in a group.
    Group(String),
    /// A service account.
    ServiceAccount {
        /// Its namespace; never empty.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// An object that cannot be part of the policy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{kind} {} is ignored: {problem}", quote(&full_name(.namespace, .name)))]
pub struct Malformed {
    /// Its kind, or what it says is its kind.
    pub kind: String,
    /// Its namespace; empty when it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What is wrong.
    pub problem: String,
}

/// A Role or ClusterRole.
#[derive(Clone, Debug, Default)]
pub struct RoleObject {
    pub rules: RoleRules,
    pub labels: BTreeMap<String, String>,
    /// The selectors of the roles that this one gathers; none when it is not an aggregate.
    pub aggregation: Option<Vec<LabelSelector>>,
}

/// A RoleBinding or ClusterRoleBinding.
#[derive(Clone, Debug)]
pub(super) struct Binding {
    /// Empty for a ClusterRoleBinding.
    pub namespace: String,
    pub name: String,
    pub role: RoleRef,
    pub subjects: Vec<Subject>,
}

impl RbacKind {
    /// All four.
    pub const ALL: [RbacKind; 4] =
        [RbacKind::Role, RbacKind::RoleBinding, RbacKind::ClusterRole, RbacKind::ClusterRoleBinding];

    /// The kind's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            RbacKind::Role => "Role",
            RbacKind::RoleBinding => "RoleBinding",
            RbacKind::ClusterRole => "ClusterRole",
            RbacKind::ClusterRoleBinding => "ClusterRoleBinding",
        }
    }

    /// The kind of that name.
    pub fn parse(name: &str) -> Option<Self> {
        RbacKind::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for RbacKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl RoleKind {
    /// The kind's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            RoleKind::Role => "Role",
            RoleKind::ClusterRole => "ClusterRole",
        }
    }

    /// The resource that objects of the kind are.
    pub fn resource(self) -> &'static str {
        match self {
            RoleKind::Role => "roles",
            RoleKind::ClusterRole => "clusterroles",
        }
    }
}

impl RoleRef {
    /// Reads the `roleRef` of a binding.
    pub fn read(role_ref: &Value) -> Result<Self, String> {
        let kind = match text(role_ref, "kind").map_err(describe)? {
            "Role" => RoleKind::Role,
            "ClusterRole" => RoleKind::ClusterRole,
            other => return Err(format!("unsupported role reference kind: {}", quote(other))),
        };
        Ok(RoleRef { kind, name: text(role_ref, "name").map_err(describe)?.into() })
    }
}

impl Subject {
    /// The user name that the subject stands for, unless it is a group.
    pub fn username(&self) -> Option<String> {
        match self {
            Subject::User(name) => Some(name.clone()),
            Subject::ServiceAccount { namespace, name } => Some(service_account_username(namespace, name)),
            Subject::Group(_) => None,
        }
    }

    /// Reads a subject. One of an unknown kind, or a service account without a namespace, applies to nobody.
    fn read(subject: &Value, binding_namespace: &str) -> Result<Option<Self>, WrongType> {
        let name = text(subject, "name")?.to_string();
        let namespace = match text(subject, "namespace")? {
            "" => binding_namespace,
            namespace => namespace,
        };
        Ok(match text(subject, "kind")? {
            "User" => Some(Subject::User(name)),
            "Group" => Some(Subject::Group(name)),
            "ServiceAccount" if !namespace.is_empty() => {
                Some(Subject::ServiceAccount { namespace: namespace.into(), name })
            }
            _ => None,
        })
    }
}

/// As Kubernetes' reasons name a subject: a service account's name comes before its namespace.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::User(name) => write!(f, "User {}", quote(name)),
            Subject::Group(name) => write!(f, "Group {}", quote(name)),
            Subject::ServiceAccount { namespace, name } => {
                write!(f, "ServiceAccount {}", quote(&format!("{name}/{namespace}")))
            }
        }
    }
}

impl RoleObject {
    pub fn read(role: &Value) -> Result<Self, String> {
        let rules: Result<Vec<PolicyRule>, WrongType> = read_each(role, "rules", PolicyRule::read);
        let metadata = role.get("metadata").unwrap_or(&Value::Null);
        let aggregation = match object(role, "aggregationRule").map_err(describe)? {
            None => None,
            Some(rule) => Some(read_each(rule, "clusterRoleSelectors", LabelSelector::read).map_err(describe)?),
        };
        Ok(RoleObject {
            rules: RoleRules::new(rules.map_err(describe)?),
            labels: text_map(metadata, "labels").map_err(describe)?,
            aggregation,
        })
    }
}

impl Binding {
    pub(super) fn read(namespace: &str, name: &str, binding: &Value) -> Result<Self, String> {
        let role_ref = object(binding, "roleRef").map_err(describe)?.unwrap_or(&Value::Null);
        let role = RoleRef::read(role_ref)?;
        if namespace.is_empty() && role.kind == RoleKind::Role {
            return Err("a ClusterRoleBinding cannot refer to a Role".into());
        }
        let subjects = read_each(binding, "subjects", |subject| Subject::read(subject, namespace));
        let subjects = subjects.map_err(describe)?.into_iter().flatten().collect();
        Ok(Binding { namespace: namespace.into(), name: name.into(), role, subjects })
    }
}

/// Reads all rules of a role, for checks of a role that is about to be written.
pub(super) fn read_rules(role: &Value) -> Result<Vec<PolicyRule>, String> {
    read_each(role, "rules", PolicyRule::read).map_err(describe)
}

fn read_each<T>(
    object: &Value,
    field: &str,
    read: impl Fn(&Value) -> Result<T, WrongType>,
) -> Result<Vec<T>, WrongType> {
    let numbered = items(object, field)?.iter().enumerate();
    numbered.map(|(index, item)| read(item).map_err(|error| error.within(&format!("{field}[{index}]")))).collect()
}

fn describe(error: WrongType) -> String {
    error.to_string()
}

fn full_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}") }
}
