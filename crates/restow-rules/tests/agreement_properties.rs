//! Registration and collection under random joins, leaves, crashes, upgrades and downgrades.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use restow_api::ServerId;
use restow_api::internal_apiserver::{ConditionStatus, StorageVersion, StorageVersionStatus, validate_storage_version};
use restow_rules::collect::{Collected, collect};
use restow_rules::{Participants, Registration, ServerReport, disagreement, is_reported, register};
use std::collections::{BTreeMap, BTreeSet};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const VERSIONS: [&str; 3] = ["v1beta1", "v1", "v2"];

#[derive(Clone, Debug)]
enum Event {
    /// A server starts, or restarts with another version: it takes its lease and reports.
    Report { server: usize, version: usize, reading: Reading },
    /// A server's lease is deleted, by itself or by the collector.
    LeaseGone { server: usize },
    /// A server takes its lease and dies before it reports.
    LeaseOnly { server: usize },
    /// The collector runs.
    Collect { reading: Reading },
    /// A user deletes the object, or all entries in it; then every live server repairs its own entry.
    ManualEdit { whole: bool },
}

/// The part of the participants that could be read.
#[derive(Clone, Debug)]
enum Reading {
    Whole,
    AllBut(usize),
    Nothing,
}

fn reading() -> impl Strategy<Value = Reading> {
    prop_oneof![4 => Just(Reading::Whole), 1 => (0..NAMES.len()).prop_map(Reading::AllBut), 1 => Just(Reading::Nothing)]
}

fn event() -> impl Strategy<Value = Event> {
    let server = 0..NAMES.len();
    prop_oneof![
        4 => (server.clone(), 0..VERSIONS.len(), reading())
            .prop_map(|(server, version, reading)| Event::Report { server, version, reading }),
        2 => server.clone().prop_map(|server| Event::LeaseGone { server }),
        1 => server.prop_map(|server| Event::LeaseOnly { server }),
        2 => reading().prop_map(|reading| Event::Collect { reading }),
        1 => any::<bool>().prop_map(|whole| Event::ManualEdit { whole }),
    ]
}

fn id(server: usize) -> ServerId {
    NAMES[server].parse().unwrap()
}

#[derive(Default)]
struct World {
    leases: BTreeSet<usize>,
    /// The report of each server under its current lease.
    reports: BTreeMap<usize, ServerReport>,
    object: Option<StorageVersion>,
    seconds: i64,
}

