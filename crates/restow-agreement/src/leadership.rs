//! Which of several controllers acts: the one that holds the lease.
//!
//! Nothing that must be true depends on this. Every write of a controller carries preconditions, so two that act at once
//! do each other no harm; one at a time is only less work.

use jiff::{SignedDuration, Timestamp};

/// The lease as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// Who holds it; empty when it was given up.
    pub holder: String,
    /// When it was last renewed.
    pub renewed: Option<Timestamp>,
    /// How long it lasts from then on.
    pub duration: Option<SignedDuration>,
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

/// What a controller does about the lease. `unchanged_for` is how long the lease has looked like this *to us*: clocks
/// of different machines differ, so an expiry is believed only when we have watched the lease for its whole duration.
pub fn step(lease: Option<&LeaseView>, me: &str, unchanged_for: SignedDuration) -> Step {
    let Some(lease) = lease else { return Step::Take };
    if lease.holder == me {
        return Step::Renew;
    }
    let duration = lease.duration.unwrap_or(SignedDuration::from_secs(15));
    if lease.holder.is_empty() || unchanged_for > duration { Step::Take } else { Step::Wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_only_when_it_is_free_or_was_seen_to_expire() {
        let lease = |holder: &str| LeaseView {
            holder: holder.into(),
            renewed: Some(Timestamp::UNIX_EPOCH),
            duration: Some(SignedDuration::from_secs(15)),
        };
        let seconds = SignedDuration::from_secs;
        for (lease, unchanged_for, expected) in [
            (None, 0, Step::Take),
            (Some(lease("me")), 0, Step::Renew),
            (Some(lease("other")), 0, Step::Wait),
            (Some(lease("other")), 15, Step::Wait),
            (Some(lease("other")), 16, Step::Take),
            (Some(lease("")), 0, Step::Take),
        ] {
            assert_eq!(step(lease.as_ref(), "me", seconds(unchanged_for)), expected, "{lease:?} for {unchanged_for} s");
        }
    }
}
