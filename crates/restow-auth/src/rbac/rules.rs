//! The RBAC policy in memory, and the authorizer that evaluates it.

use crate::rbac::bindings::{Bindings, first_matching_subject};
use crate::rbac::objects::{Binding, Malformed, RbacKind, RoleKind, RoleObject, RoleRef};
use crate::rbac::role_rules::{RoleRules, RuleLookup};
use crate::rbac::{GROUP, PolicyRule};
use crate::{Attributes, Authorizer, Decision, User, UserRules};
use restow_apimachinery::go_syntax::{aggregate, quote};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The policy: all roles and bindings. A clone shares the objects, so it is cheap.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The ClusterRoles by name.
    pub cluster_roles: HashMap<String, Arc<RoleObject>>,
    roles: HashMap<String, HashMap<String, Arc<RoleObject>>>,
    cluster_bindings: Bindings,
    bindings: HashMap<String, Bindings>,
}

/// A parsed object that replaces the one of the same name. Parsing a large object takes long, so it happens before the
/// caller locks the policy.
#[derive(Debug)]
pub struct Replacement<'a> {
    kind: RbacKind,
    namespace: &'a str,
    name: &'a str,
    object: Parsed,
}

/// The parsed object; `None` if it was deleted or is malformed.
#[derive(Debug)]
enum Parsed {
    Role(Option<RoleObject>),
    Binding(Option<Binding>),
}

impl<'a> Replacement<'a> {
    /// Parses a role or a binding; without a value, the object was deleted.
    pub fn read(
        kind: RbacKind,
        namespace: &'a str,
        name: &'a str,
        value: Option<&Value>,
    ) -> (Self, Result<(), Malformed>) {
        let (object, outcome) = match kind {
            RbacKind::Role | RbacKind::ClusterRole => {
                let (role, outcome) = split(value.map(RoleObject::read));
                (Parsed::Role(role), outcome)
            }
            RbacKind::RoleBinding | RbacKind::ClusterRoleBinding => {
                let scope = if kind == RbacKind::RoleBinding { namespace } else { "" };
                let (binding, outcome) = split(value.map(|value| Binding::read(scope, name, value)));
                (Parsed::Binding(binding), outcome)
            }
        };
        let outcome = outcome.map_err(|problem| malformed(kind.as_str(), namespace, name, problem));
        (Replacement { kind, namespace, name, object }, outcome)
    }
}

