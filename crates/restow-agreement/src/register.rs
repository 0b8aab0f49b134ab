//! What a server reports about a resource before it writes it for the first time.

use crate::agreement::settle;
use crate::collect::Collected;
use crate::{Participants, ServerReport};
use jiff::Timestamp;
use restow_api::ServerId;
use restow_api::internal_apiserver::{StorageVersion, StorageVersionStatus};

/// What to write, and under which preconditions besides the revision of the object that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The status to write.
    pub status: StorageVersionStatus,
    /// The servers whose entries are dropped. The transaction must compare that the identity lease of each still does not
    /// exist. The revision of the StorageVersion alone is not enough: a dropped server that comes back with the same
    /// report changes nothing in the object, and would lose the entry that it now relies on.
    pub dropped: Vec<String>,
}

/// The status after this server has reported. `current` is the object as it was read, or nothing where there is none.
///
/// The server must hold its identity lease before it calls this, and must not write the resource before the status is
/// written. Its own entry takes the place of an older one or goes to the end; entries of servers that are gone are dropped,
/// those of servers that could not be read are kept.
pub fn register(
    current: Option<&StorageVersion>,
    participants: &Participants,
    own: &ServerReport,
    now: Timestamp,
) -> Registration {
    let mut status = current.map(|object| object.status.clone()).unwrap_or_default();
    let generation = current.map_or(0, |object| object.metadata.generation);

    // A second entry with our id would be invalid; only the first is replaced, so any other is dropped silently.
    let own_id = own.id().as_str();
    let mut dropped = Vec::new();
    let mut own_place = None;
    let mut kept = Vec::with_capacity(status.storage_versions.len() + 1);
    for entry in status.storage_versions {
        if entry.api_server_id == own_id {
            own_place.get_or_insert(kept.len());
        } else if participants.is_gone(&entry.api_server_id) {
            dropped.push(entry.api_server_id);
        } else {
            kept.push(entry);
        }
    }
    kept.insert(own_place.unwrap_or(kept.len()), own.entry());
    status.storage_versions = kept;
    settle(&mut status, generation, now);
    Registration { status, dropped }
}

/// Whether the object says what this server reported, and draws the right conclusion from all entries. If not, somebody
/// else has changed or deleted it. What servers that are gone left behind is the collector's matter, and none here.
pub fn is_reported(current: Option<&StorageVersion>, own: &ServerReport, now: Timestamp) -> bool {
    let registered = register(current, &Participants::unreadable(), own, now).status;
    current.is_some_and(|object| object.status == registered)
}

