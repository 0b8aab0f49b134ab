//! The numbers that the trigger goes by.

use super::Backoff;
use jiff::SignedDuration;

/// How the trigger judges time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriggerPolicy {
    /// A heartbeat older than this means that changes may have been missed.
    pub stale_after: SignedDuration,
    /// A heartbeat older than this is renewed, though nothing else has changed.
    pub heartbeat_after: SignedDuration,
    /// When failed migrations are tried again.
    pub backoff: Backoff,
}

impl TriggerPolicy {
    /// The policy of a controller that looks at least this often. One missed look is forgiven, two are not: were a
    /// heartbeat stale as soon as one interval had passed, each late timer would start a migration of everything.
    pub fn for_poll_interval(interval: SignedDuration) -> Self {
        TriggerPolicy {
            stale_after: interval.saturating_mul(2),
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
