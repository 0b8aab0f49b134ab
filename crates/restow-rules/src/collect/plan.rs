//! One pass of the garbage collection, as a list of effects in a safe order.

use super::{Collected, IdentityLease, collect_expecting};
use crate::Participants;
use jiff::Timestamp;
use restow_api::internal_apiserver::{StorageVersion, StorageVersionStatus};
use restow_api::{ResourceVersion, ServerId};

/// What one pass reads: the StorageVersions first, the leases after them or at the same revision.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectSnapshot {
    /// All StorageVersions.
    pub storage_versions: Vec<StorageVersion>,
    /// All identity leases; `None` when they could not be listed.
    pub leases: Option<Vec<IdentityLease>>,
    /// Servers of which it is unknown whether the lease exists, although the others could be listed.
    pub unread: Vec<ServerId>,
}

/// One effect, which is one transaction. If it is refused, it is skipped, and the next pass reads again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectEffect {
    /// Delete the identity lease of this server if it still has this revision. From then on, the server cannot write.
    DeleteLease {
        /// The server.
        id: ServerId,
        /// The precondition.
        revision: ResourceVersion,
    },
    /// Write this status if the object still has this revision and none of these leases exists.
    UpdateStorageVersion {
        /// The object's name.
        name: String,
        /// The precondition on the object.
        revision: Option<ResourceVersion>,
        /// The precondition on leases: none of these may exist.
        absent_leases: Vec<String>,
        /// The status to write.
        status: StorageVersionStatus,
    },
    /// Delete the object if it still has this revision and none of these leases exists.
    DeleteStorageVersion {
        /// The object's name.
        name: String,
        /// The precondition on the object.
        revision: Option<ResourceVersion>,
        /// The precondition on leases: none of these may exist.
        absent_leases: Vec<String>,
    },
}

/// What to remove: expired leases first, then the entries and objects that they leave behind. `now` is only used for
/// timestamps.
///
/// The entries of a server whose lease is deleted in the same pass are collected in it too. That is safe because each
/// effect has the absence of these leases as precondition: if the server renewed just in time, its lease is not deleted,
/// and the removal of its entries is refused as well.
pub fn plan(snapshot: &CollectSnapshot, now: Timestamp) -> Vec<CollectEffect> {
    let Some(leases) = &snapshot.leases else {
        return Vec::new();
    };
    let (expired, alive): (Vec<&IdentityLease>, Vec<_>) = leases.iter().partition(|lease| lease.expired);
    let alive = participants(alive, snapshot);
    // Until its lease is deleted, an expired server can write. A server with an entry loses it on condition that the lease
    // is deleted. The lease of a server without an entry is not compared, so nothing is concluded before it is deleted.
    let all = participants(leases, snapshot);

    let deletions = expired
        .into_iter()
        .map(|lease| CollectEffect::DeleteLease { id: lease.id.clone(), revision: lease.revision.clone() });
    let removals = snapshot.storage_versions.iter().filter_map(|object| removal(object, &alive, &all, now));
    deletions.chain(removals).collect()
}

fn participants<'a>(leases: impl IntoIterator<Item = &'a IdentityLease>, snapshot: &CollectSnapshot) -> Participants {
    let list = leases.into_iter().fold(Participants::listed([]), |list, lease| match &lease.control_plane {
        Some(control_plane) => list.with_server(lease.id.clone(), control_plane),
        None => list.with_lease(lease.id.clone()),
    });
    snapshot.unread.iter().cloned().fold(list, Participants::with_unread)
}

