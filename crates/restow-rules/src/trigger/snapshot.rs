//! What the trigger decides on.

use super::TriggerPolicy;
use jiff::Timestamp;
use restow_api::migration::{MigrationCondition, StorageStateStatus, StorageVersionMigration};
use restow_api::{ResourceVersion, StorageVersionHash};

/// The annotation that pauses a migration, or all of them.
pub const PAUSED_ANNOTATION: &str = "restow.dev/paused";

/// Everything that was read about one resource, in one reconcile.
#[derive(Clone, Debug, PartialEq)]
pub struct TriggerSnapshot {
    /// What the API servers encode.
    pub observed: ObservedVersions,
    /// The status of the resource's StorageState; `None` where there is none.
    pub storage_state: Option<StorageStateStatus>,
    /// When this controller last reconciled the resource and wrote the status; `None` if it has just started. It is
    /// computed from the time since boot, so that clock jumps do not matter and suspended time counts.
    pub looked_at: Option<Timestamp>,
    /// All migrations of the resource, whoever created them.
    pub migrations: Vec<KnownMigration>,
    /// Whether a user requested a retry of a failed migration.
    pub retry: Retry,
    /// The time limits.
    pub policy: TriggerPolicy,
}

/// What was observed of the API servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedVersions {
    /// Whether they agree now.
    pub agreement: EncodingAgreement,
    /// The revision of the StorageVersion that shows it; `None` if the versions come from discovery.
    pub revision: Option<ResourceVersion>,
    /// Which servers exist, each as it was started; `None` if that is unknown, or if their reports show every change.
    pub servers: Option<String>,
    /// Every version that any of them was seen to encode since the last reconcile, including those that are not current any
    /// more.
    pub since_last_pass: Vec<StorageVersionHash>,
    /// Whether anything can have been missed since the last reconcile.
    pub continuity: Continuity,
    /// The stored versions of the CRD; `None` for other resources. The API servers add each new storage version to them,
    /// and only a proven migration removes one, whether a controller runs or not.
    pub recorded: Option<Vec<StorageVersionHash>>,
    /// Which server stores what, in one sentence, if they disagree.
    pub disagreement: Option<String>,
}

/// Whether the API servers encode the same version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EncodingAgreement {
    /// All of them encode this version.
    Agreed(StorageVersionHash),
    /// They encode these versions, or not all of them could be queried: then "Unknown" is one of the versions.
    Disagreed(Vec<StorageVersionHash>),
}

/// Whether the observed versions since the last reconcile are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// Every change was seen, or the versions are polled and the heartbeat shows whether that was often enough.
    Unbroken,
    /// Changes may have been missed: a watch was interrupted.
    Broken,
}

/// Whether a failed migration waits for its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// After its backoff.
    #[default]
    WhenDue,
    /// Now, on request.
    AtOnce,
}

/// A migration, as far as the trigger needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownMigration {
    /// The object's name.
    pub name: String,
    /// The object's uid.
    pub uid: String,
    /// The version that it is for; `None` if it names none.
    pub target: Option<StorageVersionHash>,
    /// The revision of the agreement that it is for; `None` if the versions come from discovery.
    pub agreement_revision: Option<ResourceVersion>,
    /// Which attempt at this version it is, from 1.
    pub attempt: u32,
    /// The progress.
    pub state: MigrationState,
    /// Who created it.
    pub author: Author,
    /// Whether someone has paused it.
    pub is_paused: bool,
}

/// Who created a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// This trigger, which sets the target.
    Trigger,
    /// Someone else. It runs, and the object stays until its creator deletes it, because users wait for it.
    Somebody,
}

/// The state of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationState {
    /// It waits or runs.
    Live,
    /// At its end no object was in another version than its target, and the agreement still held.
    Succeeded,
    /// It ended without success.
    Failed {
        /// When it ended; `None` if the object does not say.
        at: Option<Timestamp>,
    },
}

impl ObservedVersions {
    /// Every version seen, now or since the last reconcile, in order.
    ///
    /// A server that could not be queried may store anything, unless the CRD says what: API servers store only versions
    /// that the CRD lists.
    pub fn all(&self) -> Vec<StorageVersionHash> {
        let now = match &self.agreement {
            EncodingAgreement::Agreed(hash) => std::slice::from_ref(hash),
            EncodingAgreement::Disagreed(hashes) => hashes.as_slice(),
        };
        let mut all: Vec<StorageVersionHash> = Vec::new();
        for hash in self.since_last_pass.iter().chain(self.recorded.iter().flatten()).chain(now) {
            let is_answered = hash.is_unknown() && self.recorded.is_some();
            if !all.contains(hash) && !is_answered {
                all.push(hash.clone());
            }
        }
        all
    }
}

impl Continuity {
    /// What a restarted controller can conclude: if the StorageVersion still has the revision of the last reconcile,
    /// nothing was missed. Without a revision, the same servers, if none was restarted, encode what they encoded then. Of
    /// aggregated servers both has to be the same: one that does not report changes no StorageVersion. Only if the servers are
    /// unknown, the heartbeat decides, which is the time of another machine.
    pub fn after_restart(
        last_pass: &StorageStateStatus,
        revision: Option<&ResourceVersion>,
        servers: Option<&String>,
    ) -> Self {
        let same_revision = revision.is_none() || last_pass.observed_revision.as_ref() == revision;
        let same_servers = servers.is_none() || last_pass.observed_servers.as_ref() == servers;
        if same_revision && same_servers { Continuity::Unbroken } else { Continuity::Broken }
    }
}

impl KnownMigration {
    /// Whether it will do what a migration of the trigger would do.
    pub fn is_on_its_way(&self) -> bool {
        self.is_live() && !self.is_paused
    }

    /// Whether it waits or runs.
    pub fn is_live(&self) -> bool {
        self.state == MigrationState::Live
    }
}

impl From<&StorageVersionMigration> for KnownMigration {
    fn from(object: &StorageVersionMigration) -> Self {
        let failed = object.true_condition(MigrationCondition::FAILED);
        let state = match (object.true_condition(MigrationCondition::SUCCEEDED), failed) {
            (_, Some(failed)) => MigrationState::Failed { at: failed.last_update_time.map(|time| time.timestamp()) },
            (Some(_), None) => MigrationState::Succeeded,
            (None, None) => MigrationState::Live,
        };
        let annotations = &object.metadata.annotations;
        KnownMigration {
            name: object.metadata.name.clone(),
            uid: object.metadata.uid.clone(),
            target: object.target_hash(),
            agreement_revision: object.agreement_revision(),
            attempt: object.attempt(),
            state,
            author: match annotations.contains_key(StorageVersionMigration::TARGET_HASH_ANNOTATION) {
                true => Author::Trigger,
                false => Author::Somebody,
            },
            is_paused: annotations.get(PAUSED_ANNOTATION).is_some_and(|value| value != "false"),
        }
    }
}
