//! Privilege escalation prevention. A user that writes a role must hold all permissions of the role, or be allowed the verb
//! `escalate` on it. A user that writes a binding must hold all permissions of its role, or be allowed the verb `bind` on
//! the role.

use crate::rbac::cover::{join_verbs, missing};
use crate::rbac::objects::{RbacKind, RoleKind, RoleObject, RoleRef};
use crate::rbac::rules::role_not_found;
use crate::rbac::{GROUP, PolicyRule, Rules};
use crate::user::MASTERS;
use crate::{Authorizer, ResourceAttributes, User};
use restow_apimachinery::go_syntax::{quote, quote_all};
use serde_json::Value;
use std::collections::BTreeSet;
use thiserror::Error;

/// The maximum number of missing permissions that the check searches for.
const MAX_MISSING_PERMISSIONS: usize = 1_000;
/// The maximum size of the list of missing permissions in a message, in bytes.
const MAX_LIST_BYTES: usize = 16 << 10;

/// Why a role or a binding must not be written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Escalation {
    /// The user does not hold the permissions. The text follows "… is forbidden:".
    #[error("{0}")]
    Forbidden(String),
    /// The role that a binding refers to does not exist, so its permissions are unknown.
    #[error("{}", role_not_found(.0))]
    RoleNotFound(RoleRef),
    /// The object itself is malformed.
    #[error("{0}")]
    Malformed(String),
}

/// A write of a role.
#[derive(Clone, Copy, Debug)]
pub struct RoleGrant<'a> {
    /// Its kind.
    pub kind: RoleKind,
    /// Its namespace; empty for a ClusterRole.
    pub namespace: &'a str,
    /// The name in the request's path. Empty for a create: Kubernetes checks the verb `escalate` without a name then.
    pub request_name: &'a str,
    /// The rules of the new role.
    pub rules: &'a [PolicyRule],
    /// Whether the old or the new role has an aggregation rule.
    pub aggregates: bool,
}

impl Rules {
    /// Checks a write of one of the four kinds. `old` is the object before an update; `request_name` is the name in
    /// the request's path, empty for a create.
    pub fn check_write(
        &self,
        user: &User,
        object: &Value,
        old: Option<&Value>,
        request_name: &str,
    ) -> Result<(), Escalation> {
        // The garbage collector changes owner references and finalizers of roles whose permissions it does not hold.
        if user.is_in(MASTERS) || old.is_some_and(|old| only_gc_fields_changed(object, old)) {
            return Ok(());
        }
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let (kind, namespace) = (RbacKind::parse(text("/kind")), text("/metadata/namespace"));
        match kind {
            Some(RbacKind::Role | RbacKind::ClusterRole) => {
                let cluster_wide = kind == Some(RbacKind::ClusterRole);
                let role = RoleObject::read(object).map_err(Escalation::Malformed)?;
                let grant = RoleGrant {
                    kind: if cluster_wide { RoleKind::ClusterRole } else { RoleKind::Role },
                    namespace: if cluster_wide { "" } else { namespace },
                    request_name,
                    rules: role.rules.as_slice(),
                    aggregates: cluster_wide && (aggregates(object) || old.is_some_and(aggregates)),
                };
                self.may_grant(user, &grant)
            }
            Some(RbacKind::RoleBinding | RbacKind::ClusterRoleBinding) => {
                let namespace = if kind == Some(RbacKind::RoleBinding) { namespace } else { "" };
                let role = RoleRef::read(object).map_err(Escalation::Malformed)?;
                self.may_bind(user, namespace, &role)
            }
            None => Ok(()),
        }
    }

    /// Whether the user may write the role.
    pub fn may_grant(&self, user: &User, grant: &RoleGrant<'_>) -> Result<(), Escalation> {
        if user.is_in(MASTERS)
            || self.has_verb_on_role(user, "escalate", grant.kind, grant.namespace, grant.request_name)
        {
            return Ok(());
        }
        self.must_hold(user, grant.namespace, grant.rules)?;
        // The selectors of an aggregate can match any ClusterRole that is created later.
        if grant.aggregates && self.must_hold(user, grant.namespace, &everything()).is_err() {
            return Err(Escalation::Forbidden("must have cluster-admin privileges to use the aggregationRule".into()));
        }
        Ok(())
    }

    /// Whether the user may write a binding of the role in the namespace; the namespace is empty for a ClusterRoleBinding.
    pub fn may_bind(&self, user: &User, namespace: &str, role: &RoleRef) -> Result<(), Escalation> {
        if user.is_in(MASTERS) || self.has_verb_on_role(user, "bind", role.kind, namespace, &role.name) {
            return Ok(());
        }
        let rules = self.rules_of(role, namespace).ok_or_else(|| Escalation::RoleNotFound(role.clone()))?;
        self.must_hold(user, namespace, rules)
    }

    fn has_verb_on_role(&self, user: &User, verb: &str, kind: RoleKind, namespace: &str, name: &str) -> bool {
        let attributes = ResourceAttributes {
            verb: verb.into(),
            group: GROUP.into(),
            version: "*".into(),
            resource: kind.resource().into(),
            subresource: String::new(),
            namespace: namespace.into(),
            name: name.into(),
        };
        self.authorize(user, &attributes.into()).is_allowed()
    }

    fn must_hold(&self, user: &User, namespace: &str, wanted: &[PolicyRule]) -> Result<(), Escalation> {
        let (held, errors) = self.held_by(user, namespace);
        let missing = missing(&held, wanted, MAX_MISSING_PERMISSIONS);
        if missing.rules.is_empty() {
            return Ok(());
        }
        let lines: BTreeSet<String> = join_verbs(missing.rules).iter().map(PolicyRule::describe).collect();
        let (name, groups) = (quote(&user.name), quote_all(&user.groups));
        let mut message = format!(
            "user {name} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{}",
            truncated_list(&lines, missing.more)
        );
        if !errors.is_empty() {
            message.push_str(&format!("; resolution errors: [{}]", errors.join(" ")));
        }
        Err(Escalation::Forbidden(message))
    }
}

/// The lines, up to the maximum size of the list.
fn truncated_list(lines: &BTreeSet<String>, more: bool) -> String {
    let mut room = MAX_LIST_BYTES;
    let fits = |line: &&String| {
        let fits = line.len() <= room;
        room = room.saturating_sub(line.len());
        fits
    };
    let mut shown: Vec<&str> = lines.iter().take_while(fits).map(String::as_str).collect();
    if more || shown.len() < lines.len() {
        shown.push("... and more");
    }
    shown.join("\n")
}

fn everything() -> [PolicyRule; 2] {
    let all = || vec!["*".to_string()];
    [
        PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() },
    ]
}

fn aggregates(role: &Value) -> bool {
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
    selectors.is_some_and(|selectors| !selectors.is_empty())
}

/// Whether an update changes only fields that the garbage collector and storage migrations change.
pub fn only_gc_fields_changed(object: &Value, old: &Value) -> bool {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "selfLink", "managedFields"] {
                metadata.remove(field);
            }
        }
        object
    };
    stripped(object) == stripped(old)
}
