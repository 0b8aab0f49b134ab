//! Whether all servers encode the same version, and the status that says so: `commonEncodingVersion` and its condition.

use crate::Participants;
use jiff::Timestamp;
use restow_api::internal_apiserver::{
    ConditionStatus, ServerStorageVersion, StorageVersionCondition, StorageVersionStatus,
};
use restow_api::{ServerId, Time};

/// The result of comparing the entries of one StorageVersion with the participants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Consensus {
    /// Every server of the control plane has an entry, and all entries have this encoding version.
    Agreed(String),
    /// There is no entry, or there are several encoding versions.
    Disagreed,
    /// All entries have the same encoding version, but these participants have no entry. What they store is unknown.
    Missing(Vec<ServerId>),
    /// All entries have the same encoding version, but the participants are not all known.
    Unknown,
}

/// Whether all participating API servers store a resource in the same version. **A participant without an entry means no
/// agreement**: it may report nothing (its feature gate is off), or may not have reported yet.
pub fn consensus(entries: &[ServerStorageVersion], participants: &Participants) -> Consensus {
    let Some(first) = entries.first() else { return Consensus::Disagreed };
    if entries.iter().any(|entry| entry.encoding_version != first.encoding_version) {
        return Consensus::Disagreed;
    }
    match participants.without_entry(entries) {
        None => Consensus::Unknown,
        Some(missing) if !missing.is_empty() => Consensus::Missing(missing),
        Some(_) => Consensus::Agreed(first.encoding_version.clone()),
    }
}

/// Sets `commonEncodingVersion` and the condition `AllEncodingVersionsEqual` according to the entries and the participants.
/// `generation` is that of the object with this status.
///
/// The transition time changes with the condition's status, and also when one common version directly replaces another,
/// because that requires a migration too.
///
/// The transaction that writes the status must compare that no server has joined since the participants were read.
pub fn set_common_encoding_version(
    status: &mut StorageVersionStatus,
    generation: i64,
    participants: &Participants,
    now: Timestamp,
) {
    apply_consensus(status, generation, consensus(&status.storage_versions, participants), now);
}

/// Writes the agreement, or why there is none, to the status.
pub(crate) fn apply_consensus(
    status: &mut StorageVersionStatus,
    generation: i64,
    consensus: Consensus,
    now: Timestamp,
) {
    let unset = "Common encoding version unset";
    let (after, message) = match consensus {
        Consensus::Agreed(version) => (Some(version), "Common encoding version set".to_owned()),
        Consensus::Disagreed => (None, unset.to_owned()),
        Consensus::Missing(servers) => {
            let servers: Vec<&str> = servers.iter().map(ServerId::as_str).collect();
            (None, format!("{unset}: {} did not report", servers.join(", ")))
        }
        Consensus::Unknown => (None, format!("{unset}: not all identity leases could be read")),
    };
    let before = std::mem::replace(&mut status.common_encoding_version, after);
    let after = &status.common_encoding_version;
    let replaced = before.is_some() && after.is_some() && before != *after;

    let (condition_status, reason) = match after {
        Some(_) => (ConditionStatus::True, "CommonEncodingVersionSet"),
        None => (ConditionStatus::False, "CommonEncodingVersionUnset"),
    };
    let fresh = StorageVersionCondition {
        condition_type: StorageVersionCondition::ALL_ENCODING_VERSIONS_EQUAL.to_owned(),
        status: condition_status,
        observed_generation: generation,
        last_transition_time: Some(Time::new(now)),
        reason: reason.to_owned(),
        message,
    };
    put_condition(&mut status.conditions, fresh, replaced);
}

