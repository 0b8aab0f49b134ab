//! The four RBAC kinds, parsed from API objects. A malformed object is refused with a reason, so it never allows anything.

use crate::rbac::role_rules::RoleRules;
use crate::user::service_account_username;
use restow_apimachinery::go_syntax::quote;
use restow_apimachinery::meta_v1::LabelSelector;
use restow_apimachinery::typed;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// The kinds of the RBAC policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RbacKind {
    /// Rules within a namespace.
    Role,
    /// Grants a Role or ClusterRole to subjects within a namespace.
    RoleBinding,
    /// Rules for the whole cluster, or for a RoleBinding to grant within a namespace.
    ClusterRole,
    /// Grants a ClusterRole to subjects in the whole cluster.
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

/// The role that a binding grants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoleRef {
    /// Its kind.
    pub kind: RoleKind,
    /// Its name.
    pub name: String,
}

/// A subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A user, by name.
    User(String),
    /// All users of a group.
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
    /// The value of its field `kind`.
    pub kind: String,
    /// Its namespace; empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What is wrong.
    pub problem: String,
}

/// A Role or ClusterRole.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleObject {
    pub metadata: Metadata,
    pub rules: RoleRules,
    /// `None` if the role is not an aggregate.
    pub aggregation_rule: Option<AggregationRule>,
}

/// The metadata that aggregation needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Metadata {
    pub labels: BTreeMap<String, String>,
}

/// The selectors of an aggregated ClusterRole.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AggregationRule {
    pub cluster_role_selectors: Vec<LabelSelector>,
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

/// The fields of a RoleBinding or ClusterRoleBinding.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BindingFields {
    role_ref: Reference,
    subjects: Vec<Reference>,
}

/// A `roleRef` or a subject. A `roleRef` has no namespace.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Reference {
    kind: String,
    name: String,
    namespace: String,
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

    /// Parses the name of a kind.
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

    /// The plural resource name of the kind.
    pub fn resource(self) -> &'static str {
        match self {
            RoleKind::Role => "roles",
            RoleKind::ClusterRole => "clusterroles",
        }
    }
}

impl RoleRef {
    /// The role that a binding refers to.
    pub(super) fn read(binding: &Value) -> Result<Self, String> {
        let binding: BindingFields = typed::read(binding).map_err(|error| error.to_string())?;
        RoleRef::try_from(binding.role_ref)
    }
}

impl TryFrom<Reference> for RoleRef {
    type Error = String;

    fn try_from(reference: Reference) -> Result<Self, String> {
        let kind = match reference.kind.as_str() {
            "Role" => RoleKind::Role,
            "ClusterRole" => RoleKind::ClusterRole,
            other => return Err(format!("unsupported role reference kind: {}", quote(other))),
        };
        Ok(RoleRef { kind, name: reference.name })
    }
}

impl Subject {
    /// The user name of the subject; `None` for a group.
    pub fn username(&self) -> Option<String> {
        match self {
            Subject::User(name) => Some(name.clone()),
            Subject::ServiceAccount { namespace, name } => Some(service_account_username(namespace, name)),
            Subject::Group(_) => None,
        }
    }

    /// The subject of a binding in the namespace. `None` for an unknown kind and for a service account without a
    /// namespace: they match no user.
    fn of(reference: Reference, binding_namespace: &str) -> Option<Self> {
        let Reference { kind, name, mut namespace } = reference;
        if namespace.is_empty() {
            namespace = binding_namespace.into();
        }
        match kind.as_str() {
            "User" => Some(Subject::User(name)),
            "Group" => Some(Subject::Group(name)),
            "ServiceAccount" if !namespace.is_empty() => Some(Subject::ServiceAccount { namespace, name }),
            _ => None,
        }
    }
}

/// The form of Kubernetes' reasons: a service account's name comes before its namespace.
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
        typed::read(role).map_err(|error| error.to_string())
    }
}

impl Binding {
    pub(super) fn read(namespace: &str, name: &str, binding: &Value) -> Result<Self, String> {
        let binding: BindingFields = typed::read(binding).map_err(|error| error.to_string())?;
        let role = RoleRef::try_from(binding.role_ref)?;
        if namespace.is_empty() && role.kind == RoleKind::Role {
            return Err("a ClusterRoleBinding cannot refer to a Role".into());
        }
        let subjects = binding.subjects.into_iter().filter_map(|subject| Subject::of(subject, namespace)).collect();
        Ok(Binding { namespace: namespace.into(), name: name.into(), role, subjects })
    }
}

fn full_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}") }
}
