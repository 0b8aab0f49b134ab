//! Which of several controllers acts: the one that holds the lease.
//!
//! Nothing that must be true depends on this. Every write of a controller carries preconditions, so two that act at once
//! do each other no harm; one at a time is only less work.

/// The lease as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// Who holds it; empty when it was given up.
    pub holder: String,
    /// Whether this controller has watched it for its whole duration without seeing it change
    /// ([`LeaseWatch`](crate::LeaseWatch)).
    pub expired: bool,
}

/// What to do about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Take it: nobody holds it, or whoever did has let it expire.
    Take,
    /// Renew it: it is ours.
    Renew,
    /// Someone else holds it.
    Wait,
}

/// What a controller does about the lease.
pub fn step(lease: Option<&LeaseView>, me: &str) -> Step {
    match lease {
        None => Step::Take,
        Some(lease) if lease.holder == me => Step::Renew,
        Some(lease) if lease.holder.is_empty() || lease.expired => Step::Take,
        Some(_) => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_only_when_it_is_free_or_was_seen_to_expire() {
        let lease = |holder: &str, expired: bool| Some(LeaseView { holder: holder.into(), expired });
        for (lease, expected) in [
            (None, Step::Take),
            (lease("me", false), Step::Renew),
            (lease("me", true), Step::Renew),
            (lease("other", false), Step::Wait),
            (lease("other", true), Step::Take),
            (lease("", false), Step::Take),
        ] {
            assert_eq!(step(lease.as_ref(), "me"), expected, "{lease:?}");
        }
    }
}
