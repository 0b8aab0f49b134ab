//! What the trigger looks at.

use super::TriggerPolicy;
use jiff::Timestamp;
use restow_api::migration::{MigrationCondition, StorageStateStatus, StorageVersionMigration};
use restow_api::{ResourceVersion, StorageVersionHash};

/// The annotation with which a migration, or all of them, are paused.
pub const PAUSED_ANNOTATION: &str = "restow.dev/paused";

/// Everything that was read about one resource, in one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct TriggerSnapshot {
    /// What the API servers encode.
    pub observed: ObservedVersions,
    /// The status of the resource's StorageState; `None` where there is none.
    pub storage_state: Option<StorageStateStatus>,
    /// When this controller last looked at the resource and recorded what it saw; `None` if it has just begun. It is now
    /// less the time that has passed since, by the time since boot, so that a clock that jumps makes nobody seem away, and a
    /// machine that was suspended was.
    pub looked_at: Option<Timestamp>,
    /// All migrations of the resource, whoever created them.
    pub migrations: Vec<KnownMigration>,
    /// Whether someone asked for a failed migration to be tried again.
    pub retry: Retry,
    /// How to judge time.
    pub policy: TriggerPolicy,
}

/// What was seen of the API servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedVersions {
    /// Whether they agree now.
    pub agreement: EncodingAgreement,
    /// The revision of the StorageVersion that says so; `None` where the versions come from discovery.
    pub revision: Option<ResourceVersion>,
    /// Which servers there are, each as it was started; `None` where that is unknown, or where they report.
    pub servers: Option<String>,
    /// Every version that any of them was seen to encode since the last pass, also those that are gone again.
    pub since_last_pass: Vec<StorageVersionHash>,
    /// Whether anything can have been missed since the last pass.
    pub continuity: Continuity,
    /// What the CRD itself says may be stored; `None` for other resources. The API servers add to it
    /// each version that they begin to store, and only a proven migration takes one away, whether anybody looks or not.
    pub recorded: Option<Vec<StorageVersionHash>>,
    /// Which server stores what, in one sentence, where they do not agree.
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

/// Whether the sightings since the last pass are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// Every change was seen, or the versions are polled and the heartbeat says whether that was often enough.
    Unbroken,
    /// Changes may have been missed: a watch was interrupted and could not be continued where it stopped.
    Broken,
}

/// Whether a failed migration waits for its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// It waits.
    #[default]
    WhenDue,
    /// Someone asked for it now.
    AtOnce,
}

/// A migration, as far as the trigger cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownMigration {
    /// The object's name.
    pub name: String,
    /// The object's uid.
    pub uid: String,
    /// The version that it is for; `None` when its author did not say.
    pub target: Option<StorageVersionHash>,
    /// The revision of the agreement that it relies on; `None` where the versions come from discovery.
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

/// Who made a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// This trigger, which says at its creation what it is for.
    Trigger,
    /// Somebody else. It is carried out, and its name stays until that somebody deletes it, because people wait for it.
    Somebody,
}

/// How far a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationState {
    /// It waits or runs.
    Live,
    /// It ended well: at its end no object was in another version than its target, and its agreement still held.
    Succeeded,
    /// It ended without that.
    Failed {
        /// When it ended; `None` when the object does not say.
        at: Option<Timestamp>,
    },
}

impl ObservedVersions {
    /// Every version seen, now or since the last pass, in the order of sight.
    ///
    /// A server that could not be queried may store anything, unless the CRD says what: no server stores a version of
    /// a custom resource that is not on its CRD's own record.
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
    /// What a controller that restarts can say: if the StorageVersion still has the revision at which the last pass saw
    /// it, nothing was missed. Where there is no revision, the same servers, none of them restarted, encode what they
    /// encoded then. Only where nobody can tell which servers there are, the heartbeat has to tell, which is the time of
    /// another machine.
    pub fn after_restart(
        last_pass: &StorageStateStatus,
        revision: Option<&ResourceVersion>,
        servers: Option<&String>,
    ) -> Self {
        let is_the_same = match (revision, servers) {
            (Some(_), _) => last_pass.observed_revision.as_ref() == revision,
            (None, Some(_)) => last_pass.observed_servers.as_ref() == servers,
            (None, None) => true,
        };
        if is_the_same { Continuity::Unbroken } else { Continuity::Broken }
    }
}

impl KnownMigration {
    /// Whether it will do what a migration of the trigger's own would do, without being told.
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
