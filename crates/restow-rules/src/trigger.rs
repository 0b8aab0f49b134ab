//! When to migrate, and what is known to be stored.
//!
//! [`decide`] looks at one resource: what the API servers encode, what the StorageState says, which migrations exist. It
//! answers with effects. It keeps no memory of its own, so that a pass that was interrupted anywhere is simply repeated.
//!
//! The persisted versions are the heart of it. They may hold too many versions, never too few:
//!
//! * Every version that any server was seen to encode is appended, at once, before a migration towards it starts.
//! * Only a migration that succeeded shrinks them, and only to the version that *this migration was for*, plus whatever was
//!   seen since. (Were it shrunk to the version that is current when the success is noticed, a change in between would be
//!   lost.)
//! * When something may have been missed (nobody looked for too long, a watch was interrupted), they become "Unknown", unless
//!   the CRD has kept record of it meanwhile.
//!
//! Migrations that somebody else created are never removed: they are carried out, and waited for by their names.

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
