//! What others do and know: migrations that people apply, and what a CRD says of itself.

use super::*;

/// A migration that a person applied: it names a resource, and nothing else.
fn by_a_person(uid: &str, state: MigrationState) -> KnownMigration {
    let author = Author::Somebody;
    KnownMigration { target: None, agreement_revision: None, author, ..migration(uid, "", "", state) }
}

#[test]
fn a_migration_applied_with_the_crd_change_runs_under_its_name() {
    let changed = || Some(state(&["v1"], "v1@5", 0));
    let after = TriggerEffect::UpdateStorageState(state(&["v1", "v2"], "v2@9", 1));
    let applied_by_hand = by_a_person("mine", MigrationState::Live);
    // It does the work itself: nothing is removed, and nothing is started beside it.
    let seen = snapshot(agreed("v2", "9"), changed(), std::slice::from_ref(&applied_by_hand));
    assert_eq!(decide(&seen, at(1)), std::slice::from_ref(&after));
    // Paused, it does nothing, and holds up nothing.
    let paused = KnownMigration { is_paused: true, ..applied_by_hand.clone() };
    assert_eq!(decide(&snapshot(agreed("v2", "9"), changed(), &[paused]), at(1)), [after, started("v2", "9", 1)]);
    // No disagreement, no gap, no failure and no later change removes it, whether it has ended or not.
    for ending in [MigrationState::Live, MigrationState::Succeeded, MigrationState::Failed { at: Some(at(0)) }] {
        let known = by_a_person("mine", ending);
        for (seen, now) in [
            (agreed("v2", "9"), 1),
            (agreed("v2", "9"), 5_000),
            (disagreed(&["v1", "v2"], "9"), 1),
            (agreed("v1", "5"), 1),
        ] {
            let effects = decide(&snapshot(seen, changed(), std::slice::from_ref(&known)), at(now));
            let removes = |effect: &TriggerEffect| matches!(effect, TriggerEffect::RemoveMigration { .. });
            assert!(!effects.iter().any(removes), "{ending:?}: {effects:?}");
        }
    }
}

#[test]
fn a_manual_migration_counts_when_it_succeeds_and_delays_nothing_when_it_fails() {
    let before = state(&["v1", "v2"], "v2@9", 0);
    let done = KnownMigration {
        target: Some(hash("v2")),
        agreement_revision: Some(ResourceVersion::new("9")),
        ..by_a_person("mine", MigrationState::Succeeded)
    };
    let seen = snapshot(agreed("v2", "9"), Some(before.clone()), &[done]);
    assert_eq!(decide(&seen, at(1)), [TriggerEffect::UpdateStorageState(applied("mine", state(&["v2"], "v2@9", 1)))]);
    let failed = KnownMigration {
        target: Some(hash("v2")),
        agreement_revision: Some(ResourceVersion::new("9")),
        ..by_a_person("mine", MigrationState::Failed { at: Some(at(0)) })
    };
    assert_eq!(decide(&snapshot(agreed("v2", "9"), Some(before), &[failed]), at(1)), [started("v2", "9", 1)]);
}

/// What a CRD says of itself, besides what the servers encode.
fn recorded(texts: &[&str], seen: ObservedVersions) -> ObservedVersions {
    ObservedVersions { recorded: Some(texts.iter().map(|text| hash(text)).collect()), ..seen }
}

#[test]
fn an_outage_makes_nothing_unknown_that_the_crd_has_kept_record_of() {
    let before = || Some(state(&["v1"], "v1@5", 0));
    // A server cannot be asked for a moment.
    let silent = recorded(&["v1"], disagreed(&["v1", UNKNOWN], "5"));
    let during = state(&["v1"], "Unknown@5", 1);
    assert_eq!(decide(&snapshot(silent, before(), &[]), at(1)), [TriggerEffect::UpdateStorageState(during.clone())]);
    let back = recorded(&["v1"], agreed("v1", "5"));
    let after = TriggerEffect::UpdateStorageState(state(&["v1"], "v1@5", 2));
    assert_eq!(decide(&snapshot(back.clone(), Some(during), &[]), at(2)), [after], "and nothing is checked again");
    // Nobody looked for a day, or a watch was interrupted.
    let day = 86_400;
    let heartbeat = TriggerEffect::UpdateStorageState(state(&["v1"], "v1@5", day));
    assert_eq!(decide(&snapshot(back.clone(), before(), &[]), at(day)), [heartbeat]);
    let broken = ObservedVersions { continuity: Continuity::Broken, ..back };
    assert_eq!(decide(&snapshot(broken, before(), &[]), at(1)), []);
    // A version came and went meanwhile: the CRD says so, and it is migrated.
    let changed = recorded(&["v1", "v2"], agreed("v1", "20"));
    assert_eq!(
        decide(&snapshot(changed, before(), &[]), at(day)),
        [TriggerEffect::UpdateStorageState(state(&["v1", "v2"], "v1@20", day)), started("v1", "20", 1)]
    );
}

#[test]
fn at_first_sight_a_crds_own_record_is_not_enough() {
    // Its stored versions may have been written by hand, without any migration; seen once, it is watched from then on.
    let seen = snapshot(recorded(&["v1"], agreed("v1", "5")), None, &[]);
    let first = TriggerEffect::CreateStorageState(state(&[UNKNOWN], "v1@5", 0));
    assert_eq!(decide(&seen, at(0)), [first, started("v1", "5", 1)]);
    let known = snapshot(recorded(&["v1"], agreed("v1", "5")), Some(state(&[UNKNOWN], "v1@5", 0)), &[]);
    assert!(decide(&known, at(1)).contains(&started("v1", "5", 1)), "what was unknown stays so until a migration");
}