impl Rules {
    /// The policy of these objects, and errors for the malformed ones.
    pub fn from_objects<'a>(objects: impl IntoIterator<Item = &'a Value>) -> (Self, Vec<Malformed>) {
        let mut rules = Rules::default();
        let mut errors = Vec::new();
        for object in objects {
            let field = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
            let (namespace, name) = (field("/metadata/namespace"), field("/metadata/name"));
            let outcome = match RbacKind::parse(field("/kind")) {
                Some(kind) => rules.set(kind, namespace, name, Some(object)),
                None => Err(malformed(field("/kind"), namespace, name, "its kind is not part of the policy".into())),
            };
            errors.extend(outcome.err());
        }
        (rules, errors)
    }

    /// Replaces one object; without a value, removes it. A malformed value removes the object too: the rules of its
    /// earlier version must not stay in force.
    pub fn set(&mut self, kind: RbacKind, namespace: &str, name: &str, value: Option<&Value>) -> Result<(), Malformed> {
        let (replacement, outcome) = Replacement::read(kind, namespace, name, value);
        self.replace(replacement);
        outcome
    }

    /// Replaces one object by the parsed one.
    pub fn replace(&mut self, replacement: Replacement<'_>) {
        let Replacement { kind, namespace, name, object } = replacement;
        match object {
            Parsed::Role(role) => self.set_role(kind, namespace, name, role),
            Parsed::Binding(binding) if kind == RbacKind::RoleBinding => {
                let bindings = self.bindings.entry(namespace.into()).or_default();
                bindings.set(name, binding);
                if bindings.is_empty() {
                    self.bindings.remove(namespace);
                }
            }
            Parsed::Binding(binding) => self.cluster_bindings.set(name, binding),
        }
    }

    /// The namespaces and names of all objects of a kind; the namespace of cluster-scoped objects is empty.
    pub fn names(&self, kind: RbacKind) -> Vec<(String, String)> {
        let cluster = |name: &String| (String::new(), name.clone());
        match kind {
            RbacKind::ClusterRole => self.cluster_roles.keys().map(cluster).collect(),
            RbacKind::ClusterRoleBinding => self.cluster_bindings.names().map(cluster).collect(),
            RbacKind::Role => {
                let all = self.roles.iter();
                all.flat_map(|(namespace, roles)| roles.keys().map(|name| (namespace.clone(), name.clone()))).collect()
            }
            RbacKind::RoleBinding => {
                let all = self.bindings.iter();
                all.flat_map(|(namespace, bindings)| bindings.names().map(|name| (namespace.clone(), name.clone())))
                    .collect()
            }
        }
    }

    /// The rules of the role that a binding in the namespace refers to; the namespace is empty for a ClusterRoleBinding.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Option<&[PolicyRule]> {
        self.role(role, namespace).map(|role| role.rules.as_slice())
    }

    /// The role that a binding in the namespace refers to.
    pub fn role(&self, role: &RoleRef, namespace: &str) -> Option<&RoleObject> {
        let found = match role.kind {
            RoleKind::ClusterRole => self.cluster_roles.get(&role.name),
            RoleKind::Role => self.roles.get(namespace)?.get(&role.name),
        };
        found.map(Arc::as_ref)
    }

    fn set_role(&mut self, kind: RbacKind, namespace: &str, name: &str, role: Option<RoleObject>) {
        let roles = match kind {
            RbacKind::ClusterRole => &mut self.cluster_roles,
            _ => self.roles.entry(namespace.into()).or_default(),
        };
        match role {
            Some(role) => _ = roles.insert(name.into(), Arc::new(role)),
            None => _ = roles.remove(name),
        }
        if kind == RbacKind::Role && roles.is_empty() {
            self.roles.remove(namespace);
        }
    }

    /// The bindings that apply to the user in the namespace, ClusterRoleBindings first. A binding can occur several times.
    fn applying<'a>(&'a self, user: &'a User, namespace: &str) -> impl Iterator<Item = &'a Arc<Binding>> {
        let local = if namespace.is_empty() { None } else { self.bindings.get(namespace) };
        let local = local.into_iter().flat_map(|bindings| bindings.applying_to(user));
        self.cluster_bindings.applying_to(user).chain(local)
    }

    /// The rules that apply to the user in the namespace, and errors for roles that do not exist.
    pub fn held_by(&self, user: &User, namespace: &str) -> (Vec<&PolicyRule>, Vec<String>) {
        let (mut held, mut errors) = (Vec::new(), Vec::new());
        let applying = self.applying(user, namespace).map(|binding| ((&binding.namespace, &binding.name), binding));
        for binding in applying.collect::<BTreeMap<_, _>>().into_values() {
            match self.role_of(binding) {
                Ok(rules) => held.extend(rules.as_slice()),
                Err(error) => errors.push(error),
            }
        }
        (held, errors)
    }

    fn role_of(&self, binding: &Binding) -> Result<&RoleRules, String> {
        let role = self.role(&binding.role, &binding.namespace).map(|role| &role.rules);
        role.ok_or_else(|| role_not_found(&binding.role))
    }
}

impl Authorizer for Rules {
    fn authorize(&self, user: &User, attributes: &Attributes) -> Decision {
        let lookup = RuleLookup::new(attributes);
        let mut errors = Vec::new();
        for binding in self.applying(user, attributes.namespace()) {
            match self.role_of(binding) {
                Ok(rules) if rules.allow(&lookup) => return Decision::Allow { reason: allowed_by(binding, user) },
                Ok(_) => {}
                Err(error) => errors.push(error),
            }
        }
        let reason = if errors.is_empty() { String::new() } else { format!("RBAC: {}", aggregate(&errors)) };
        Decision::NoOpinion { reason }
    }

    fn rules_for(&self, user: &User, namespace: &str) -> UserRules {
        let (rules, errors) = self.held_by(user, namespace);
        UserRules { rules: rules.into_iter().cloned().collect(), errors }
    }
}

/// Kubernetes' message for a role that does not exist.
pub(super) fn role_not_found(role: &RoleRef) -> String {
    format!("{}.{GROUP} {} not found", role.kind.as_str().to_lowercase(), quote(&role.name))
}

fn allowed_by(binding: &Binding, user: &User) -> String {
    let (kind, name) = match binding.namespace.as_str() {
        "" => (RbacKind::ClusterRoleBinding, binding.name.clone()),
        namespace => (RbacKind::RoleBinding, format!("{}/{namespace}", binding.name)),
    };
    let subject = first_matching_subject(binding, user).map(ToString::to_string).unwrap_or_default();
    let (name, role) = (quote(&name), quote(&binding.role.name));
    format!("RBAC: allowed by {kind} {name} of {} {role} to {subject}", binding.role.kind.as_str())
}

fn malformed(kind: &str, namespace: &str, name: &str, problem: String) -> Malformed {
    Malformed { kind: kind.into(), namespace: namespace.into(), name: name.into(), problem }
}

fn split<T>(read: Option<Result<T, String>>) -> (Option<T>, Result<(), String>) {
    match read {
        None => (None, Ok(())),
        Some(Ok(object)) => (Some(object), Ok(())),
        Some(Err(problem)) => (None, Err(problem)),
    }
}
