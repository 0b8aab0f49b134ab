//! Whether all servers encode the same version, and how that is said: `commonEncodingVersion` and its condition.

use jiff::Timestamp;
use restow_api::Time;
use restow_api::internal_apiserver::{
    ConditionStatus, ServerStorageVersion, StorageVersionCondition, StorageVersionStatus,
};

/// The encoding version of all entries, when there are entries and all have the same.
pub fn common_encoding_version(entries: &[ServerStorageVersion]) -> Option<&str> {
    let first = entries.first()?;
    let all_equal = entries.iter().all(|entry| entry.encoding_version == first.encoding_version);
    all_equal.then_some(first.encoding_version.as_str())
}

/// Makes `commonEncodingVersion` and the condition `AllEncodingVersionsEqual` fit the entries. `generation` is that of the
/// object that holds the status.
///
/// The transition time moves when the condition's status changes, and also when one common version directly replaces
/// another: that too is news to whoever migrates.
pub fn settle(status: &mut StorageVersionStatus, generation: i64, now: Timestamp) {
    let before = status.common_encoding_version.take();
    status.common_encoding_version = common_encoding_version(&status.storage_versions).map(str::to_owned);
    let after = &status.common_encoding_version;
    let replaced = before.is_some() && after.is_some() && before != *after;

    let (condition_status, reason, message) = match after {
        Some(_) => (ConditionStatus::True, "CommonEncodingVersionSet", "Common encoding version set"),
        None => (ConditionStatus::False, "CommonEncodingVersionUnset", "Common encoding version unset"),
    };
    let fresh = StorageVersionCondition {
        condition_type: StorageVersionCondition::ALL_ENCODING_VERSIONS_EQUAL.to_owned(),
        status: condition_status,
        observed_generation: generation,
        last_transition_time: Some(Time::new(now)),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    put_condition(&mut status.conditions, fresh, replaced);
}

/// Replaces the condition of the same type, keeping its transition time unless its status changes or the transition
/// is forced; adds it where there is none.
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
        settle(&mut status, 0, NOW.parse().unwrap());
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
    }

    #[test]
    fn other_conditions_are_left_alone_and_the_generation_is_noted() {
        let other =
            StorageVersionCondition { condition_type: "Other".into(), ..condition(ConditionStatus::False, EARLIER) };
        let mut status = StorageVersionStatus { conditions: vec![other.clone()], ..StorageVersionStatus::default() };
        settle(&mut status, 7, NOW.parse().unwrap());
        assert_eq!(status.conditions[0], other);
        assert_eq!(status.conditions[1].observed_generation, 7);
    }
}
