//! The decision for one resource.

use super::{
    Author, Continuity, EncodingAgreement, KnownMigration, MigrationState, RemovalReason, Retry, TriggerEffect,
    TriggerSnapshot,
};
use jiff::{SignedDuration, Timestamp};
use restow_api::internal_apiserver::ConditionStatus;
use restow_api::migration::{MigrationCondition, StorageStateStatus};
use restow_api::{ResourceVersion, StorageVersionHash, Time};

/// The maximum difference between the clocks of two controllers. Beyond it, timestamps of the other are ignored.
const CLOCKS_AGREE: SignedDuration = SignedDuration::from_mins(1);

/// What to do about one resource at `now`.
///
/// The order of effects is: remove migrations, write the state, start a migration. The state is written before a migration
/// starts, so that the persisted versions are never incomplete. If the reconcile is interrupted in between, the next one
/// finds a state that needs a migration, and none that runs.
pub fn decide(snapshot: &TriggerSnapshot, now: Timestamp) -> Vec<TriggerEffect> {
    let knowledge = Knowledge::of(snapshot, now);
    let next = next_step(snapshot, &knowledge, now);
    let mut effects = removals(snapshot, &next);
    effects.extend(state_effect(snapshot, &knowledge.status, now));
    effects.extend(match next {
        Next::Start { target, agreement_revision, attempt } => {
            Some(TriggerEffect::StartMigration { target, agreement_revision, attempt })
        }
        Next::WaitUntil(time) => Some(TriggerEffect::RequeueAt(time)),
        Next::Blocked | Next::Nothing => None,
    });
    effects
}

/// The status after this reconcile, and whether the old one was discarded.
struct Knowledge {
    status: StorageStateStatus,
    /// There was no status, or it may be wrong.
    is_fresh: bool,
}

impl Knowledge {
    fn of(snapshot: &TriggerSnapshot, now: Timestamp) -> Self {
        let current_storage_version_hash = Some(match &snapshot.observed.agreement {
            EncodingAgreement::Agreed(hash) => hash.clone(),
            EncodingAgreement::Disagreed(_) => StorageVersionHash::unknown(),
        });
        let before = trusted(snapshot, now);
        let persisted_storage_version_hashes = match before {
            Some(before) => persisted(snapshot, before),
            None => vec![StorageVersionHash::unknown()],
        };
        let status = StorageStateStatus {
            unmigrated_since: unmigrated_since(snapshot, &persisted_storage_version_hashes, now),
            persisted_storage_version_hashes,
            current_storage_version_hash,
            last_heartbeat_time: Some(Time::new(now)),
            observed_revision: snapshot.observed.revision.clone(),
            observed_servers: snapshot.observed.servers.clone(),
            // For a fresh status: earlier successes say nothing about what was missed.
            applied_migrations: successes(snapshot).map(|(migration, _)| migration.uid.clone()).collect(),
            conditions: conditions(snapshot, now),
        };
        Knowledge { status, is_fresh: before.is_none() }
    }
}

/// Since when objects may be stored in other versions than the one that all servers store.
fn unmigrated_since(snapshot: &TriggerSnapshot, persisted: &[StorageVersionHash], now: Timestamp) -> Option<Time> {
    if let ([only], EncodingAgreement::Agreed(hash)) = (persisted, &snapshot.observed.agreement)
        && only == hash
    {
        return None;
    }
    match &snapshot.storage_state {
        Some(before) if before.unmigrated_since.is_some() => before.unmigrated_since,
        // It was unmigrated before this field was introduced.
        Some(before) if before.persisted_storage_version_hashes.len() > 1 => None,
        _ => Some(Time::new(now)),
    }
}