/// The object without the entry of this server, which writes the resource no more. Nobody else is dropped, so that no lease
/// has to be compared but the own one.
pub fn withdraw(object: &StorageVersion, own: &ServerId, now: Timestamp) -> Collected {
    let mut status = object.status.clone();
    status.storage_versions.retain(|entry| entry.api_server_id != own.as_str());
    if status.storage_versions.is_empty() {
        return Collected::Delete { dropped: Vec::new() };
    }
    if status.storage_versions.len() == object.status.storage_versions.len() {
        return Collected::Keep;
    }
    settle(&mut status, object.metadata.generation, now);
    Collected::Update { status, dropped: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restow_api::internal_apiserver::ConditionStatus;

    const FIRST: &str = "2026-01-01T00:00:00Z";
    const LATER: &str = "2026-01-02T00:00:00Z";

    fn report(id: &str, encoding: &str) -> ServerReport {
        let both = ["v1", "v2"].map(|version| version.parse().unwrap());
        ServerReport::new(id.parse().unwrap(), encoding.parse().unwrap(), both, ["v1".parse().unwrap()]).unwrap()
    }

    fn participants(ids: &[&str]) -> Participants {
        Participants::listed(ids.iter().map(|id| id.parse().unwrap()))
    }

    fn object(entries: &[ServerReport]) -> StorageVersion {
        let mut object = StorageVersion::new(&"pods".parse().unwrap());
        object.status.storage_versions = entries.iter().map(ServerReport::entry).collect();
        settle(&mut object.status, 0, FIRST.parse().unwrap());
        object
    }

    fn register_at_later(
        current: Option<&StorageVersion>,
        participants: &Participants,
        own: &ServerReport,
    ) -> Registration {
        register(current, participants, own, LATER.parse().unwrap())
    }

    fn entries(registration: &Registration) -> Vec<(&str, &str)> {
        registration
            .status
            .storage_versions
            .iter()
            .map(|entry| (entry.api_server_id.as_str(), entry.encoding_version.as_str()))
            .collect()
    }

    #[test]
    fn the_first_server_agrees_with_itself() {
        let registration = register_at_later(None, &participants(&["a"]), &report("a", "v1"));
        assert_eq!(entries(&registration), [("a", "v1")]);
        assert_eq!(registration.status.common_encoding_version.as_deref(), Some("v1"));
        assert_eq!(registration.status.conditions[0].status, ConditionStatus::True);
        assert_eq!(registration.status.conditions[0].last_transition_time.unwrap().to_string(), LATER);
    }

    #[test]
    fn a_dissenter_ends_the_agreement() {
        let before = object(&[report("a", "v1"), report("b", "v1")]);
        let registration = register_at_later(Some(&before), &participants(&["a", "b", "c"]), &report("c", "v2"));
        assert_eq!(entries(&registration), [("a", "v1"), ("b", "v1"), ("c", "v2")]);
        assert_eq!(registration.status.common_encoding_version, None);
        assert_eq!(registration.status.conditions[0].reason, "CommonEncodingVersionUnset");
    }

    #[test]
    fn an_own_entry_keeps_its_place() {
        let before = object(&[report("a", "v1"), report("b", "v2")]);
        let registration = register_at_later(Some(&before), &participants(&["a", "b"]), &report("a", "v2"));
        assert_eq!(entries(&registration), [("a", "v2"), ("b", "v2")]);
        assert_eq!(registration.status.common_encoding_version.as_deref(), Some("v2"));
    }

    #[test]
    fn what_the_dead_left_is_dropped_and_named() {
        let before = object(&[report("dead", "v1"), report("a", "v2")]);
        let registration = register_at_later(Some(&before), &participants(&["a", "b"]), &report("b", "v2"));
        assert_eq!(entries(&registration), [("a", "v2"), ("b", "v2")]);
        assert_eq!(registration.dropped, ["dead"]);
        assert_eq!(registration.status.common_encoding_version.as_deref(), Some("v2"));
    }

    #[test]
    fn a_server_that_could_not_be_read_is_not_dead() {
        let before = object(&[report("quiet", "v1")]);
        for participants in [Participants::unreadable(), participants(&["b"]).with_unread("quiet".parse().unwrap())] {
            let registration = register_at_later(Some(&before), &participants, &report("b", "v2"));
            assert_eq!(entries(&registration), [("quiet", "v1"), ("b", "v2")]);
            assert_eq!(registration.dropped, Vec::<String>::new());
        }
    }

    #[test]
    fn registering_again_changes_nothing_not_even_the_time() {
        let before = object(&[report("a", "v1"), report("b", "v1")]);
        let registration = register_at_later(Some(&before), &participants(&["a", "b"]), &report("b", "v1"));
        assert_eq!(registration.status, before.status);
    }

    #[test]
    fn an_object_that_somebody_edited_does_not_say_what_was_reported() {
        let own = report("b", "v1");
        let check = |current: Option<&StorageVersion>, expected: bool| {
            assert_eq!(is_reported(current, &own, LATER.parse().unwrap()), expected, "{current:?}");
        };
        let good = object(&[report("a", "v2"), own.clone()]);
        check(Some(&good), true);
        check(None, false);
        check(Some(&object(&[report("a", "v2")])), false);
        check(Some(&object(&[report("a", "v2"), report("b", "v2")])), false);
        let mut concluded = good.clone();
        concluded.status.common_encoding_version = Some("v2".into());
        check(Some(&concluded), false);
        let mut silent = good;
        silent.status.conditions.clear();
        check(Some(&silent), false);
    }

    #[test]
    fn who_withdraws_leaves_the_rest_to_agree() {
        let now = LATER.parse().unwrap();
        let both = object(&[report("a", "v1"), report("b", "v2")]);
        let Collected::Update { status, dropped } = withdraw(&both, &"a".parse().unwrap(), now) else {
            panic!("nothing was withdrawn");
        };
        assert_eq!((status.common_encoding_version.as_deref(), dropped.len()), (Some("v2"), 0));
        assert_eq!(withdraw(&both, &"c".parse().unwrap(), now), Collected::Keep);
        let alone = object(&[report("a", "v1")]);
        assert_eq!(withdraw(&alone, &"a".parse().unwrap(), now), Collected::Delete { dropped: Vec::new() });
    }
}
