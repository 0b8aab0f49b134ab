//! Is anything stored in an old version?

use super::{CensusRow, Encoding};
use restow_api::{StorageVersionHash, storage_version_hash};
use serde::Serialize;
use std::collections::BTreeMap;

/// What the API servers write a kind as now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The group that it is served in; empty for the core group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name of the resource.
    pub resource: String,
    /// The hash of the storage version; `None` when it is not known, or the servers do not agree.
    pub hash: Option<StorageVersionHash>,
    /// The versions that the hash may stand for.
    pub candidates: Vec<String>,
}

/// What is to be said of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KindVerdict {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name of the resource; empty when nobody serves it.
    pub resource: String,
    /// The version that it is written in now.
    pub storage_version: Option<String>,
    /// How many objects lie in each version.
    pub stored: BTreeMap<String, u64>,
    /// The key of an object in another version than that.
    pub example_of_old: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
}

/// A verdict on the stored objects of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Verdict {
    /// All lie in the version that is written now.
    Current,
    /// Some lie in another version.
    Old,
    /// The version that is written now is not known or not agreed on.
    Unknown,
    /// Nobody serves the kind: what an API server keeps for itself, or left over.
    NotServed,
}

/// Compares what is stored with what is written now. Values that do not tell their version are no kind's; they are in
/// the census.
pub fn judge(rows: &[CensusRow], targets: &[Target]) -> Vec<KindVerdict> {
    let mut kinds: BTreeMap<(&str, &str), Vec<(&str, &CensusRow)>> = BTreeMap::new();
    for row in rows {
        if let Encoding::Json { version } | Encoding::Protobuf { version } = &row.encoding {
            kinds.entry((&row.group, &row.kind)).or_default().push((version, row));
        }
    }
    kinds.into_iter().map(|((group, kind), stored)| judge_kind(group, kind, &stored, targets)).collect()
}

fn judge_kind(group: &str, kind: &str, rows: &[(&str, &CensusRow)], targets: &[Target]) -> KindVerdict {
    let target = targets.iter().find(|target| target.group == group && target.kind == kind);
    let hash = target.and_then(|target| target.hash.as_ref());
    let is_target =
        |version: &str| hash.is_some_and(|hash| hash.as_str() == storage_version_hash(group, version, kind));
    let mut stored = BTreeMap::new();
    for (version, row) in rows {
        *stored.entry(version.to_string()).or_insert(0) += row.count;
    }
    let old = rows.iter().find(|(version, _)| hash.is_some() && !is_target(version));
    let verdict = match (target, hash, old) {
        (None, _, _) => Verdict::NotServed,
        (Some(_), None, _) => Verdict::Unknown,
        (Some(_), Some(_), Some(_)) => Verdict::Old,
        (Some(_), Some(_), None) => Verdict::Current,
    };
    let candidates = target.iter().flat_map(|target| &target.candidates).chain(stored.keys());
    KindVerdict {
        group: group.to_string(),
        kind: kind.to_string(),
        resource: target.map(|target| target.resource.clone()).unwrap_or_default(),
        storage_version: candidates.into_iter().find(|version| is_target(version)).cloned(),
        example_of_old: old.map(|(_, row)| row.example.clone()),
        stored,
        verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Census;
    use super::*;

    fn check(stored: &[(&str, &str)], storage_version: Option<&str>, expected: Verdict) {
        let mut census = Census::default();
        for (api_version, kind) in stored {
            census.add(b"/k", format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}"}}"#).as_bytes());
        }
        let target = Target {
            group: "example.com".into(),
            kind: "Widget".into(),
            resource: "widgets".into(),
            hash: storage_version
                .map(|version| StorageVersionHash::new(storage_version_hash("example.com", version, "Widget"))),
            candidates: vec!["v1".into(), "v2".into()],
        };
        let verdicts = judge(&census.rows(), &[target]);
        assert_eq!(verdicts.first().map(|kind| kind.verdict), Some(expected), "{stored:?} {storage_version:?}");
        if expected != Verdict::NotServed {
            assert_eq!(verdicts[0].storage_version.as_deref(), storage_version);
        }
    }

    #[test]
    fn only_what_lies_in_the_version_written_now_is_current() {
        check(&[("example.com/v1", "Widget")], Some("v1"), Verdict::Current);
        check(&[("example.com/v1", "Widget"), ("example.com/v2", "Widget")], Some("v2"), Verdict::Old);
        check(&[("example.com/v1", "Widget")], Some("v2"), Verdict::Old);
        check(&[("example.com/v1", "Widget")], None, Verdict::Unknown);
        check(&[("example.com/v1", "Gadget")], Some("v1"), Verdict::NotServed);
        check(&[("other.com/v1", "Widget")], Some("v1"), Verdict::NotServed);
    }
}
