//! The time limits of the trigger.

use super::Backoff;
use jiff::SignedDuration;

/// The time limits of the trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriggerPolicy {
    /// A heartbeat older than this means that changes may have been missed, for a controller that has not reconciled
    /// before.
    pub stale_after: SignedDuration,
    /// For a controller that has: its last reconcile is too long ago.
    pub away_after: SignedDuration,
    /// A heartbeat older than this is renewed even if nothing else has changed.
    pub heartbeat_after: SignedDuration,
    /// The backoff of failed migrations.
    pub backoff: Backoff,
}

/// How much later than planned a controller may reconcile because it, or a server, is busy. If that counted as an
/// interruption, it would migrate everything again, and be even busier.
const SLOWNESS: SignedDuration = SignedDuration::from_mins(2);

impl TriggerPolicy {
    /// The policy of a controller with this resync period. One missed resync is tolerated, two are not: if a heartbeat were
    /// stale after one period, each late timer would start a migration of everything.
    pub fn for_poll_interval(interval: SignedDuration) -> Self {
        TriggerPolicy {
            stale_after: interval.saturating_mul(2),
            away_after: interval.saturating_mul(2).saturating_add(SLOWNESS),
            heartbeat_after: interval / 2,
            backoff: Backoff::default(),
        }
    }
}

impl Default for TriggerPolicy {
    fn default() -> Self {
        TriggerPolicy::for_poll_interval(SignedDuration::from_mins(10))
    }
}
