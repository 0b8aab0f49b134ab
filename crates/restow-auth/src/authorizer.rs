//! May they: the interface that the server asks, and the one group that no policy is asked about.

use crate::rbac::PolicyRule;
use crate::user::MASTERS;
use crate::{Attributes, User};
use std::sync::{Arc, PoisonError, RwLock};

/// Decides who may do what.
pub trait Authorizer {
    /// Whether the user may do that, and why.
    fn authorize(&self, user: &User, attributes: &Attributes) -> Decision;

    /// All that the user may do in the namespace.
    fn rules_for(&self, user: &User, namespace: &str) -> UserRules;
}

/// An authorizer's answer. There is no "deny": policy only ever adds, and what nobody allows is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// They may.
    Allow {
        /// Which rule says so.
        reason: String,
    },
    /// Nothing says that they may.
    NoOpinion {
        /// What kept the authorizer from knowing better; usually empty.
        reason: String,
    },
}

/// All that a user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserRules {
    /// The rules that were found.
    pub rules: Vec<PolicyRule>,
    /// What kept further rules from being found.
    pub errors: Vec<String>,
}

/// Allows everything to `system:masters` and asks the inner authorizer about everyone else, so that an administrator
/// can repair any policy.
#[derive(Clone, Debug, Default)]
pub struct PrivilegedGroup<A> {
    inner: A,
}

impl Decision {
    /// Whether they may.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Decision::Allow { .. })
    }

    /// Why, or why not.
    pub fn reason(&self) -> &str {
        match self {
            Decision::Allow { reason } | Decision::NoOpinion { reason } => reason,
        }
    }
}

impl<A> PrivilegedGroup<A> {
    /// Puts the privileged group in front of the authorizer.
    pub fn in_front_of(inner: A) -> Self {
        PrivilegedGroup { inner }
    }

    /// The authorizer behind.
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

/// For a policy that a watch keeps up to date. A writer that died half-way left a table that is at worst one object
/// behind, so its poison is ignored. What takes long is asked of the policy as it was, so that nobody waits for it.
impl<A: Authorizer> Authorizer for RwLock<Arc<A>> {
    fn authorize(&self, user: &User, attributes: &Attributes) -> Decision {
        self.read().unwrap_or_else(PoisonError::into_inner).authorize(user, attributes)
    }

    fn rules_for(&self, user: &User, namespace: &str) -> UserRules {
        let policy = self.read().unwrap_or_else(PoisonError::into_inner).clone();
        policy.rules_for(user, namespace)
    }
}
