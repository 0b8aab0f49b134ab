//! Which server stores a resource in which version while the servers disagree, and since when.

use jiff::{SignedDuration, Timestamp};
use restow_api::internal_apiserver::{ConditionStatus, StorageVersion, StorageVersionCondition};
use std::collections::BTreeMap;
use std::fmt;

/// Servers that store one resource in different versions. Its `Display` lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// Since when, according to the condition; `None` if there is none.
    pub since: Option<Timestamp>,
    /// The servers by the version that they store.
    pub servers: BTreeMap<String, Vec<String>>,
}

/// How the servers disagree, if they do. This uses the entries, not the condition. One server, or none, does not disagree.
pub fn disagreement(object: &StorageVersion) -> Option<Disagreement> {
    let mut servers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in &object.status.storage_versions {
        servers.entry(entry.encoding_version.clone()).or_default().push(entry.api_server_id.clone());
    }
    if servers.len() < 2 {
        return None;
    }
    let is_it = |condition: &&StorageVersionCondition| {
        condition.condition_type == StorageVersionCondition::ALL_ENCODING_VERSIONS_EQUAL
            && condition.status == ConditionStatus::False
    };
    let since = object.status.conditions.iter().find(is_it).and_then(|condition| condition.last_transition_time);
    Some(Disagreement { since: since.map(|time| time.timestamp()), servers })
}

impl Disagreement {
    /// How long it has lasted at `now`; not negative, although two clocks may differ.
    pub fn lasted(&self, now: Timestamp) -> SignedDuration {
        self.since.map_or(SignedDuration::ZERO, |since| now.duration_since(since).max(SignedDuration::ZERO))
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.servers.iter().map(|(version, servers)| format!("{version} by {}", servers.join(", ")));
        f.write_str(&parts.collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Participants, set_common_encoding_version};
    use restow_api::internal_apiserver::ServerStorageVersion;

    fn object(entries: &[(&str, &str)], settled: &str) -> StorageVersion {
        let mut object = StorageVersion::new(&"pods".parse().unwrap());
        let entry = |(id, version): &(&str, &str)| ServerStorageVersion {
            api_server_id: id.to_string(),
            encoding_version: version.to_string(),
            decodable_versions: vec!["v1".into(), "v2".into()],
            served_versions: Vec::new(),
        };
        object.status.storage_versions = entries.iter().map(entry).collect();
        set_common_encoding_version(&mut object.status, 0, &Participants::listed([]), settled.parse().unwrap());
        object
    }

    #[test]
    fn a_disagreement_names_servers_versions_and_duration() {
        let begun = "2026-01-01T00:00:00Z";
        assert_eq!(disagreement(&object(&[], begun)), None);
        assert_eq!(disagreement(&object(&[("a", "v1"), ("b", "v1")], begun)), None);
        let found = disagreement(&object(&[("a", "v2"), ("b", "v1"), ("c", "v2")], begun)).unwrap();
        assert_eq!(found.to_string(), "v1 by b; v2 by a, c");
        assert_eq!(found.lasted("2026-01-01T00:00:07Z".parse().unwrap()), SignedDuration::from_secs(7));
        assert_eq!(found.lasted("2025-12-31T00:00:00Z".parse().unwrap()), SignedDuration::ZERO);
    }

    #[test]
    fn only_entries_count_in_a_disagreement() {
        let mut edited = object(&[("a", "v1"), ("b", "v2")], "2026-01-01T00:00:00Z");
        edited.status.common_encoding_version = Some("v1".into());
        edited.status.conditions.clear();
        assert_eq!(disagreement(&edited).unwrap().since, None);
    }

    #[test]
    fn a_disagreement_lasts_since_its_own_condition() {
        let mut object = object(&[("a", "v1"), ("b", "v2")], "2026-01-01T00:00:00Z");
        let mut other = object.status.conditions[0].clone();
        other.condition_type = "Other".into();
        other.last_transition_time = None;
        object.status.conditions.insert(0, other);
        assert_eq!(disagreement(&object).unwrap().since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
    }
}