/// Replaces the condition of the same type, and keeps its transition time unless its status changes or the transition is
/// forced. Adds it if there is none.
fn put_condition(
    conditions: &mut Vec<StorageVersionCondition>,
    fresh: StorageVersionCondition,
    force_transition: bool,
) {
    let Some(existing) = conditions.iter_mut().find(|condition| condition.condition_type == fresh.condition_type)
    else {
        conditions.push(fresh);
        return;
    };
    let transition = force_transition || existing.status != fresh.status;
    let kept_time = existing.last_transition_time;
    *existing = fresh;
    if !transition {
        existing.last_transition_time = kept_time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: &str = "2026-01-01T00:00:00Z";
    const NOW: &str = "2026-01-02T00:00:00Z";

    fn entry(id: &str, encoding: &str) -> ServerStorageVersion {
        ServerStorageVersion {
            api_server_id: id.into(),
            encoding_version: encoding.into(),
            decodable_versions: vec!["v1".into(), "v2".into()],
            served_versions: Vec::new(),
        }
    }

    fn condition(status: ConditionStatus, at: &str) -> StorageVersionCondition {
        let (reason, message) = match status {
            ConditionStatus::True => ("CommonEncodingVersionSet", "Common encoding version set"),
            _ => ("CommonEncodingVersionUnset", "Common encoding version unset"),
        };
        StorageVersionCondition {
            condition_type: "AllEncodingVersionsEqual".into(),
            status,
            observed_generation: 0,
            last_transition_time: Some(Time::new(at.parse().unwrap())),
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Settles entries with these encodings after `before` held, and checks what holds then.
    fn check(
        encodings: &[&str],
        before: (Option<&str>, Option<StorageVersionCondition>),
        after: (Option<&str>, StorageVersionCondition),
    ) {
        let storage_versions: Vec<_> =
            encodings.iter().enumerate().map(|(index, encoding)| entry(&index.to_string(), encoding)).collect();
        let mut status = StorageVersionStatus {
            storage_versions: storage_versions.clone(),
            common_encoding_version: before.0.map(str::to_owned),
            conditions: before.1.into_iter().collect(),
        };
        set_common_encoding_version(&mut status, 0, &Participants::listed([]), NOW.parse().unwrap());
        let expected = StorageVersionStatus {
            storage_versions,
            common_encoding_version: after.0.map(str::to_owned),
            conditions: vec![after.1],
        };
        assert_eq!(status, expected);
    }

    #[test]
    fn the_condition_follows_the_entries_and_its_time_the_transitions() {
        use ConditionStatus::{False, True};
        check(&["v1", "v2"], (None, None), (None, condition(False, NOW)));
        check(&["v1", "v2"], (Some("v1"), Some(condition(True, EARLIER))), (None, condition(False, NOW)));
        check(&["v1", "v2"], (None, Some(condition(False, EARLIER))), (None, condition(False, EARLIER)));
        check(&["v1", "v1"], (None, None), (Some("v1"), condition(True, NOW)));
        check(&["v1", "v1"], (Some("v1"), Some(condition(True, EARLIER))), (Some("v1"), condition(True, EARLIER)));
        check(&["v1", "v1"], (None, Some(condition(False, EARLIER))), (Some("v1"), condition(True, NOW)));
        check(&["v2", "v2"], (Some("v1"), Some(condition(True, EARLIER))), (Some("v2"), condition(True, NOW)));
        check(&[], (Some("v1"), Some(condition(True, EARLIER))), (None, condition(False, NOW)));
        // Someone has removed the version, and the condition was true all the time.
        check(&["v1", "v1"], (None, Some(condition(True, EARLIER))), (Some("v1"), condition(True, EARLIER)));
    }

    #[test]
    fn other_conditions_are_left_alone_and_the_generation_is_noted() {
        let other =
            StorageVersionCondition { condition_type: "Other".into(), ..condition(ConditionStatus::False, EARLIER) };
        let mut status = StorageVersionStatus { conditions: vec![other.clone()], ..StorageVersionStatus::default() };
        set_common_encoding_version(&mut status, 7, &Participants::listed([]), NOW.parse().unwrap());
        assert_eq!(status.conditions[0], other);
        assert_eq!(status.conditions[1].observed_generation, 7);
    }

    #[test]
    fn a_participant_without_an_entry_agrees_with_nobody() {
        let entries = [entry("a", "v1"), entry("b", "v1")];
        let id = |id: &str| id.parse::<ServerId>().unwrap();
        let two = Participants::listed([]).with_server(id("a"), "main").with_server(id("b"), "main");
        let check = |participants: Participants, expected: Consensus| {
            assert_eq!(consensus(&entries, &participants), expected, "{participants:?}");
        };
        check(two.clone(), Consensus::Agreed("v1".into()));
        check(two.clone().with_server(id("garden"), "garden"), Consensus::Agreed("v1".into()));
        check(two.clone().with_server(id("c"), "main"), Consensus::Missing(vec![id("c")]));
        check(two.with_unread(id("c")), Consensus::Unknown);
        check(Participants::unreadable(), Consensus::Unknown);
        assert_eq!(consensus(&[], &Participants::listed([])), Consensus::Disagreed);
        let different = [entry("a", "v1"), entry("b", "v2")];
        assert_eq!(consensus(&different, &Participants::unreadable()), Consensus::Disagreed);
    }

    #[test]
    fn entries_of_servers_that_are_gone_make_no_agreement() {
        let id = |id: &str| id.parse::<ServerId>().unwrap();
        // A server that reports nothing has withdrawn its entry, and the others have left.
        let silent = Participants::listed([]).with_server(id("b"), "main");
        assert_eq!(consensus(&[entry("a", "v1")], &silent), Consensus::Missing(vec![id("b")]));
        let both = silent.with_server(id("a"), "main");
        assert_eq!(consensus(&[entry("a", "v1")], &both), Consensus::Missing(vec![id("b")]));
        let left = Participants::listed([]).with_server(id("a"), "main");
        assert_eq!(consensus(&[entry("a", "v1"), entry("b", "v1")], &left), Consensus::Agreed("v1".into()));
    }

    #[test]
    fn the_condition_names_whoever_did_not_report() {
        let id = |id: &str| id.parse::<ServerId>().unwrap();
        let two = Participants::listed([]).with_server(id("a"), "main").with_server(id("b"), "main");
        let mut status = StorageVersionStatus { storage_versions: vec![entry("a", "v1")], ..Default::default() };
        set_common_encoding_version(&mut status, 0, &two, NOW.parse().unwrap());
        assert_eq!(status.common_encoding_version, None);
        assert_eq!(status.conditions[0].message, "Common encoding version unset: b did not report");
    }
}
