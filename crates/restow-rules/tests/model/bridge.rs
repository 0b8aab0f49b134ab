//! Converts between the small numbers of the model and the real types, so that the real functions decide.

use crate::protocol::Comparisons;
use crate::state::{Lease, Record, Removal, Revision, SERVERS, State, Store, Version};
use jiff::Timestamp;
use restow_api::internal_apiserver::{ServerStorageVersion, StorageVersion, StorageVersionStatus};
use restow_api::migration::StorageStateStatus;
use restow_api::{ResourceVersion, ServerId, StorageVersionHash, Time};
use restow_rules::collect::{CollectEffect, CollectSnapshot, Collected, IdentityLease, plan};
use restow_rules::trigger::{
    Continuity, EncodingAgreement, ObservedVersions, Retry, TriggerEffect, TriggerPolicy, TriggerSnapshot, decide,
};
use restow_rules::{Participants, Registration, ServerReport, register, withdraw};

const NAMES: [&str; SERVERS] = ["a", "b", "c"];

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn id(server: usize) -> ServerId {
    NAMES[server].parse().unwrap()
}

fn server(id: &str) -> usize {
    NAMES.iter().position(|name| *name == id).unwrap()
}

fn text(version: Version) -> &'static str {
    match version {
        Version::V1 => "v1",
        Version::V2 => "v2",
    }
}

fn version(text: &str) -> Version {
    if text == "v1" { Version::V1 } else { Version::V2 }
}

fn status(record: &Record) -> StorageVersionStatus {
    let entry = |(server, version): (usize, Version)| ServerStorageVersion {
        api_server_id: NAMES[server].to_owned(),
        encoding_version: text(version).to_owned(),
        decodable_versions: vec!["v1".to_owned(), "v2".to_owned()],
        served_versions: Vec::new(),
    };
    let present =
        record.entries.iter().enumerate().filter_map(|(server, version)| version.map(|version| (server, version)));
    StorageVersionStatus {
        storage_versions: present.map(entry).collect(),
        common_encoding_version: record.common.map(|version| text(version).to_owned()),
        conditions: Vec::new(),
    }
}

fn record(status: &StorageVersionStatus) -> Record {
    let mut entries = [None; SERVERS];
    for entry in &status.storage_versions {
        entries[server(&entry.api_server_id)] = Some(version(&entry.encoding_version));
    }
    Record { revision: Revision::NEW, entries, common: status.common_encoding_version.as_deref().map(version) }
}

fn object(record: &Record) -> StorageVersion {
    let mut object = StorageVersion::new(&"widgets.example.com".parse().unwrap());
    object.status = status(record);
    object
}

fn names_to_flags(names: &[String]) -> [bool; SERVERS] {
    std::array::from_fn(|index| names.iter().any(|name| name == NAMES[index]))
}

/// The report of a server.
fn report(own: usize, encoding: Version) -> ServerReport {
    let both = ["v1", "v2"].map(|version| version.parse().unwrap());
    ServerReport::new(id(own), text(encoding).parse().unwrap(), both, []).unwrap()
}

/// The servers whose lease exists. With `all_must_report`, all of them are API servers that must report; without it (a rule left
/// out on purpose), they are only leases.
fn participants(store: &Store, comparisons: Comparisons) -> Participants {
    let alive = (0..SERVERS).filter(|server| store.leases[*server].is_some()).map(id);
    alive.fold(Participants::listed([]), |list, id| match comparisons.all_must_report {
        true => list.with_server(id, "kube-apiserver"),
        false => list.with_lease(id),
    })
}

/// The record that the real [`register`] writes, and the servers whose entries it drops.
pub(crate) fn registered(
    store: &Store,
    own: usize,
    encoding: Version,
    comparisons: Comparisons,
) -> (Record, [bool; SERVERS]) {
    let current = store.storage_version.as_ref().map(object);
    let list = participants(store, comparisons);
    let Registration { status, dropped } = register(current.as_ref(), &list, &report(own, encoding), now());
    (record(&status), names_to_flags(&dropped))
}

