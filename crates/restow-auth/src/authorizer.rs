//! Authorization: the interface that the server calls, and the privileged group `system:masters`.

use crate::rbac::PolicyRule;
use crate::user::MASTERS;
use crate::{Attributes, User};
use std::sync::{Arc, PoisonError, RwLock};

/// Authorizes requests.
pub trait Authorizer {
    /// Whether the user may make a request with these attributes, with the reason.
    fn authorize(&self, user: &User, attributes: &Attributes) -> Decision;

    /// All rules that apply to the user in the namespace.
    fn rules_for(&self, user: &User, namespace: &str) -> UserRules;
}

/// An authorizer's decision. There is no "deny": rules only allow, and the server refuses what no rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request is allowed.
    Allow {
        /// The binding that allows it.
        reason: String,
    },
    /// No rule allows the request.
    NoOpinion {
        /// Errors of the evaluation, such as a missing role; usually empty.
        reason: String,
    },
}

/// The rules that apply to a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserRules {
    /// The rules that were found.
    pub rules: Vec<PolicyRule>,
    /// Errors because of which rules may be missing.
    pub errors: Vec<String>,
}

/// Allows everything to `system:masters`, so that an administrator can repair any policy. The inner authorizer decides
/// for all other users.
#[derive(Clone, Debug, Default)]
pub struct PrivilegedGroup<A> {
    inner: A,
}

impl Decision {
    /// Whether the request is allowed.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Decision::Allow { .. })
    }

    /// The reason of the decision.
    pub fn reason(&self) -> &str {
        match self {
            Decision::Allow { reason } | Decision::NoOpinion { reason } => reason,
        }
    }
}

impl<A> PrivilegedGroup<A> {
    /// Wraps an authorizer.
    pub fn new(inner: A) -> Self {
        PrivilegedGroup { inner }
    }

    /// The wrapped authorizer.
    pub fn inner(&self) -> &A {
        &self.inner
    }
}

impl<A: Authorizer> Authorizer for PrivilegedGroup<A> {
    fn authorize(&self, user: &User, attributes: &Attributes) -> Decision {
        if user.is_in(MASTERS) {
            return Decision::Allow { reason: String::new() };
        }
        self.inner.authorize(user, attributes)
    }

    fn rules_for(&self, user: &User, namespace: &str) -> UserRules {
        self.inner.rules_for(user, namespace)
    }
}

impl<A: Authorizer + ?Sized> Authorizer for Arc<A> {
    fn authorize(&self, user: &User, attributes: &Attributes) -> Decision {
        (**self).authorize(user, attributes)
    }

    fn rules_for(&self, user: &User, namespace: &str) -> UserRules {
        (**self).rules_for(user, namespace)
    }
}

/// For a policy that a watch keeps up to date. A poisoned lock is ignored: a writer that panicked left a table that is at
/// most one object behind. `rules_for` takes long, so it works on a snapshot and does not hold the lock.
impl<A: Authorizer> Authorizer for RwLock<Arc<A>> {
    fn authorize(&self, user: &User, attributes: &Attributes) -> Decision {
        self.read().unwrap_or_else(PoisonError::into_inner).authorize(user, attributes)
    }

    fn rules_for(&self, user: &User, namespace: &str) -> UserRules {
        let policy = self.read().unwrap_or_else(PoisonError::into_inner).clone();
        policy.rules_for(user, namespace)
    }
}
