//! The trigger: when to migrate, and which versions may be stored.
//!
//! [`decide`] looks at one resource: what the API servers encode, its StorageState, its migrations. It returns effects. It
//! keeps no state of its own, so an interrupted reconcile is simply repeated.
//!
//! The persisted versions may contain too many versions, never too few:
//!
//! * Every version that any server was seen to encode is added at once, before a migration to it starts.
//! * Only a migration that succeeded removes versions, and only down to the version that *this migration was for*, plus what
//!   was seen since. (With the version that is current when the success is noticed, a change in between would be lost.)
//! * If something may have been missed (no reconcile for too long, an interrupted watch), they become "Unknown", unless the
//!   CRD has recorded it meanwhile.
//!
//! Migrations that others created are never removed: they run, and users wait for them by name.

mod backoff;
mod decide;
mod effect;
mod policy;
mod snapshot;

pub use backoff::Backoff;
pub use decide::decide;
pub use effect::{RemovalReason, TriggerEffect};
pub use policy::TriggerPolicy;
pub use snapshot::{
    Author, Continuity, EncodingAgreement, KnownMigration, MigrationState, ObservedVersions, PAUSED_ANNOTATION, Retry,
    TriggerSnapshot,
};

#[cfg(test)]
mod tests;
