//! Leader election: the controller that holds the lease acts.
//!
//! Correctness does not depend on this. Every write of a controller has preconditions, so two that act at once do no harm;
//! one at a time only saves work.

/// The lease as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// Who holds it; empty when it was released.
    pub holder: String,
    /// Whether this controller has watched it for its whole duration without a change ([`LeaseWatch`](crate::LeaseWatch)).
    pub expired: bool,
}

/// What to do about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// Acquire it: it is released or expired.
    Take,
    /// Renew it: this controller holds it.
    Renew,
    /// Wait: another controller holds it.
    Wait,
}

/// What a controller does about the lease.
pub fn lease_action(lease: Option<&LeaseView>, me: &str) -> LeaseAction {
    match lease {
        None => LeaseAction::Take,
        Some(lease) if lease.holder == me => LeaseAction::Renew,
        Some(lease) if lease.holder.is_empty() || lease.expired => LeaseAction::Take,
        Some(_) => LeaseAction::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_only_when_it_is_free_or_was_seen_to_expire() {
        let lease = |holder: &str, expired: bool| Some(LeaseView { holder: holder.into(), expired });
        for (lease, expected) in [
            (None, LeaseAction::Take),
            (lease("me", false), LeaseAction::Renew),
            (lease("me", true), LeaseAction::Renew),
            (lease("other", false), LeaseAction::Wait),
            (lease("other", true), LeaseAction::Take),
            (lease("", false), LeaseAction::Take),
        ] {
            assert_eq!(lease_action(lease.as_ref(), "me"), expected, "{lease:?}");
        }
    }
}