/// The condition of the agreement. Its time is that of the last change, so nothing is written while nothing changes.
fn conditions(snapshot: &TriggerSnapshot, now: Timestamp) -> Vec<MigrationCondition> {
    let before = snapshot.storage_state.iter().flat_map(|state| &state.conditions);
    let before = before.into_iter().find(|condition| condition.condition_type == MigrationCondition::AGREED);
    let (status, reason, message) = match (&snapshot.observed.disagreement, before) {
        (None, None) => return Vec::new(),
        (None, Some(_)) => (ConditionStatus::True, "Agreed", "all API servers store the same version"),
        (Some(words), _) => (ConditionStatus::False, "Disagreed", words.as_str()),
    };
    let same = before.filter(|before| before.status == status && before.message == message);
    vec![same.cloned().unwrap_or_else(|| MigrationCondition {
        condition_type: MigrationCondition::AGREED.to_owned(),
        status,
        last_update_time: Some(Time::new(now)),
        reason: reason.to_owned(),
        message: message.to_owned(),
    })]
}

/// The status of the last reconcile, if it can still be relied on. A controller that has reconciled before knows when; a
/// new one uses the heartbeat. If the CRD records what is stored, nothing is missed while no controller runs.
fn trusted(snapshot: &TriggerSnapshot, now: Timestamp) -> Option<&StorageStateStatus> {
    let status = snapshot.storage_state.as_ref()?;
    let heartbeat = status.last_heartbeat_time?.timestamp();
    let is_stale = match snapshot.looked_at {
        Some(looked_at) => now.duration_since(looked_at) > snapshot.policy.away_after,
        None => is_stale(now.duration_since(heartbeat), snapshot.policy.stale_after),
    };
    let is_empty = status.persisted_storage_version_hashes.is_empty();
    let is_broken = snapshot.observed.continuity == Continuity::Broken;
    let is_complete = snapshot.observed.recorded.is_some() || (!is_stale && !is_broken);
    (is_complete && !is_empty).then_some(status)
}

/// Whether a heartbeat is too old. It may come from another machine's clock; one from the future certainly does, and its
/// age is unknown.
fn is_stale(age: SignedDuration, stale_after: SignedDuration) -> bool {
    age > stale_after || age < -CLOCKS_AGREE
}

/// The versions in which objects may be stored, given the status before.
///
/// After a success everything was in its target version. What was seen since the last reconcile may have been written after
/// that, so it is added again. Of several successes it is unknown which ended last, so all targets stay.
///
/// If the servers report, a success counts only while the StorageVersion is the one that it relied on: before a server writes
/// another version it reports that, perhaps between the last check of the migration and its success, and the watch may be late.
/// Therefore the migrations have to be read before the servers are queried.
fn persisted(snapshot: &TriggerSnapshot, before: &StorageStateStatus) -> Vec<StorageVersionHash> {
    let revision = &snapshot.observed.revision;
    let news: Vec<StorageVersionHash> = successes(snapshot)
        .filter(|(migration, _)| revision.is_none() || migration.agreement_revision == *revision)
        .filter(|(migration, _)| !before.applied_migrations.contains(&migration.uid))
        .map(|(_, target)| target.clone())
        .collect();
    let base = if news.is_empty() { before.persisted_storage_version_hashes.clone() } else { news };
    let mut persisted: Vec<StorageVersionHash> = Vec::new();
    for hash in base.into_iter().chain(snapshot.observed.all()) {
        if !persisted.contains(&hash) {
            persisted.push(hash);
        }
    }
    persisted
}

/// The migrations that have succeeded and name their target.
fn successes(snapshot: &TriggerSnapshot) -> impl Iterator<Item = (&KnownMigration, &StorageVersionHash)> {
    let succeeded = snapshot.migrations.iter().filter(|migration| migration.state == MigrationState::Succeeded);
    succeeded.filter_map(|migration| migration.target.as_ref().map(|target| (migration, target)))
}

/// What to do about migrations.
enum Next {
    /// None may run: the servers do not agree.
    Blocked,
    /// Nothing to do, or a migration is running.
    Nothing,
    /// The last attempt failed, and its backoff has not passed.
    WaitUntil(Timestamp),
    /// A migration has to start.
    Start { target: StorageVersionHash, agreement_revision: Option<ResourceVersion>, attempt: u32 },
}

