//! Which of several controllers acts: the one that holds the lease.
//!
//! Nothing that must be true depends on this. Every write of a controller carries preconditions, so two that act at once
//! do each other no harm; one at a time is only less work.

/// The lease as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// Who holds it; empty when it was released.
    pub holder: String,
    /// Whether this controller has watched it for its whole duration without seeing it change
    /// ([`LeaseWatch`](crate::LeaseWatch)).
    pub expired: bool,
}

/// What to do about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// Take it: nobody holds it, or whoever did has let it expire.
    Take,
    /// Renew it: it is ours.
    Renew,
    /// Someone else holds it.
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
