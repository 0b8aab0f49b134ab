//! The steps of a migration. Each is logged at debug level as soon as it is done.
//!
//! The target of these log events is [`TARGET`], and the field `step` has the name of the step, so that
//! `RESTOW_LOG=restow_migrate::step=debug` shows how far each migration is. The log reports; nothing is decided by it.

use restow_api::GroupResource;

/// The target of the log events.
pub const TARGET: &str = "restow_migrate::step";

/// A step of a migration, named after what has just been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationStep {
    /// The StorageState says that more than one version may be stored.
    StateWritten,
    /// The StorageVersionMigration exists.
    Created,
    /// The StorageVersionMigration has the condition Running.
    Running,
    /// The API servers agree. Nothing has been written.
    Agreed,
    /// The CRD has the mark of a running migration.
    Marked,
    /// About half of the objects of a pass are rewritten.
    HalfRewritten,
    /// All objects are rewritten.
    Rewritten,
    /// The API servers still agree.
    Confirmed,
    /// The stored versions of the CRD are trimmed.
    Trimmed,
    /// The mark on the CRD is removed.
    Unmarked,
    /// The StorageVersionMigration has its last condition.
    Ended,
    /// The StorageState says that only one version is stored.
    Accounted,
}

impl MigrationStep {
    /// All steps, in order.
    pub const ALL: [MigrationStep; 12] = [
        MigrationStep::StateWritten,
        MigrationStep::Created,
        MigrationStep::Running,
        MigrationStep::Agreed,
        MigrationStep::Marked,
        MigrationStep::HalfRewritten,
        MigrationStep::Rewritten,
        MigrationStep::Confirmed,
        MigrationStep::Trimmed,
        MigrationStep::Unmarked,
        MigrationStep::Ended,
        MigrationStep::Accounted,
    ];

    /// Logs that this step of the migration of a resource is done.
    pub(crate) fn log(self, resource: &GroupResource) {
        tracing::debug!(target: TARGET, %resource, step = ?self, "migration step done");
    }
}