fn next_step(snapshot: &TriggerSnapshot, knowledge: &Knowledge, now: Timestamp) -> Next {
    let EncodingAgreement::Agreed(hash) = &snapshot.observed.agreement else {
        return Next::Blocked;
    };
    let revision = &snapshot.observed.revision;
    if knowledge.status.persisted_storage_version_hashes == std::slice::from_ref(hash) {
        return Next::Nothing;
    }
    let start = |attempt| Next::Start { target: hash.clone(), agreement_revision: revision.clone(), attempt };
    if knowledge.is_fresh {
        // A migration that began before something was missed cannot make up for it.
        return start(1);
    }
    let (mine, others): (Vec<&KnownMigration>, Vec<&KnownMigration>) =
        snapshot.migrations.iter().partition(|migration| migration.author == Author::Trigger);
    let mut fitting = mine
        .into_iter()
        .filter(|migration| migration.target.as_ref() == Some(hash) && migration.agreement_revision == *revision);
    // A migration that someone else created is for any agreed version, and does the same work.
    if fitting.clone().any(KnownMigration::is_live) || others.into_iter().any(KnownMigration::is_on_its_way) {
        return Next::Nothing;
    }
    let failed = fitting.find_map(|migration| match migration.state {
        MigrationState::Failed { at } => Some((migration.attempt, at)),
        _ => None,
    });
    match failed {
        None => start(1),
        Some((attempt, at)) => {
            // A failure in the future was dated by a clock that is ahead, and would delay the retry as long.
            let at = at.filter(|at| at.duration_since(now) <= CLOCKS_AGREE);
            let due = at.and_then(|at| at.checked_add(snapshot.policy.backoff.after(attempt)).ok()).unwrap_or(now);
            let is_due = now >= due || snapshot.retry == Retry::AtOnce;
            if is_due { start(attempt.saturating_add(1)) } else { Next::WaitUntil(due) }
        }
    }
}

/// The migrations of the trigger that have to be removed: all before a new one, running ones if there is no agreement, else
/// running ones with another target.
fn removals(snapshot: &TriggerSnapshot, next: &Next) -> Vec<TriggerEffect> {
    let reason = match next {
        Next::Blocked => RemovalReason::NoAgreement,
        _ => RemovalReason::Superseded,
    };
    let must_go = |migration: &&KnownMigration| match next {
        Next::Start { .. } => true,
        Next::Blocked => migration.is_live(),
        Next::Nothing | Next::WaitUntil(_) => migration.is_live() && is_superseded(snapshot, migration),
    };
    let remove = |migration: &KnownMigration| TriggerEffect::RemoveMigration {
        name: migration.name.clone(),
        uid: migration.uid.clone(),
        reason,
    };
    let mine = snapshot.migrations.iter().filter(|migration| migration.author == Author::Trigger);
    mine.filter(must_go).map(remove).collect()
}

/// Whether a migration relies on an agreement that no longer holds.
fn is_superseded(snapshot: &TriggerSnapshot, migration: &KnownMigration) -> bool {
    match (&snapshot.observed.agreement, &migration.target) {
        (EncodingAgreement::Agreed(hash), Some(target)) => {
            target != hash || migration.agreement_revision != snapshot.observed.revision
        }
        _ => false,
    }
}

/// The write of the StorageState, unless it would change nothing and the heartbeat is recent.
fn state_effect(snapshot: &TriggerSnapshot, status: &StorageStateStatus, now: Timestamp) -> Option<TriggerEffect> {
    let Some(before) = &snapshot.storage_state else {
        return Some(TriggerEffect::CreateStorageState(status.clone()));
    };
    let with_old_heartbeat = StorageStateStatus { last_heartbeat_time: before.last_heartbeat_time, ..status.clone() };
    // A heartbeat slightly in the future may be a difference of clocks; one further in the future would otherwise never be
    // renewed.
    let young = -CLOCKS_AGREE..snapshot.policy.heartbeat_after;
    let is_young = before.last_heartbeat_time.is_some_and(|time| young.contains(&now.duration_since(time.timestamp())));
    let is_needed = with_old_heartbeat != *before || !is_young;
    is_needed.then(|| TriggerEffect::UpdateStorageState(status.clone()))
}
