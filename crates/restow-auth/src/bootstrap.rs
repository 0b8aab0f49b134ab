//! The default roles and bindings of every cluster, and how existing objects are reconciled with them.
//!
//! The policy is a table, `default_policy.txt`; `table.rs` makes objects of it. At each start the server compares each
//! object with the stored one ([`reconcile`]) and writes the result.

mod reconcile;
mod table;

#[cfg(test)]
mod tests;

pub use reconcile::{Reconciliation, reconcile};

use restow_tables::{checked, default_policy};
use serde_json::Value;

/// The server reconciles an object with the value `"true"` at each start, and never changes one with `"false"`.
pub const AUTOUPDATE_ANNOTATION: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// The label of the objects of the default policy.
pub const BOOTSTRAPPING_LABEL: &str = "kubernetes.io/bootstrapping";

/// The default policy: ClusterRoles, their bindings, then Roles in `kube-system` and `kube-public` and theirs. The
/// aggregates `admin`, `edit` and `view` have no rules yet: see `Rules::stale_aggregates`.
pub fn bootstrap_objects() -> Vec<Value> {
    table::objects(checked(default_policy::parse(include_str!("bootstrap/default_policy.txt"))))
}
