//! What becomes of one StorageVersion when servers have gone away.

use crate::Participants;
use crate::agreement::settle;
use jiff::Timestamp;
use restow_api::internal_apiserver::{StorageVersion, StorageVersionStatus};

/// What to do with one StorageVersion. Update and Delete hold only under the revision that was read, and while the
/// identity leases of all dropped servers do not exist (see [`crate::Registration::dropped`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collected {
    /// Every entry is of a server that takes part, or may do so.
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

/// Drops the entries of servers that are gone. Where the list of participants could not be read, nothing is dropped and
/// nothing deleted.
pub fn collect(object: &StorageVersion, participants: &Participants, now: Timestamp) -> Collected {
    let (gone, kept): (Vec<_>, Vec<_>) =
        object.status.storage_versions.iter().cloned().partition(|entry| participants.is_gone(&entry.api_server_id));
    let dropped: Vec<String> = gone.into_iter().map(|entry| entry.api_server_id).collect();
    if kept.is_empty() && participants.all().is_some() {
        return Collected::Delete { dropped };
    }
    if dropped.is_empty() {
        return Collected::Keep;
    }
    let mut status = StorageVersionStatus { storage_versions: kept, ..object.status.clone() };
    settle(&mut status, object.metadata.generation, now);
    Collected::Update { status, dropped }
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
        settle(&mut object.status, 0, FIRST.parse().unwrap());
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
}
