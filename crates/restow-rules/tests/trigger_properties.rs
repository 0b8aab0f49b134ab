//! The trigger under random upgrades, downgrades, interruptions and gaps: it always reports every stored version.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use jiff::Timestamp;
use proptest::prelude::*;
use restow_api::migration::StorageStateStatus;
use restow_api::{ResourceVersion, StorageVersionHash};
use restow_rules::trigger::{
    Author, Continuity, EncodingAgreement, KnownMigration, MigrationState, ObservedVersions, Retry, TriggerEffect,
    TriggerPolicy, TriggerSnapshot, decide,
};
use std::collections::BTreeSet;

const SERVERS: usize = 3;

#[derive(Clone, Debug)]
enum Event {
    /// A server is upgraded or downgraded, and writes at once.
    Change { server: usize, version: u8 },
    /// The controller makes a pass. With `effects`, it dies after so many of them.
    Pass { effects: Option<usize> },
    /// The controller restarts, and loses what it saw since the last pass.
    Restart,
    /// The running migration comes to its end; it fails if the agreement changed, or for a reason of its own.
    End { well: bool },
    /// A user applies a migration that names only the resource.
    Ask,
    /// Time passes.
    Wait { minutes: i64 },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..SERVERS, 1u8..4).prop_map(|(server, version)| Event::Change { server, version }),
        6 => prop::option::weighted(0.2, 0usize..4).prop_map(|effects| Event::Pass { effects }),
        1 => Just(Event::Restart),
        1 => Just(Event::Ask),
        4 => prop::bool::weighted(0.8).prop_map(|well| Event::End { well }),
        2 => (0i64..30).prop_map(|minutes| Event::Wait { minutes }),
    ]
}

fn hash(version: u8) -> StorageVersionHash {
    StorageVersionHash::new(format!("v{version}"))
}

/// The cluster as it really is, and what the controller remembers of it.
struct World {
    minutes: i64,
    servers: [u8; SERVERS],
    revision: u32,
    /// The versions in which objects may really be stored.
    stored: BTreeSet<StorageVersionHash>,
    state: Option<StorageStateStatus>,
    migrations: Vec<KnownMigration>,
    created: u32,
    /// The number of migrations that users created.
    asked: usize,
    /// Versions seen since the last pass that was carried out to its end.
    seen: Vec<StorageVersionHash>,
    restarted: bool,
    /// The storage version and stored versions of the CRD, if there is one.
    recorded: Option<BTreeSet<StorageVersionHash>>,
}

impl World {
    /// A resource of a CRD, or a built-in one. A CRD's stored versions may be wrong at first: a
    /// user edited them.
    fn new(is_custom: bool) -> Self {
        World {
            recorded: is_custom.then(|| BTreeSet::from([hash(1)])),
            minutes: 0,
            servers: [1; SERVERS],
            revision: 1,
            stored: BTreeSet::from([hash(0), hash(1)]),
            state: None,
            migrations: Vec::new(),
            created: 0,
            asked: 0,
            seen: Vec::new(),
            restarted: true,
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + 60 * self.minutes).unwrap()
    }

    fn agreement_revision(&self) -> Option<ResourceVersion> {
        Some(ResourceVersion::new(self.revision.to_string()))
    }

    fn agreed(&self) -> Option<u8> {
        self.servers.iter().all(|version| *version == self.servers[0]).then_some(self.servers[0])
    }

