//! The numbers that the trigger uses.

use super::Backoff;
use jiff::SignedDuration;

/// How the trigger judges time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriggerPolicy {
    /// A heartbeat older than this means that changes may have been missed, for one who has not looked before.
    pub stale_after: SignedDuration,
    /// A look of one's own older than this means the same: one was away, not only slow.
    pub away_after: SignedDuration,
    /// A heartbeat older than this is renewed, though nothing else has changed.
    pub heartbeat_after: SignedDuration,
    /// When failed migrations are tried again.
    pub backoff: Backoff,
}

/// How much later than planned a controller may look because it, or a server, has much to do. Were it mistaken for having
/// been away, it would migrate everything again, and have even more to do.
const SLOWNESS: SignedDuration = SignedDuration::from_mins(2);

impl TriggerPolicy {
    /// The policy of a controller that looks at least this often. One missed look is forgiven, two are not: were a
    /// heartbeat stale as soon as one interval had passed, each late timer would start a migration of everything.
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
