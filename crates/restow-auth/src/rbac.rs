//! Role-based access control: what Roles and ClusterRoles allow, to whom their bindings give it.
//!
//! [`Rules`] is a table of all four kinds in memory, kept up to date object by object. It answers whether a user may
//! do something, what a user may do at all, whether a user may write a role or a binding without gaining power, and
//! which aggregated ClusterRoles are out of date. It reads and writes nothing itself.

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
pub use escalation::{Escalation, RoleGrant, same_but_for_collection};
pub use objects::{Malformed, RbacKind, RoleKind, RoleRef, Subject};
pub use policy_rule::PolicyRule;
pub use rules::{Replacement, Rules};

/// The API group of the four kinds.
pub const GROUP: &str = "rbac.authorization.k8s.io";
