//! One resource from first sight through changes, disagreement, failures and gaps; whole lists of effects are compared.

use super::*;
use jiff::{SignedDuration, Timestamp};
use restow_api::internal_apiserver::ConditionStatus;
use restow_api::migration::StorageStateStatus;
use restow_api::{ResourceVersion, StorageVersionHash, Time};

mod known_by_others;

const UNKNOWN: &str = "Unknown";

/// The decision without the time since which it is open, which has a test of its own.
fn decide(snapshot: &TriggerSnapshot, now: Timestamp) -> Vec<TriggerEffect> {
    let mut effects = super::decide(snapshot, now);
    for effect in &mut effects {
        if let TriggerEffect::CreateStorageState(status) | TriggerEffect::UpdateStorageState(status) = effect {
            status.unmigrated_since = None;
        }
    }
    effects
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn hash(text: &str) -> StorageVersionHash {
    StorageVersionHash::new(text)
}

/// A status that says these versions are stored, and this one is current; "v1@5" is v1 as seen at revision 5.
fn state(persisted: &[&str], current: &str, heartbeat: i64) -> StorageStateStatus {
    let (current, revision) = current.split_once('@').map_or((current, None), |(hash, at)| (hash, Some(at)));
    StorageStateStatus {
        persisted_storage_version_hashes: persisted.iter().map(|text| hash(text)).collect(),
        current_storage_version_hash: Some(hash(current)),
        last_heartbeat_time: Some(Time::new(at(heartbeat))),
        observed_revision: revision.map(ResourceVersion::new),
        ..StorageStateStatus::default()
    }
}

fn applied(uid: &str, status: StorageStateStatus) -> StorageStateStatus {
    StorageStateStatus { applied_migrations: vec![uid.to_owned()], ..status }
}

fn migration(uid: &str, target: &str, revision: &str, state: MigrationState) -> KnownMigration {
    KnownMigration {
        name: format!("migration-{uid}"),
        uid: uid.to_owned(),
        target: Some(hash(target)),
        agreement_revision: Some(ResourceVersion::new(revision)),
        attempt: 1,
        state,
        author: Author::Trigger,
        is_paused: false,
    }
}

fn observed(agreement: EncodingAgreement, revision: &str) -> ObservedVersions {
    let revision = Some(ResourceVersion::new(revision));
    ObservedVersions {
        agreement,
        revision,
        servers: None,
        since_last_pass: vec![],
        continuity: Continuity::Unbroken,
        recorded: None,
        disagreement: None,
    }
}

fn agreed(text: &str, revision: &str) -> ObservedVersions {
    observed(EncodingAgreement::Agreed(hash(text)), revision)
}

fn disagreed(texts: &[&str], revision: &str) -> ObservedVersions {
    observed(EncodingAgreement::Disagreed(texts.iter().map(|text| hash(text)).collect()), revision)
}

fn snapshot(
    observed: ObservedVersions,
    state: Option<StorageStateStatus>,
    migrations: &[KnownMigration],
) -> TriggerSnapshot {
    TriggerSnapshot {
        observed,
        storage_state: state,
        looked_at: None,
        migrations: migrations.to_vec(),
        retry: Retry::WhenDue,
        policy: TriggerPolicy::for_poll_interval(SignedDuration::from_mins(10)),
    }
}

fn removed(uid: &str, reason: RemovalReason) -> TriggerEffect {
    TriggerEffect::RemoveMigration { name: format!("migration-{uid}"), uid: uid.to_owned(), reason }
}

fn started(target: &str, revision: &str, attempt: u32) -> TriggerEffect {
    TriggerEffect::StartMigration {
        target: hash(target),
        agreement_revision: Some(ResourceVersion::new(revision)),
        attempt,
    }
}

#[test]
fn first_sight_knows_nothing_and_migrates() {
    let seen = snapshot(agreed("v1", "5"), None, &[migration("old", "v1", "5", MigrationState::Live)]);
    assert_eq!(
        decide(&seen, at(0)),
        [
            removed("old", RemovalReason::Superseded),
            TriggerEffect::CreateStorageState(state(&[UNKNOWN], "v1@5", 0)),
            started("v1", "5", 1),
        ]
    );
}

#[test]
fn first_sight_without_agreement_waits() {
    let seen = snapshot(disagreed(&["v1", "v2"], "5"), None, &[]);
    assert_eq!(decide(&seen, at(0)), [TriggerEffect::CreateStorageState(state(&[UNKNOWN], "Unknown@5", 0))]);
}

#[test]
fn unchanged_means_a_heartbeat_now_and_then() {
    let seen = snapshot(agreed("v1", "5"), Some(state(&["v1"], "v1@5", 0)), &[]);
    assert_eq!(decide(&seen, at(10)), []);
    assert_eq!(decide(&seen, at(300)), [TriggerEffect::UpdateStorageState(state(&["v1"], "v1@5", 300))]);
}

#[test]
fn a_running_migration_to_the_current_version_is_left_alone() {
    let running = [migration("m", "v1", "5", MigrationState::Live)];
    let seen = snapshot(agreed("v1", "5"), Some(state(&[UNKNOWN], "v1@5", 0)), &running);
    // The current version joins the list, though "Unknown" covers it; that happens once.
    assert_eq!(decide(&seen, at(1)), [TriggerEffect::UpdateStorageState(state(&[UNKNOWN, "v1"], "v1@5", 1))]);
    let seen = snapshot(agreed("v1", "5"), Some(state(&[UNKNOWN, "v1"], "v1@5", 1)), &running);
    assert_eq!(decide(&seen, at(2)), []);
}

#[test]
fn a_changed_version_is_appended_and_migrated_to() {
    let old = migration("old", "v1", "5", MigrationState::Succeeded);
    let seen = snapshot(agreed("v2", "9"), Some(applied("old", state(&["v1"], "v1@5", 0))), &[old]);
    assert_eq!(
        decide(&seen, at(1)),
        [
            removed("old", RemovalReason::Superseded),
            TriggerEffect::UpdateStorageState(applied("old", state(&["v1", "v2"], "v2@9", 1))),
            started("v2", "9", 1),
        ]
    );
}

#[test]
fn a_pass_that_was_interrupted_before_the_start_is_made_good() {
    let seen = snapshot(agreed("v2", "9"), Some(state(&["v1", "v2"], "v2@9", 1)), &[]);
    assert_eq!(decide(&seen, at(2)), [started("v2", "9", 1)]);
}

#[test]
fn a_change_while_migrating_stops_the_old_and_starts_the_new() {
    let running = migration("m", "v2", "9", MigrationState::Live);
    let seen = snapshot(agreed("v1", "12"), Some(state(&["v1", "v2"], "v2@9", 1)), &[running]);
    assert_eq!(
        decide(&seen, at(2)),
        [
            removed("m", RemovalReason::Superseded),
            TriggerEffect::UpdateStorageState(state(&["v1", "v2"], "v1@12", 2)),
            started("v1", "12", 1),
        ]
    );
}

#[test]
fn an_agreement_that_was_renewed_makes_the_migration_start_over() {
    let running = migration("m", "v2", "9", MigrationState::Live);
    let seen = snapshot(agreed("v2", "10"), Some(state(&["v1", "v2"], "v2@9", 1)), &[running]);
    assert_eq!(
        decide(&seen, at(2)),
        [
            removed("m", RemovalReason::Superseded),
            TriggerEffect::UpdateStorageState(state(&["v1", "v2"], "v2@10", 2)),
            started("v2", "10", 1),
        ]
    );
}

#[test]
fn a_migration_that_relies_on_an_older_agreement_goes_even_when_nothing_is_to_be_done() {
    let running = [migration("m", "v2", "9", MigrationState::Live), migration("n", "v2", "10", MigrationState::Live)];
    let seen = snapshot(agreed("v2", "10"), Some(state(&["v2"], "v2@10", 1)), &running);
    assert_eq!(decide(&seen, at(2)), [removed("m", RemovalReason::Superseded)]);
}

#[test]
fn success_leaves_only_the_version_that_the_migration_was_for() {
    let done = [migration("m", "v2", "9", MigrationState::Succeeded)];
    let seen = snapshot(agreed("v2", "9"), Some(state(&["v1", "v2"], "v2@9", 1)), &done);
    let after = applied("m", state(&["v2"], "v2@9", 2));
    assert_eq!(decide(&seen, at(2)), [TriggerEffect::UpdateStorageState(after.clone())]);
    // Counted once, it is history.
    assert_eq!(decide(&snapshot(agreed("v2", "9"), Some(after), &done), at(3)), []);
}

#[test]
fn a_success_counts_only_while_the_agreement_is_the_one_that_it_relied_on() {
    // The migration to v2 ended; before anyone looked, the servers went on to v3, perhaps before it had ended.
    let done = migration("m", "v2", "9", MigrationState::Succeeded);
    let seen = snapshot(agreed("v3", "14"), Some(state(&["v1", "v2"], "v2@9", 1)), &[done]);
    assert_eq!(
        decide(&seen, at(2)),
        [
            removed("m", RemovalReason::Superseded),
            TriggerEffect::UpdateStorageState(applied("m", state(&["v1", "v2", "v3"], "v3@14", 2))),
            started("v3", "14", 1),
        ]
    );
    // They went on and came back, and no watch has shown it yet.
    let back = snapshot(agreed("v2", "16"), Some(state(&["v1", "v2"], "v2@9", 1)), &seen.migrations);
    let effects = decide(&back, at(2));
    assert_eq!(effects[1], TriggerEffect::UpdateStorageState(applied("m", state(&["v1", "v2"], "v2@16", 2))));
    assert_eq!(effects[2..], [started("v2", "16", 1)]);
}

#[test]
fn a_version_that_came_and_went_is_remembered() {
    let done = migration("m", "v2", "9", MigrationState::Succeeded);
    let mut seen = snapshot(agreed("v2", "16"), Some(state(&["v1", "v2"], "v2@9", 1)), &[done]);
    seen.observed.since_last_pass = vec![hash("v2"), hash("v3")];
    assert_eq!(
        decide(&seen, at(2)),
        [
            removed("m", RemovalReason::Superseded),
            TriggerEffect::UpdateStorageState(applied("m", state(&["v1", "v2", "v3"], "v2@16", 2))),
            started("v2", "16", 1),
        ]
    );
}

#[test]
fn a_success_that_was_counted_does_not_shrink_the_list_again() {
    let done = migration("m", "v2", "9", MigrationState::Succeeded);
    let seen = snapshot(agreed("v2", "16"), Some(applied("m", state(&["v2", "v3"], "v2@16", 1))), &[done]);
    assert_eq!(decide(&seen, at(2)), [removed("m", RemovalReason::Superseded), started("v2", "16", 1)]);
}

#[test]
fn of_two_successes_at_once_the_one_for_this_agreement_counts() {
    let done = [("m", "v2", "9"), ("n", "v3", "12")]
        .map(|(uid, target, revision)| migration(uid, target, revision, MigrationState::Succeeded));
    let seen = snapshot(agreed("v3", "12"), Some(state(&["v1", "v2"], "v3@12", 1)), &done);
    let mut after = state(&["v3"], "v3@12", 2);
    after.applied_migrations = vec!["m".into(), "n".into()];
    assert_eq!(decide(&seen, at(2)), [TriggerEffect::UpdateStorageState(after)]);
}

#[test]
fn of_two_successes_at_once_both_targets_stay_if_no_report_tells_them_apart() {
    let success = |uid, target| KnownMigration {
        agreement_revision: None,
        ..migration(uid, target, "", MigrationState::Succeeded)
    };
    let polled = ObservedVersions { revision: None, ..agreed("v3", "") };
    let seen = snapshot(polled, Some(state(&["v1", "v2"], "v3", 1)), &[success("m", "v2"), success("n", "v3")]);
    let mut after = state(&["v2", "v3"], "v3", 2);
    after.applied_migrations = vec!["m".into(), "n".into()];
    assert_eq!(decide(&seen, at(2))[2], TriggerEffect::UpdateStorageState(after));
}

#[test]
fn a_success_from_before_a_gap_is_worth_nothing_after_it() {
    let done = [migration("m", "v2", "9", MigrationState::Succeeded)];
    let seen = snapshot(disagreed(&["v1", "v2"], "9"), Some(state(&["v1", "v2"], "v2@9", 0)), &done);
    let after = applied("m", state(&[UNKNOWN], "Unknown@9", 2000));
    assert_eq!(decide(&seen, at(2000)), [TriggerEffect::UpdateStorageState(after.clone())]);
    let seen = snapshot(agreed("v2", "20"), Some(after), &done);
    assert_eq!(
        decide(&seen, at(2001)),
        [
            removed("m", RemovalReason::Superseded),
            TriggerEffect::UpdateStorageState(applied("m", state(&[UNKNOWN, "v2"], "v2@20", 2001))),
            started("v2", "20", 1),
        ]
    );
}

#[test]
fn a_success_for_nothing_in_particular_proves_nothing() {
    let unsaid = KnownMigration { target: None, ..migration("m", "", "9", MigrationState::Succeeded) };
    let seen = snapshot(agreed("v2", "9"), Some(state(&["v1", "v2"], "v2@9", 1)), &[unsaid]);
    assert_eq!(decide(&seen, at(2)), [removed("m", RemovalReason::Superseded), started("v2", "9", 1)]);
}

#[test]
fn disagreement_stops_everything_and_remembers_all() {
    let running = migration("m", "v2", "9", MigrationState::Live);
    let split = disagreed(&["v2", "v3"], "15");
    let seen = snapshot(split.clone(), Some(state(&["v1", "v2"], "v2@9", 1)), &[running]);
    let after = state(&["v1", "v2", "v3"], "Unknown@15", 2);
    assert_eq!(
        decide(&seen, at(2)),
        [removed("m", RemovalReason::NoAgreement), TriggerEffect::UpdateStorageState(after.clone())]
    );
    assert_eq!(decide(&snapshot(split, Some(after.clone()), &[]), at(3)), [], "then it waits");
    assert_eq!(
        decide(&snapshot(agreed("v3", "20"), Some(after), &[]), at(4)),
        [TriggerEffect::UpdateStorageState(state(&["v1", "v2", "v3"], "v3@20", 4)), started("v3", "20", 1)],
        "and goes on when all agree again"
    );
}

#[test]
fn a_server_that_could_not_be_asked_may_store_anything() {
    let seen = snapshot(disagreed(&["v1", UNKNOWN], "5"), Some(state(&["v1"], "v1@5", 1)), &[]);
    assert_eq!(decide(&seen, at(2)), [TriggerEffect::UpdateStorageState(state(&["v1", UNKNOWN], "Unknown@5", 2))]);
}

#[test]
fn a_stale_heartbeat_makes_everything_unknown() {
    let running = migration("m", "v1", "5", MigrationState::Live);
    let seen = snapshot(agreed("v1", "5"), Some(state(&["v1"], "v1@5", 0)), &[running]);
    assert_eq!(decide(&seen, at(1200)), [TriggerEffect::UpdateStorageState(state(&["v1"], "v1@5", 1200))]);
    assert_eq!(
        decide(&seen, at(1201)),
        [
            removed("m", RemovalReason::Superseded),
            TriggerEffect::UpdateStorageState(state(&[UNKNOWN], "v1@5", 1201)),
            started("v1", "5", 1),
        ]
    );
}

#[test]
fn one_who_was_slow_goes_on_and_one_who_was_away_starts_over() {
    let looking = |looked_at: i64| TriggerSnapshot {
        looked_at: Some(at(looked_at)),
        policy: TriggerPolicy::for_poll_interval(SignedDuration::from_secs(2)),
        ..snapshot(agreed("v1", "5"), Some(state(&["v1"], "v1@5", 0)), &[])
    };
    // The heartbeat is long over, but only because everything took so long: it is renewed, and that is all.
    for now in [5, 60, 124] {
        assert_eq!(decide(&looking(0), at(now)), [TriggerEffect::UpdateStorageState(state(&["v1"], "v1@5", now))]);
    }
    // Whether anyone else has written a heartbeat since says nothing about what oneself has missed.
    for (looked_at, heartbeat) in [(0, 0), (0, 124)] {
        let mut seen = looking(looked_at);
        seen.storage_state = Some(state(&["v1"], "v1@5", heartbeat));
        let unknown = TriggerEffect::UpdateStorageState(state(&[UNKNOWN], "v1@5", 125));
        assert_eq!(decide(&seen, at(125)), [unknown, started("v1", "5", 1)]);
    }
    // One who has never looked has only the heartbeat to go by.
    let seen = TriggerSnapshot { looked_at: None, ..looking(0) };
    assert_eq!(decide(&seen, at(5)).len(), 2);
    assert_eq!(decide(&seen, at(4)), [TriggerEffect::UpdateStorageState(state(&["v1"], "v1@5", 4))]);
}

#[test]
fn a_heartbeat_from_the_future_is_worth_nothing() {
    let seen = |heartbeat: i64| snapshot(agreed("v1", "5"), Some(state(&["v1"], "v1@5", heartbeat)), &[]);
    assert_eq!(decide(&seen(60), at(0)), [], "clocks are never quite the same");
    let unknown = TriggerEffect::UpdateStorageState(state(&[UNKNOWN], "v1@5", 0));
    for heartbeat in [61, 3600] {
        assert_eq!(decide(&seen(heartbeat), at(0)), [unknown.clone(), started("v1", "5", 1)], "{heartbeat}");
    }
    // One who has looked before need not start over, and writes the right time.
    let renewed = TriggerEffect::UpdateStorageState(state(&["v1"], "v1@5", 10));
    for (heartbeat, expected) in [(70, vec![]), (71, vec![renewed.clone()]), (3610, vec![renewed])] {
        let seen = TriggerSnapshot { looked_at: Some(at(5)), ..seen(heartbeat) };
        assert_eq!(decide(&seen, at(10)), expected, "{heartbeat}");
    }
}

#[test]
fn a_failure_in_the_future_is_not_waited_for() {
    let failed = |at_seconds: i64| {
        let failed = migration("m", "v1", "5", MigrationState::Failed { at: Some(at(at_seconds)) });
        snapshot(agreed("v1", "5"), Some(state(&[UNKNOWN, "v1"], "v1@5", 0)), &[failed])
    };
    let waits =
        |seen: &TriggerSnapshot| decide(seen, at(0)).iter().any(|effect| matches!(effect, TriggerEffect::RequeueAt(_)));
    assert!(waits(&failed(0)));
    assert!(waits(&failed(60)));
    assert!(!waits(&failed(61)));
}

#[test]
fn a_broken_watch_makes_everything_unknown_too() {
    let mut seen = snapshot(agreed("v1", "5"), Some(state(&["v1"], "v1@5", 0)), &[]);
    seen.observed.continuity = Continuity::Broken;
    assert_eq!(
        decide(&seen, at(1)),
        [TriggerEffect::UpdateStorageState(state(&[UNKNOWN], "v1@5", 1)), started("v1", "5", 1)]
    );
}

#[test]
fn a_state_without_heartbeat_or_versions_is_worth_nothing() {
    for status in [
        StorageStateStatus { last_heartbeat_time: None, ..state(&["v1"], "v1@5", 0) },
        StorageStateStatus { persisted_storage_version_hashes: vec![], ..state(&[], "v1@5", 0) },
    ] {
        let seen = snapshot(agreed("v1", "5"), Some(status), &[]);
        assert_eq!(
            decide(&seen, at(1)),
            [TriggerEffect::UpdateStorageState(state(&[UNKNOWN], "v1@5", 1)), started("v1", "5", 1)]
        );
    }
}

#[test]
fn a_failure_is_retried_when_its_time_has_come() {
    let mut failed = migration("m", "v2", "9", MigrationState::Failed { at: Some(at(0)) });
    failed.attempt = 3;
    let mut seen = snapshot(agreed("v2", "9"), Some(state(&["v1", "v2"], "v2@9", 0)), &[failed]);
    assert_eq!(decide(&seen, at(39)), [TriggerEffect::RequeueAt(at(40))]);
    let again = [removed("m", RemovalReason::Superseded), started("v2", "9", 4)];
    assert_eq!(decide(&seen, at(40)), again);
    seen.retry = Retry::AtOnce;
    assert_eq!(decide(&seen, at(1)), again, "or at once when asked");
}

#[test]
fn a_failure_towards_another_agreement_does_not_delay_this_one() {
    let failed = migration("m", "v2", "9", MigrationState::Failed { at: Some(at(0)) });
    let seen = snapshot(agreed("v2", "10"), Some(state(&["v1", "v2"], "v2@9", 0)), &[failed]);
    assert_eq!(
        decide(&seen, at(1)),
        [
            removed("m", RemovalReason::Superseded),
            TriggerEffect::UpdateStorageState(state(&["v1", "v2"], "v2@10", 1)),
            started("v2", "10", 1),
        ]
    );
}

#[test]
fn after_a_restart_the_revision_tells_whether_anything_was_missed() {
    let revision = |text: &str| Some(ResourceVersion::new(text));
    let last_pass = state(&["v1"], "v1@5", 0);
    assert_eq!(Continuity::after_restart(&last_pass, revision("5").as_ref(), None), Continuity::Unbroken);
    assert_eq!(Continuity::after_restart(&last_pass, revision("6").as_ref(), None), Continuity::Broken);
    assert_eq!(Continuity::after_restart(&state(&["v1"], "v1", 0), revision("5").as_ref(), None), Continuity::Broken);
    assert_eq!(Continuity::after_restart(&last_pass, None, None), Continuity::Unbroken, "the heartbeat has to tell");
}

#[test]
fn of_aggregated_servers_the_revision_and_the_servers_tell_whether_anything_was_missed() {
    let servers = |text: &str| Some(text.to_owned());
    let last_pass = StorageStateStatus { observed_servers: servers("slice 3"), ..state(&["v1"], "v1@5", 0) };
    for (revision, now, expected) in [
        ("5", "slice 3", Continuity::Unbroken),
        ("6", "slice 3", Continuity::Broken),
        ("5", "slice 5", Continuity::Broken),
    ] {
        let revision = ResourceVersion::new(revision);
        let found = Continuity::after_restart(&last_pass, Some(&revision), servers(now).as_ref());
        assert_eq!(found, expected, "{revision} {now}");
    }
}

#[test]
fn without_a_revision_the_servers_tell_whether_anything_was_missed_whatever_the_clocks_say() {
    let servers = |text: &str| Some(text.to_owned());
    let last_pass = StorageStateStatus { observed_servers: servers("a_1, b_1"), ..state(&["v1"], "v1", 0) };
    for (now, expected) in [
        (servers("a_1, b_1"), Continuity::Unbroken),
        (servers("a_1, b_2"), Continuity::Broken),
        (servers("a_1"), Continuity::Broken),
    ] {
        assert_eq!(Continuity::after_restart(&last_pass, None, now.as_ref()), expected, "{now:?}");
    }
    let unnamed = state(&["v1"], "v1", 0);
    assert_eq!(Continuity::after_restart(&unnamed, None, servers("a_1").as_ref()), Continuity::Broken);
    // The heartbeat seems to be young, because the clock of whoever begins is behind.
    let seen = ObservedVersions {
        revision: None,
        servers: servers("a_1, b_2"),
        continuity: Continuity::after_restart(&last_pass, None, servers("a_1, b_2").as_ref()),
        ..agreed("v1", "")
    };
    let effects = decide(&snapshot(seen, Some(last_pass), &[]), at(1));
    let Some(TriggerEffect::UpdateStorageState(status)) = effects.first() else { panic!("{effects:?}") };
    assert_eq!(status.persisted_storage_version_hashes, [hash(UNKNOWN)], "b may have stored anything in between");
    assert_eq!(status.observed_servers, servers("a_1, b_2"));
}

#[test]
fn the_life_of_the_proposals_cronjob() {
    // Installed on a cluster that stores v2alpha1; migrated; upgraded to v2beta1; rolled back before that was migrated.
    let poll = |text: &str| ObservedVersions { revision: None, ..agreed(text, "") };
    let start = |text: &str| TriggerEffect::StartMigration { target: hash(text), agreement_revision: None, attempt: 1 };
    let known =
        |uid: &str, text: &str, state| KnownMigration { agreement_revision: None, ..migration(uid, text, "", state) };

    let installed = state(&[UNKNOWN], "v2alpha1", 0);
    assert_eq!(
        decide(&snapshot(poll("v2alpha1"), None, &[]), at(0)),
        [TriggerEffect::CreateStorageState(installed.clone()), start("v2alpha1")]
    );
    let done = known("1", "v2alpha1", MigrationState::Succeeded);
    let migrated = applied("1", state(&["v2alpha1"], "v2alpha1", 60));
    assert_eq!(
        decide(&snapshot(poll("v2alpha1"), Some(installed), std::slice::from_ref(&done)), at(60)),
        [TriggerEffect::UpdateStorageState(migrated.clone())]
    );
    let upgraded = applied("1", state(&["v2alpha1", "v2beta1"], "v2beta1", 600));
    assert_eq!(
        decide(&snapshot(poll("v2beta1"), Some(migrated), &[done]), at(600)),
        [
            removed("1", RemovalReason::Superseded),
            TriggerEffect::UpdateStorageState(upgraded.clone()),
            start("v2beta1")
        ]
    );
    let running = known("2", "v2beta1", MigrationState::Live);
    assert_eq!(
        decide(&snapshot(poll("v2alpha1"), Some(upgraded), &[running]), at(700)),
        [
            removed("2", RemovalReason::Superseded),
            TriggerEffect::UpdateStorageState(state(&["v2alpha1", "v2beta1"], "v2alpha1", 700)),
            start("v2alpha1"),
        ]
    );
}

#[test]
fn a_storage_version_migration_is_parsed() {
    let wire = serde_json::json!({
        "metadata": {"name": "pods-x", "uid": "u", "annotations": {"restow.dev/target-storage-version-hash": "h"}},
        "status": {"conditions": [
            {"type": "Running", "status": "False"},
            {"type": "Failed", "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"},
        ]},
    });
    let object: restow_api::migration::StorageVersionMigration = serde_json::from_value(wire).unwrap();
    let expected = KnownMigration {
        name: "pods-x".into(),
        uid: "u".into(),
        target: Some(hash("h")),
        agreement_revision: None,
        attempt: 1,
        state: MigrationState::Failed { at: Some("2026-01-01T00:00:00Z".parse().unwrap()) },
        author: Author::Trigger,
        is_paused: false,
    };
    assert_eq!(KnownMigration::from(&object), expected);
    let wire = serde_json::json!({"metadata": {"name": "mine", "annotations": {"restow.dev/paused": "true"}}});
    let object: restow_api::migration::StorageVersionMigration = serde_json::from_value(wire).unwrap();
    let known = KnownMigration::from(&object);
    assert_eq!((known.author, known.is_paused, known.is_on_its_way()), (Author::Somebody, true, false));
}

#[test]
fn it_is_told_since_when_objects_may_be_in_another_version() {
    let since = |before: Option<StorageStateStatus>, seen: ObservedVersions, now: i64| {
        let effects = super::decide(&snapshot(seen, before, &[]), at(now));
        effects.into_iter().find_map(|effect| match effect {
            TriggerEffect::CreateStorageState(status) | TriggerEffect::UpdateStorageState(status) => Some(status),
            _ => None,
        })
    };
    let first = since(None, agreed("v1", "5"), 0).unwrap();
    assert_eq!(first.unmigrated_since, Some(Time::new(at(0))), "nothing is known at first");
    let settled = state(&["v1"], "v1@5", 0);
    let changed = since(Some(settled), agreed("v2", "9"), 7).unwrap();
    assert_eq!(changed.unmigrated_since, Some(Time::new(at(7))));
    let later = since(Some(changed.clone()), agreed("v3", "12"), 9).unwrap();
    assert_eq!(later.unmigrated_since, Some(Time::new(at(7))), "it stays open since the first change");
    let done = StorageStateStatus { persisted_storage_version_hashes: vec![hash("v2")], ..changed };
    assert_eq!(since(Some(done), agreed("v2", "9"), 400).unwrap().unmigrated_since, None);
}

#[test]
fn a_disagreement_is_a_condition_that_changes_when_the_words_do() {
    let split = |words: &str| ObservedVersions { disagreement: Some(words.into()), ..disagreed(&["v1", "v2"], "5") };
    let status = |before: &StorageStateStatus, seen: ObservedVersions, now: i64| {
        let effects = decide(&snapshot(seen, Some(before.clone()), &[]), at(now));
        effects.into_iter().find_map(|effect| match effect {
            TriggerEffect::UpdateStorageState(status) => Some(status),
            _ => None,
        })
    };
    let before = state(&["v1"], "v1@5", 0);
    let first = status(&before, split("a v1; b v2"), 1).unwrap();
    assert_eq!(
        (first.conditions[0].status.clone(), &*first.conditions[0].message),
        (ConditionStatus::False, "a v1; b v2")
    );
    assert_eq!(status(&first, split("a v1; b v2"), 2), None, "the same words are not written again");
    let second = status(&first, split("b v2; c v1"), 3).unwrap();
    assert_eq!(second.conditions[0].last_update_time, Some(Time::new(at(3))));
    let agreed_again = status(&second, agreed("v2", "9"), 4).unwrap();
    assert_eq!(agreed_again.conditions[0].status, ConditionStatus::True);
}