fn removal(object: &StorageVersion, alive: &Participants, all: &Participants, now: Timestamp) -> Option<CollectEffect> {
    let name = object.metadata.name.clone();
    let revision = object.metadata.resource_version.clone();
    match collect_expecting(object, alive, all, now) {
        Collected::Keep => None,
        Collected::Update { status, dropped } => {
            Some(CollectEffect::UpdateStorageVersion { name, revision, absent_leases: dropped, status })
        }
        Collected::Delete { dropped } => {
            Some(CollectEffect::DeleteStorageVersion { name, revision, absent_leases: dropped })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agreement::set_common_encoding_version;
    use restow_api::internal_apiserver::ServerStorageVersion;

    const REPORTED: &str = "2026-01-01T00:00:00Z";
    const NOW: &str = "2026-01-01T00:01:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn lease(id: &str, expired: bool) -> IdentityLease {
        let revision = ResourceVersion::new(format!("lease-{id}"));
        IdentityLease { id: id.parse().unwrap(), control_plane: None, revision, expired }
    }

    fn object(resource: &str, entries: &[(&str, &str)]) -> StorageVersion {
        let mut object = StorageVersion::new(&resource.parse().unwrap());
        object.metadata.resource_version = Some(ResourceVersion::new(format!("object-{resource}")));
        let entry = |(id, encoding): &(&str, &str)| ServerStorageVersion {
            api_server_id: (*id).to_owned(),
            encoding_version: (*encoding).to_owned(),
            decodable_versions: vec![(*encoding).to_owned()],
            served_versions: Vec::new(),
        };
        object.status.storage_versions = entries.iter().map(entry).collect();
        set_common_encoding_version(&mut object.status, 0, &Participants::listed([]), REPORTED.parse().unwrap());
        object
    }

    #[test]
    fn leases_go_first_and_entries_after_them() {
        let snapshot = CollectSnapshot {
            storage_versions: vec![
                object("pods", &[("dead", "v1"), ("alive", "v2")]),
                object("secrets", &[("alive", "v1")]),
                object("widgets", &[("dead", "v1"), ("long-dead", "v1")]),
            ],
            leases: Some(vec![lease("alive", false), lease("dead", true)]),
            unread: vec![],
        };
        let mut status = object("pods", &[("alive", "v2")]).status;
        set_common_encoding_version(&mut status, 0, &Participants::listed([]), now());
        status.conditions[0].last_transition_time = Some(restow_api::Time::new(now()));
        assert_eq!(
            plan(&snapshot, now()),
            [
                CollectEffect::DeleteLease {
                    id: "dead".parse().unwrap(),
                    revision: ResourceVersion::new("lease-dead")
                },
                CollectEffect::UpdateStorageVersion {
                    name: "core.pods".into(),
                    revision: Some(ResourceVersion::new("object-pods")),
                    absent_leases: vec!["dead".into()],
                    status,
                },
                CollectEffect::DeleteStorageVersion {
                    name: "core.widgets".into(),
                    revision: Some(ResourceVersion::new("object-widgets")),
                    absent_leases: vec!["dead".into(), "long-dead".into()],
                },
            ]
        );
    }

    #[test]
    fn nothing_is_removed_when_the_leases_could_not_be_read() {
        let storage_versions = vec![object("pods", &[("dead", "v1")]), object("secrets", &[])];
        let unreadable = CollectSnapshot { storage_versions: storage_versions.clone(), leases: None, unread: vec![] };
        assert_eq!(plan(&unreadable, now()), []);
        let partly = CollectSnapshot { storage_versions, leases: Some(vec![]), unread: vec!["dead".parse().unwrap()] };
        assert_eq!(plan(&partly, now()), []);
    }

    #[test]
    fn an_expired_server_without_an_entry_is_waited_for_until_its_lease_is_gone() {
        let of = |lease: IdentityLease| IdentityLease { control_plane: Some("main".into()), ..lease };
        let mut waiting = object("pods", &[("alive", "v2")]);
        let both = [lease("alive", false), lease("silent", true)].map(of);
        let list = |leases: &[IdentityLease]| {
            let snapshot = CollectSnapshot { storage_versions: vec![], leases: None, unread: vec![] };
            participants(leases, &snapshot)
        };
        set_common_encoding_version(&mut waiting.status, 0, &list(&both), REPORTED.parse().unwrap());
        assert_eq!(waiting.status.common_encoding_version, None);
        let snapshot = |leases: &[IdentityLease]| CollectSnapshot {
            storage_versions: vec![waiting.clone()],
            leases: Some(leases.to_vec()),
            unread: vec![],
        };
        let first = plan(&snapshot(&both), now());
        assert!(matches!(first.as_slice(), [CollectEffect::DeleteLease { .. }]), "{first:?}");
        let second = plan(&snapshot(&both[..1]), now());
        let [CollectEffect::UpdateStorageVersion { status, .. }] = second.as_slice() else { panic!("{second:?}") };
        assert_eq!(status.common_encoding_version.as_deref(), Some("v2"));
    }
}