    fn snapshot(&self) -> TriggerSnapshot {
        let revision = self.agreement_revision();
        let continuity = match &self.state {
            Some(state) if self.restarted => Continuity::after_restart(state, revision.as_ref(), None),
            _ => Continuity::Unbroken,
        };
        let agreement = match self.agreed() {
            Some(version) => EncodingAgreement::Agreed(hash(version)),
            None => EncodingAgreement::Disagreed(self.servers.iter().map(|version| hash(*version)).collect()),
        };
        TriggerSnapshot {
            observed: ObservedVersions {
                agreement,
                revision,
                servers: None,
                since_last_pass: self.seen.clone(),
                continuity,
                recorded: self.recorded.as_ref().map(|recorded| recorded.iter().cloned().collect()),
                disagreement: None,
            },
            storage_state: self.state.clone(),
            looked_at: None,
            migrations: self.migrations.clone(),
            retry: Retry::WhenDue,
            policy: TriggerPolicy::default(),
        }
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Change { server, version } => {
                self.revision += u32::from(self.servers[*server] != *version);
                self.servers[*server] = *version;
                self.stored.insert(hash(*version));
                self.recorded.iter_mut().for_each(|recorded| recorded.extend([hash(*version)]));
                self.seen.push(hash(*version));
            }
            Event::Pass { effects } => self.pass(*effects),
            Event::Restart => {
                self.seen.clear();
                self.restarted = true;
            }
            Event::End { well } => self.end(*well),
            Event::Ask => {
                self.asked += 1;
                self.create(None, None, 1, Author::Somebody);
            }
            Event::Wait { minutes } => self.minutes += minutes,
        }
    }

    fn pass(&mut self, carried_out: Option<usize>) {
        let effects = decide(&self.snapshot(), self.now());
        for effect in effects.iter().take(carried_out.unwrap_or(usize::MAX)) {
            match effect {
                TriggerEffect::RemoveMigration { uid, .. } => self.migrations.retain(|migration| migration.uid != *uid),
                TriggerEffect::CreateStorageState(status) | TriggerEffect::UpdateStorageState(status) => {
                    self.state = Some(status.clone());
                }
                TriggerEffect::StartMigration { target, agreement_revision, attempt } => {
                    self.start(target, agreement_revision, *attempt)
                }
                TriggerEffect::RequeueAt(time) => assert!(*time > self.now(), "waiting for the past"),
            }
        }
        match carried_out {
            // Dying in the middle is a restart.
            Some(_) => self.apply(&Event::Restart),
            None => self.check_after_pass(),
        }
    }

    fn start(&mut self, target: &StorageVersionHash, agreement_revision: &Option<ResourceVersion>, attempt: u32) {
        assert!(self.live().next().is_none(), "two migrations at once");
        self.create(Some(target.clone()), agreement_revision.clone(), attempt, Author::Trigger);
    }

    /// The trigger's own migrations that wait or run.
    fn live(&self) -> impl Iterator<Item = &KnownMigration> {
        self.migrations.iter().filter(|migration| migration.is_live() && migration.author == Author::Trigger)
    }

    fn create(
        &mut self,
        target: Option<StorageVersionHash>,
        agreement_revision: Option<ResourceVersion>,
        attempt: u32,
        author: Author,
    ) {
        self.created += 1;
        self.migrations.push(KnownMigration {
            name: format!("m{}", self.created),
            uid: self.created.to_string(),
            target,
            agreement_revision,
            attempt,
            state: MigrationState::Live,
            author,
            is_paused: false,
        });
    }

    fn end(&mut self, well: bool) {
        let (now, current, agreed) = (self.now(), self.agreement_revision(), self.agreed().map(hash));
        let Some(running) = self.migrations.iter_mut().find(|migration| migration.is_live()) else { return };
        if running.author == Author::Somebody {
            // It has no target of its own, so the agreed version counts.
            (running.target, running.agreement_revision) = (agreed.clone(), current.clone());
        }
        if well && agreed.is_some() && running.agreement_revision == current {
            running.state = MigrationState::Succeeded;
            self.stored = running.target.iter().cloned().collect();
            self.recorded.iter_mut().for_each(|recorded| recorded.clone_from(&self.stored));
        } else {
            running.state = MigrationState::Failed { at: Some(now) };
        }
    }

    /// The properties that hold after each complete pass.
    fn check_after_pass(&mut self) {
        self.seen.clear();
        self.restarted = false;
        let state = self.state.as_ref().unwrap();
        let persisted = &state.persisted_storage_version_hashes;
        let covered = |version: &StorageVersionHash| {
            persisted.contains(version) || persisted.iter().any(|hash| hash.is_unknown())
        };
        assert!(self.stored.iter().all(covered), "{:?} is stored, {persisted:?} is reported", self.stored);
        let is_by_a_user = |migration: &&KnownMigration| migration.author == Author::Somebody;
        assert_eq!(self.migrations.iter().filter(is_by_a_user).count(), self.asked, "none of them is removed");
        assert_eq!(persisted.iter().collect::<BTreeSet<_>>().len(), persisted.len(), "a version is listed twice");

        let live: Vec<_> = self.live().collect();
        let is_asked_for = self.migrations.iter().any(KnownMigration::is_on_its_way);
        match self.agreed() {
            None => {
                assert!(live.is_empty(), "nothing runs without agreement");
                assert!(state.current_storage_version_hash.as_ref().unwrap().is_unknown());
            }
            Some(version) => {
                assert_eq!(state.current_storage_version_hash, Some(hash(version)));
                let fits = |migration: &KnownMigration| {
                    migration.target == Some(hash(version)) && migration.agreement_revision == self.agreement_revision()
                };
                assert!(live.iter().all(|migration| fits(migration)), "what runs relies on this agreement");
                let failed =
                    self.migrations.iter().any(|migration| matches!(migration.state, MigrationState::Failed { .. }));
                assert!(
                    *persisted == [hash(version)] || is_asked_for || failed,
                    "a migration is needed, and none runs"
                );
            }
        }
        assert!(
            decide(&self.snapshot(), self.now()).iter().all(|effect| matches!(effect, TriggerEffect::RequeueAt(_))
                || matches!(effect, TriggerEffect::UpdateStorageState(_))),
            "a second pass starts and stops nothing"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn every_stored_version_is_always_reported(
        events in prop::collection::vec(event(), 1..60),
        is_custom in any::<bool>(),
    ) {
        let mut world = World::new(is_custom);
        for event in &events {
            world.apply(event);
        }
        world.apply(&Event::Pass { effects: None });
    }

    #[test]
    fn everything_is_migrated_after_the_last_change(
        events in prop::collection::vec(event(), 1..30),
        version in 1u8..4,
        is_custom in any::<bool>(),
    ) {
        let mut world = World::new(is_custom);
        for event in &events {
            world.apply(event);
        }
        for server in 0..SERVERS {
            world.apply(&Event::Change { server, version });
        }
        // One pass starts the migration, perhaps after waiting for its time; one notices its end.
        for event in [Event::Pass { effects: None }, Event::Wait { minutes: 31 }, Event::Pass { effects: None },
                      Event::End { well: true }, Event::Pass { effects: None }] {
            world.apply(&event);
        }
        let state = world.state.unwrap();
        prop_assert_eq!(state.persisted_storage_version_hashes, vec![hash(version)]);
    }
}