impl World {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + self.seconds).unwrap()
    }

    fn participants(&self, reading: &Reading) -> Participants {
        let listed = |leases: &mut dyn Iterator<Item = &usize>| {
            leases.fold(Participants::listed([]), |list, server| list.with_server(id(*server), "kube-apiserver"))
        };
        match reading {
            Reading::Whole => listed(&mut self.leases.iter()),
            Reading::AllBut(unread) => {
                listed(&mut self.leases.iter().filter(|server| *server != unread)).with_unread(id(*unread))
            }
            Reading::Nothing => Participants::unreadable(),
        }
    }

    fn entries(&self) -> Vec<(String, String)> {
        let entries = self.object.iter().flat_map(|object| &object.status.storage_versions);
        entries.map(|entry| (entry.api_server_id.clone(), entry.encoding_version.clone())).collect()
    }

    fn write(&mut self, status: StorageVersionStatus) {
        let object = self.object.get_or_insert_with(|| StorageVersion::new(&"pods".parse().unwrap()));
        object.status = status;
    }

    /// No server with a lease that exists, or may exist, loses its entry.
    fn check_dropped(&self, dropped: &[String], reading: &Reading) {
        for name in dropped {
            let server = NAMES.iter().position(|other| other == name).unwrap();
            assert!(!self.leases.contains(&server), "{name} was dropped though its lease exists");
            match reading {
                Reading::Whole => {}
                Reading::AllBut(unread) => assert_ne!(server, *unread, "{name} was dropped unread"),
                Reading::Nothing => panic!("{name} was dropped though nothing could be read"),
            }
        }
    }

    fn apply(&mut self, event: &Event) {
        self.seconds += 1;
        match event {
            Event::LeaseGone { server } => {
                self.leases.remove(server);
                self.reports.remove(server);
            }
            Event::LeaseOnly { server } => drop(self.leases.insert(*server)),
            Event::Report { server, version, reading } => self.report(*server, *version, reading),
            Event::Collect { reading } => self.collect(reading),
            Event::ManualEdit { whole } => self.edit_manually(*whole),
        }
    }

    fn report(&mut self, server: usize, version: usize, reading: &Reading) {
        self.leases.insert(server);
        let participants = self.participants(reading);
        let all = VERSIONS.map(|version| version.parse().unwrap());
        let own = ServerReport::new(id(server), VERSIONS[version].parse().unwrap(), all, []).unwrap();
        let Registration { status, dropped } = register(self.object.as_ref(), &participants, &own, self.now());
        self.check_dropped(&dropped, reading);
        assert!(status.storage_versions.contains(&own.entry()), "the own entry is there");
        self.write(status.clone());
        assert!(is_reported(self.object.as_ref(), &own, self.now()), "the written object has the report");
        self.reports.insert(server, own.clone());

        let later = self.now() + SignedDuration::from_hours(1);
        let again = register(self.object.as_ref(), &participants, &own, later);
        assert_eq!(again, Registration { status, dropped: vec![] }, "registering again changes nothing");
    }

    fn edit_manually(&mut self, whole: bool) {
        match &mut self.object {
            Some(object) if !whole => object.status.storage_versions.clear(),
            object => *object = None,
        }
        for own in self.reports.clone().values() {
            assert!(!is_reported(self.object.as_ref(), own, self.now()), "it is noticed");
            let status = register(self.object.as_ref(), &Participants::unreadable(), own, self.now()).status;
            self.write(status);
        }
        for own in self.reports.values() {
            assert!(is_reported(self.object.as_ref(), own, self.now()), "no server undoes the repair of another");
        }
        // If no server is left to repair it, the next run of the collector removes the empty object.
        if self.reports.is_empty() {
            self.object = None;
        }
    }

    fn collect(&mut self, reading: &Reading) {
        let Some(object) = &self.object else { return };
        let before = self.entries();
        match collect(object, &self.participants(reading), self.now()) {
            Collected::Keep => {}
            Collected::Update { status, dropped } => {
                self.check_dropped(&dropped, reading);
                self.write(status);
                assert_eq!(self.entries().len() + dropped.len(), before.len());
            }
            Collected::Delete { dropped } => {
                self.check_dropped(&dropped, reading);
                assert_eq!(dropped.len(), before.len(), "only an object without entries is deleted");
                self.object = None;
            }
        }
        if matches!(reading, Reading::Whole) {
            let alive = |name: &str| self.leases.iter().any(|server| NAMES[*server] == name);
            assert!(self.entries().iter().all(|(name, _)| alive(name)), "nothing is left over after a complete run");
            let has_entry = |server: &usize| self.entries().iter().any(|(name, _)| name == NAMES[*server]);
            let versions: BTreeSet<String> = self.entries().into_iter().map(|(_, version)| version).collect();
            let agreed = versions.len() == 1 && self.leases.iter().all(has_entry);
            let common = self.object.as_ref().and_then(|object| object.status.common_encoding_version.clone());
            assert_eq!(
                common.is_some(),
                agreed,
                "there is an agreement exactly if all participants have reported the same"
            );
        }
    }

    /// The properties that hold after every event.
    fn check(&self, before: Option<&StorageVersionStatus>, time_is_known: bool) {
        let Some(object) = &self.object else { return };
        assert_eq!(validate_storage_version(object), [], "{object:?}");
        let encodings: BTreeSet<&String> =
            object.status.storage_versions.iter().map(|entry| &entry.encoding_version).collect();
        let common = object.status.common_encoding_version.clone();
        if let Some(common) = &common {
            assert_eq!(Vec::from_iter(&encodings), [&common], "an agreement is the version of all entries");
        }
        assert_eq!(disagreement(object).is_none(), encodings.len() < 2);
        let [condition] = &object.status.conditions[..] else { panic!("one condition: {object:?}") };
        assert_eq!(condition.status == ConditionStatus::True, common.is_some());

        let Some(before) = before.filter(|_| time_is_known) else { return };
        let moved = before.conditions[0].last_transition_time != condition.last_transition_time;
        let news = before.common_encoding_version != object.status.common_encoding_version;
        assert_eq!(moved, news, "the transition time moves when there is news, and only then");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn reports_and_removals_keep_the_storage_version_true(events in prop::collection::vec(event(), 1..40)) {
        let mut world = World::default();
        for event in &events {
            let before = world.object.as_ref().map(|object| object.status.clone());
            world.apply(event);
            // The time of a manual edit is unknown, so times are checked only after all other events.
            world.check(before.as_ref(), !matches!(event, Event::ManualEdit { .. }));
        }
    }
}