/// Whether the real rule lets a server write in a version after it has reported another or the same.
pub(crate) fn lets_write(own: usize, reported: Version, encoding: Version) -> bool {
    report(own, reported).lets_write(&text(encoding).parse().unwrap())
}

/// The result of the real [`withdraw`] for a participant that reports nothing: the new StorageVersion, or `Some(None)` if it
/// is deleted. The outer `None` means that it is unchanged.
pub(crate) fn withdrawn(store: &Store, own: usize, comparisons: Comparisons) -> Option<Option<Record>> {
    let before = store.storage_version.as_ref()?;
    match withdraw(&object(before), &participants(store, comparisons), &id(own), now()) {
        Collected::Keep => None,
        Collected::Update { status, .. } => {
            // The model has no conditions, so an object that differs only in them is unchanged.
            let after = record(&status);
            (after.entries != before.entries || after.common != before.common).then_some(Some(after))
        }
        Collected::Delete { .. } => Some(None),
    }
}

/// The removals in the plan of the real collector ([`plan`]), in order.
pub(crate) fn removals(state: &State, comparisons: Comparisons) -> Vec<Removal> {
    let lease = |(server, lease): (usize, &Option<Lease>)| {
        let lease = (*lease)?;
        let control_plane = comparisons.all_must_report.then(|| "kube-apiserver".to_owned());
        let revision = ResourceVersion::new("current");
        Some(IdentityLease { id: id(server), control_plane, revision, expired: lease.expired })
    };
    let snapshot = CollectSnapshot {
        storage_versions: state.store.storage_version.iter().map(object).collect(),
        leases: Some(state.store.leases.iter().enumerate().filter_map(lease).collect()),
        unread: Vec::new(),
    };
    let (revision, joined) = (state.store.record_revision(), state.store.joined);
    let removal = |effect: CollectEffect| match effect {
        CollectEffect::DeleteLease { id, .. } => {
            let server = server(id.as_str());
            Removal::Lease { server, created: state.store.lease_revision(server) }
        }
        CollectEffect::UpdateStorageVersion { absent_leases, status, .. } => Removal::Entries {
            revision,
            joined,
            absent: names_to_flags(&absent_leases),
            after: Some(Box::new(record(&status))),
        },
        CollectEffect::DeleteStorageVersion { absent_leases, .. } => {
            Removal::Entries { revision, joined, absent: names_to_flags(&absent_leases), after: None }
        }
    };
    plan(&snapshot, now()).into_iter().map(removal).collect()
}

/// The version that the real trigger starts a migration to, given the reports of the servers and no knowledge about the
/// stored versions.
pub(crate) fn migration_target(record: &Record) -> Option<Version> {
    let hash = |version: Version| StorageVersionHash::new(text(version));
    let agreement = match record.common {
        Some(version) => EncodingAgreement::Agreed(hash(version)),
        None => EncodingAgreement::Disagreed(record.entries.iter().flatten().map(|version| hash(*version)).collect()),
    };
    let snapshot = TriggerSnapshot {
        observed: ObservedVersions {
            agreement,
            revision: Some(ResourceVersion::new("current")),
            servers: None,
            since_last_pass: Vec::new(),
            continuity: Continuity::Unbroken,
            recorded: None,
            disagreement: None,
        },
        storage_state: Some(StorageStateStatus {
            persisted_storage_version_hashes: vec![StorageVersionHash::unknown()],
            current_storage_version_hash: Some(StorageVersionHash::unknown()),
            last_heartbeat_time: Some(Time::new(now())),
            ..StorageStateStatus::default()
        }),
        looked_at: None,
        migrations: Vec::new(),
        retry: Retry::WhenDue,
        policy: TriggerPolicy::default(),
    };
    decide(&snapshot, now()).into_iter().find_map(|effect| match effect {
        TriggerEffect::StartMigration { target, .. } => Some(version(target.as_str())),
        _ => None,
    })
}
