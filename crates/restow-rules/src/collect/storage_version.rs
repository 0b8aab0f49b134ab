//! What happens to one StorageVersion when servers are gone.

use crate::Participants;
use crate::agreement::set_common_encoding_version;
use jiff::Timestamp;
use restow_api::internal_apiserver::{StorageVersion, StorageVersionStatus};

/// What to do with one StorageVersion. Update and Delete have the revision that was read as precondition, and that the
/// identity leases of all dropped servers do not exist (see [`crate::Registration::dropped`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collected {
    /// Every entry belongs to a server that participates, or may; or nobody has reported yet.
    Keep,
    /// Some entries are leftovers; this is the status without them.
    Update {
        /// The status to write.
        status: StorageVersionStatus,
        /// The servers whose entries are dropped.
        dropped: Vec<String>,
    },
    /// No entry is left: no server stores this resource any more.
    Delete {
        /// The servers whose entries are dropped.
        dropped: Vec<String>,
    },
}

/// The maximum number of entries that are dropped at once. The transaction has one comparison for each, and a store allows
/// 128. The next pass drops the rest.
pub const MOST_DROPPED: usize = 64;

/// Drops the entries of servers that are gone, and updates the agreement for the current participants. If the participants
/// could not be listed, nothing is dropped or deleted.
pub fn collect(object: &StorageVersion, participants: &Participants, now: Timestamp) -> Collected {
    collect_expecting(object, participants, participants, now)
}

/// The same if some of the servers that count as gone still have a lease, which is about to be deleted. Those of them whose
/// entries are not dropped here, so that their leases are not compared, are `expected` to have an entry.
pub(crate) fn collect_expecting(
    object: &StorageVersion,
    participants: &Participants,
    expected: &Participants,
    now: Timestamp,
) -> Collected {
    let mut dropped = Vec::new();
    let mut kept = Vec::new();
    for entry in &object.status.storage_versions {
        if dropped.len() < MOST_DROPPED && participants.is_gone(&entry.api_server_id) {
            dropped.push(entry.api_server_id.clone());
        } else {
            kept.push(entry.clone());
        }
    }
    let all_known = participants.all().is_some();
    // Nobody has reported yet: a server that reports through the API creates the object first, and writes its status after
    // that.
    if object.status == StorageVersionStatus::default() {
        return Collected::Keep;
    }
    if kept.is_empty() && all_known {
        return Collected::Delete { dropped };
    }
    if dropped.is_empty() && !all_known {
        return Collected::Keep;
    }
    let mut status = StorageVersionStatus { storage_versions: kept, ..object.status.clone() };
    set_common_encoding_version(&mut status, object.metadata.generation, &expected.without(&dropped), now);
    match dropped.is_empty() && status == object.status {
        true => Collected::Keep,
        false => Collected::Update { status, dropped },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_api::internal_apiserver::ServerStorageVersion;

    const FIRST: &str = "2026-01-01T00:00:00Z";
    const LATER: &str = "2026-01-02T00:00:00Z";

    fn object(entries: &[(&str, &str)]) -> StorageVersion {
        let entry = |(id, encoding): &(&str, &str)| ServerStorageVersion {
            api_server_id: (*id).to_owned(),
            encoding_version: (*encoding).to_owned(),
            decodable_versions: vec![(*encoding).to_owned()],
            served_versions: Vec::new(),
        };
        let mut object = StorageVersion::new(&"pods".parse().unwrap());
        object.status.storage_versions = entries.iter().map(entry).collect();
        set_common_encoding_version(&mut object.status, 0, &Participants::listed([]), FIRST.parse().unwrap());
        object
    }

    fn participants(ids: &[&str]) -> Participants {
        Participants::listed(ids.iter().map(|id| id.parse().unwrap()))
    }

    fn decide(entries: &[(&str, &str)], participants: &Participants) -> Collected {
        collect(&object(entries), participants, LATER.parse().unwrap())
    }

    #[test]
    fn entries_of_the_living_stay() {
        assert_eq!(decide(&[("a", "v1"), ("b", "v2")], &participants(&["a", "b", "c"])), Collected::Keep);
    }

    #[test]
    fn without_the_dead_the_rest_may_agree() {
        let Collected::Update { status, dropped } = decide(&[("a", "v1"), ("b", "v2")], &participants(&["b"])) else {
            panic!("nothing was collected");
        };
        assert_eq!(dropped, ["a"]);
        assert_eq!(status.common_encoding_version.as_deref(), Some("v2"));
        assert_eq!(status.conditions[0].last_transition_time.unwrap().to_string(), LATER);
    }

    #[test]
    fn an_object_without_entries_goes() {
        let all_dead = decide(&[("a", "v1"), ("b", "v2")], &participants(&["c"]));
        assert_eq!(all_dead, Collected::Delete { dropped: vec!["a".into(), "b".into()] });
        assert_eq!(decide(&[], &participants(&["c"])), Collected::Delete { dropped: vec![] });
    }

    #[test]
    fn an_object_that_was_just_created_waits_for_its_first_report() {
        let object = StorageVersion::new(&"pods".parse().unwrap());
        assert_eq!(collect(&object, &participants(&["c"]), LATER.parse().unwrap()), Collected::Keep);
    }

    #[test]
    fn unknown_is_never_gone() {
        assert_eq!(decide(&[("a", "v1")], &Participants::unreadable()), Collected::Keep);
        assert_eq!(decide(&[], &Participants::unreadable()), Collected::Keep);
        let partly = participants(&[]).with_unread("a".parse().unwrap());
        assert_eq!(decide(&[("a", "v1")], &partly), Collected::Keep);
        let Collected::Update { status, dropped } = decide(&[("a", "v1"), ("b", "v2")], &partly) else {
            panic!("the one that is certainly gone was not collected");
        };
        assert_eq!((dropped.as_slice(), status.storage_versions.len()), (["b".to_owned()].as_slice(), 1));
    }

    #[test]
    fn a_server_that_joins_and_reports_nothing_ends_the_agreement() {
        let id = |id: &str| id.parse().unwrap();
        let reporting = Participants::listed([]).with_server(id("a"), "main").with_server(id("b"), "main");
        assert_eq!(decide(&[("a", "v1"), ("b", "v1")], &reporting), Collected::Keep);
        let joined = reporting.with_server(id("c"), "main");
        let Collected::Update { status, dropped } = decide(&[("a", "v1"), ("b", "v1")], &joined) else {
            panic!("the agreement was left as it was");
        };
        assert_eq!((status.common_encoding_version, dropped.len()), (None, 0));
    }

    #[test]
    fn many_entries_are_dropped_in_several_transactions() {
        let names: Vec<String> = (0..MOST_DROPPED + 1).map(|number| format!("dead-{number}")).collect();
        let entries: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "v1")).collect();
        let Collected::Update { status, dropped } = decide(&entries, &participants(&["a"])) else {
            panic!("everything was dropped at once");
        };
        assert_eq!((dropped.len(), status.storage_versions.len()), (MOST_DROPPED, 1));
    }
}
