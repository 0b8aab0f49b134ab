//! When an identity lease has expired.

use jiff::{SignedDuration, Timestamp};
use restow_api::{ResourceVersion, ServerId};

/// An identity lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityLease {
    /// The server that it belongs to.
    pub id: ServerId,
    /// The control plane that the server is part of; nothing where the lease is not the identity of an API server.
    pub control_plane: Option<String>,
    /// The lease's revision, which deleting it must name as a precondition: a renewal in between saves it.
    pub revision: ResourceVersion,
    /// When it was renewed and for how long; nothing when the lease does not say both.
    pub times: Option<LeaseTimes>,
}

/// When a lease was renewed, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// The last renewal, by the clock of the server that owns the lease.
    pub renewed: Timestamp,
    /// How long the lease lasts from then on.
    pub duration: SignedDuration,
}

impl IdentityLease {
    /// Whether the lease had expired at `now`. As in Kubernetes, a lease without times is not one of an API server that
    /// lives, and counts as expired.
    ///
    /// `now` and the renewal come from two clocks. If they differ, a live server may be collected or a dead one kept for
    /// longer; neither breaks a rule, because a collected server cannot write before it registers anew.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        match self.times {
            None => true,
            // A sum past the end of time never comes.
            Some(times) => times.renewed.checked_add(times.duration).is_ok_and(|end| end < now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_lasts_for_its_duration_and_not_longer() {
        let renewed: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut lease = IdentityLease {
            id: "a".parse().unwrap(),
            control_plane: None,
            revision: ResourceVersion::new("1"),
            times: Some(LeaseTimes { renewed, duration: SignedDuration::from_secs(10) }),
        };
        assert!(!lease.is_expired(renewed));
        assert!(!lease.is_expired(renewed + SignedDuration::from_secs(10)));
        assert!(lease.is_expired(renewed + SignedDuration::from_millis(10_001)));
        lease.times = Some(LeaseTimes { renewed, duration: SignedDuration::MAX });
        assert!(!lease.is_expired(Timestamp::MAX));
        lease.times = None;
        assert!(lease.is_expired(renewed));
    }
}
