//! Role-based access control: Roles and ClusterRoles allow requests, and bindings grant them to subjects.
//!
//! [`Rules`] is a table of all four kinds in memory, updated object by object. It authorizes requests, lists the rules of
//! a user, checks writes of roles and bindings for privilege escalation, and finds aggregated ClusterRoles that are out
//! of date. It does no I/O.

mod aggregation;
mod bindings;
mod cover;
mod escalation;
mod objects;
mod policy_rule;
mod role_rules;
mod rules;

#[cfg(test)]
mod tests;

pub use cover::uncovered;
pub use escalation::{Escalation, RoleGrant, only_gc_fields_changed};
pub use objects::{Malformed, RbacKind, RoleKind, RoleRef, Subject};
pub use policy_rule::PolicyRule;
pub use rules::{Replacement, Rules};

/// The API group of the four kinds.
pub const GROUP: &str = "rbac.authorization.k8s.io";
