//! What a server reports about a resource before it writes it for the first time.

use crate::agreement::{Consensus, apply_consensus, consensus, set_common_encoding_version};
use crate::collect::{Collected, MOST_DROPPED};
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
    /// exist. The revision of the StorageVersion is not enough: a dropped server that comes back with the same report does
    /// not change the object, and would lose the entry that it relies on.
    pub dropped: Vec<String>,
}

/// The status after this server has reported. `current` is the object as it was read, or `None` where there is none.
///
/// The server must hold its identity lease before it calls this, and must not write the resource before the status is
/// written. Its own entry replaces an older one or is appended. Entries of servers that are gone are dropped (not more than
/// one transaction can compare), those of servers that could not be read are kept.
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
        } else if dropped.len() < MOST_DROPPED && participants.is_gone(&entry.api_server_id) {
            dropped.push(entry.api_server_id);
        } else {
            kept.push(entry);
        }
    }
    kept.insert(own_place.unwrap_or(kept.len()), own.entry());
    status.storage_versions = kept;
    set_common_encoding_version(&mut status, generation, participants, now);
    Registration { status, dropped }
}

/// Whether the object has the entry of this server, and no agreement that contradicts the entries. If not, someone else has
/// changed or deleted it. Leftovers of servers that are gone, and servers that have not reported, are left to the
/// collector.
pub fn is_reported(current: Option<&StorageVersion>, own: &ServerReport, now: Timestamp) -> bool {
    let Some(object) = current else { return false };
    let entries = &object.status.storage_versions;
    let mut of_own = entries.iter().filter(|entry| entry.api_server_id == own.id().as_str());
    if of_own.next() != Some(&own.entry()) || of_own.next().is_some() {
        return false;
    }
    let mut concluded = object.status.clone();
    let with_everybody = consensus(entries, &Participants::listed([]));
    apply_consensus(&mut concluded, object.metadata.generation, with_everybody, now);
    let mut withheld = object.status.clone();
    apply_consensus(&mut withheld, object.metadata.generation, Consensus::Disagreed, now);
    for condition in &mut withheld.conditions {
        // The message about a missing agreement may differ.
        let same = object.status.conditions.iter().find(|other| other.condition_type == condition.condition_type);
        condition.message = same.map_or_else(String::new, |same| same.message.clone());
    }
    object.status == concluded || object.status == withheld
}

/// The object without the entry of this server, which does not write the resource any more, or does not report. No other
/// entry is dropped, so only the own lease has to be compared.
pub fn withdraw(object: &StorageVersion, participants: &Participants, own: &ServerId, now: Timestamp) -> Collected {
    let mut status = object.status.clone();
    status.storage_versions.retain(|entry| entry.api_server_id != own.as_str());
    if status.storage_versions.is_empty() {
        return Collected::Delete { dropped: Vec::new() };
    }
    set_common_encoding_version(&mut status, object.metadata.generation, participants, now);
    match status == object.status {
        true => Collected::Keep,
        false => Collected::Update { status, dropped: Vec::new() },
    }
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
        set_common_encoding_version(&mut object.status, 0, &Participants::listed([]), FIRST.parse().unwrap());
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
    fn entries_of_dead_servers_are_dropped_and_named() {
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
    fn an_edited_object_does_not_count_as_a_report() {
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
    fn not_more_is_dropped_than_a_transaction_can_compare() {
        let mut entries: Vec<ServerReport> = (0..300).map(|number| report(&format!("dead-{number}"), "v1")).collect();
        entries.push(report("a", "v1"));
        let registration = register_at_later(Some(&object(&entries)), &participants(&["a"]), &report("a", "v1"));
        assert_eq!(registration.dropped.len(), MOST_DROPPED);
        assert_eq!(registration.status.storage_versions.len(), 301 - MOST_DROPPED);
    }

    #[test]
    fn nobody_agrees_before_everybody_has_reported() {
        let id = |id: &str| id.parse::<ServerId>().unwrap();
        let both = Participants::listed([]).with_server(id("a"), "main").with_server(id("b"), "main");
        let first = register_at_later(None, &both, &report("a", "v1"));
        assert_eq!(first.status.common_encoding_version, None);
        let mut alone = object(&[]);
        alone.status = first.status;
        assert!(is_reported(Some(&alone), &report("a", "v1"), LATER.parse().unwrap()), "it waits for the other one");
        let second = register_at_later(Some(&alone), &both, &report("b", "v1"));
        assert_eq!(second.status.common_encoding_version.as_deref(), Some("v1"));
    }

    #[test]
    fn a_participating_server_that_withdraws_ends_the_agreement() {
        let now = LATER.parse().unwrap();
        let id = |id: &str| id.parse::<ServerId>().unwrap();
        let two = Participants::listed([]).with_server(id("b"), "main").with_server(id("c"), "main");
        let all = two.clone().with_server(id("a"), "main");
        let three = object(&[report("a", "v1"), report("b", "v2"), report("c", "v2")]);
        let common = |participants: &Participants| match withdraw(&three, participants, &id("a"), now) {
            Collected::Update { status, dropped } => (status.common_encoding_version, dropped.len()),
            other => panic!("nothing was withdrawn: {other:?}"),
        };
        assert_eq!(common(&two), (Some("v2".into()), 0));
        assert_eq!(common(&all), (None, 0));
        let both = object(&[report("b", "v2"), report("c", "v2")]);
        assert_eq!(withdraw(&both, &two, &id("a"), now), Collected::Keep);
        assert!(matches!(withdraw(&both, &all, &id("a"), now), Collected::Update { .. }), "the agreement ends");
        let alone = object(&[report("a", "v1")]);
        assert_eq!(withdraw(&alone, &all, &id("a"), now), Collected::Delete { dropped: Vec::new() });
    }
}
