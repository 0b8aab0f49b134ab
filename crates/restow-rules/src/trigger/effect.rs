//! The effects that the trigger decides on.

use jiff::Timestamp;
use restow_api::migration::StorageStateStatus;
use restow_api::{ResourceVersion, StorageVersionHash};

/// One effect; they are executed in order. Writes to the StorageState have the revision that was read as precondition. If
/// one is refused, the rest is skipped, and the next reconcile decides again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerEffect {
    /// Delete this migration, which also stops it. The uid is a precondition.
    RemoveMigration {
        /// The object's name.
        name: String,
        /// The object's uid.
        uid: String,
        /// Why, for logs and events.
        reason: RemovalReason,
    },
    /// Create the StorageState with this status.
    CreateStorageState(StorageStateStatus),
    /// Write this status to the StorageState.
    UpdateStorageState(StorageStateStatus),
    /// Create a migration to this version.
    StartMigration {
        /// The version that it is for.
        target: StorageVersionHash,
        /// The revision of the agreement that it relies on.
        agreement_revision: Option<ResourceVersion>,
        /// Which attempt it is, from 1.
        attempt: u32,
    },
    /// Reconcile again at this time: the backoff of a failed migration has passed then.
    RequeueAt(Timestamp),
}

/// Why a migration is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// The API servers do not agree, so nothing can be migrated.
    NoAgreement,
    /// Another migration takes its place.
    Superseded,
}
