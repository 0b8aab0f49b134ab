//! What is to be said of the stored values of one kind, or of one folder whose values do not tell their kind.

use super::layout::{is_of_servers_alone, is_range};
use super::moves::moved_to;
use super::{CensusRow, Encoding, Target};
use restow_api::storage_version_hash;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A verdict on stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Verdict {
    /// All are known to lie in the version that is written now.
    Current,
    /// Some are known to lie in another version.
    Old,
    /// It cannot be told.
    Unknown,
}

/// What a verdict rests on. Each reason stands for one verdict, so that nothing can be said without one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "reason")]
pub enum Because {
    /// All are in the storage version in force.
    InStorageVersion,
    /// API servers keep them for themselves, in no version but one.
    RecordsOfServers,
    /// They are encrypted, and the API servers left each object as it was when they were asked to write it.
    LeftAsTheyWere,
    /// Some are in an older version.
    OlderVersion {
        /// These versions.
        versions: Vec<String>,
    },
    /// Some are in a version that the CRD does not have: no API server can read them.
    UndefinedVersion {
        /// These versions.
        versions: Vec<String>,
    },
    /// They are in the group, or of the kind, that the resource had in earlier releases.
    Moved {
        /// The resource that reads them today.
        to: String,
    },
    /// They are encrypted, and the API servers rewrote some of them when they were asked to write them.
    RewrittenWhenAsked {
        /// What was found.
        words: String,
    },
    /// It is not known what the API servers write now.
    NotAgreed {
        /// Why.
        words: String,
    },
    /// No API server serves the kind.
    NotServed,
    /// They are encrypted.
    Encrypted {
        /// The resource to ask the API servers about, where that is known.
        resource: Option<String>,
    },
    /// They are encrypted, and the API servers could not say it.
    AskedInVain {
        /// Why.
        words: String,
    },
    /// They are neither objects of Kubernetes nor anything that API servers are known to keep.
    Unreadable,
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
    /// The folders of keys that they lie in.
    pub folders: BTreeSet<String>,
    /// The key of one of those that the verdict is about.
    pub example: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// What it rests on.
    pub because: Because,
}

/// What is to be said of values that do not tell their kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpaqueVerdict {
    /// What was counted.
    #[serde(flatten)]
    pub row: CensusRow,
    /// The name of the resource whose objects lie there; empty when that is not known.
    pub resource: String,
    /// The verdict.
    pub verdict: Verdict,
    /// What it rests on.
    pub because: Because,
}

impl Because {
    /// The verdict that this is a reason for.
    pub fn verdict(&self) -> Verdict {
        match self {
            Because::InStorageVersion | Because::RecordsOfServers | Because::LeftAsTheyWere => Verdict::Current,
            Because::OlderVersion { .. }
            | Because::UndefinedVersion { .. }
            | Because::Moved { .. }
            | Because::RewrittenWhenAsked { .. } => Verdict::Old,
            Because::NotAgreed { .. }
            | Because::NotServed
            | Because::Encrypted { .. }
            | Because::AskedInVain { .. }
            | Because::Unreadable => Verdict::Unknown,
        }
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::InStorageVersion => write!(f, "in the storage version"),
            Because::RecordsOfServers => write!(f, "records that API servers keep for themselves"),
            Because::LeftAsTheyWere => write!(f, "encrypted, and left as they were by the API servers"),
            Because::OlderVersion { versions } => write!(f, "stored in {}", versions.join(", ")),
            Because::UndefinedVersion { versions } => write!(
                f,
                "stored in {}, which the CRD does not have, so that no API server can read them; add the version to the \
                 CRD again, with served: false",
                versions.join(", ")
            ),
            Because::Moved { to } => write!(f, "stored in the form of earlier releases; today they are {to}"),
            Because::RewrittenWhenAsked { words } => write!(f, "encrypted; the API servers were asked: {words}"),
            Because::NotAgreed { words } => write!(f, "{words}"),
            Because::NotServed => write!(
                f,
                "no API server serves this kind, so nobody can say which version is the right one; left over from a CRD \
                 or an API that is gone?"
            ),
            Because::Encrypted { resource: Some(_) } => write!(f, "encrypted, so that their version cannot be seen"),
            Because::Encrypted { resource: None } => {
                write!(f, "encrypted, and it is not known of which resource they are")
            }
            Because::AskedInVain { words } => write!(f, "encrypted; the API servers were asked: {words}"),
            Because::Unreadable => write!(f, "neither objects of Kubernetes nor anything that API servers keep there"),
        }
    }
}

/// Judges every kind. Values that do not tell their kind are judged elsewhere.
pub(super) fn judge_kinds(rows: &[CensusRow], targets: &[Target]) -> Vec<KindVerdict> {
    let mut kinds: BTreeMap<(&str, &str), Vec<(&str, &CensusRow)>> = BTreeMap::new();
    for row in rows {
        if let Encoding::Json { version } | Encoding::Protobuf { version } = &row.encoding {
            kinds.entry((&row.group, &row.kind)).or_default().push((version, row));
        }
    }
    kinds.into_iter().map(|((group, kind), rows)| judge_kind(Stored { group, kind, rows }, targets)).collect()
}

/// The stored values of a kind, by version.
struct Stored<'r> {
    group: &'r str,
    kind: &'r str,
    rows: Vec<(&'r str, &'r CensusRow)>,
}

impl Stored<'_> {
    fn is_written_now(&self, version: &str, target: &Target) -> bool {
        let hash = storage_version_hash(self.group, version, self.kind);
        target.in_force.as_ref().is_ok_and(|in_force| in_force.as_str() == hash)
    }

    fn is_kept_by_servers(&self) -> bool {
        self.rows.iter().all(|(_, row)| is_range(&row.folder, self.group, self.kind, &row.encoding))
    }

    /// The rows in other versions than the one that is written now.
    fn others(&self, target: &Target) -> Vec<&(&str, &CensusRow)> {
        self.rows.iter().filter(|(version, _)| !self.is_written_now(version, target)).collect()
    }
}

fn judge_kind(stored: Stored<'_>, targets: &[Target]) -> KindVerdict {
    let of = |group: &str, kind: &str| targets.iter().find(|target| target.group == group && target.kind == kind);
    let own = of(stored.group, stored.kind);
    let target = own.or_else(|| moved_to(stored.group, stored.kind).and_then(|(group, kind)| of(group, kind)));
    let others = target.map(|target| stored.others(target)).unwrap_or_default();
    let because = match (target, own) {
        (None, _) if stored.is_kept_by_servers() => Because::RecordsOfServers,
        (None, _) => Because::NotServed,
        (Some(Target { in_force: Err(words), .. }), _) => Because::NotAgreed { words: words.clone() },
        (Some(_), _) if others.is_empty() => Because::InStorageVersion,
        (Some(target), None) => Because::Moved { to: target.resource.clone() },
        (Some(target), Some(_)) => old_version(target, &others),
    };
    let mut versions = BTreeMap::new();
    for (version, row) in &stored.rows {
        *versions.entry(version.to_string()).or_insert(0) += row.count;
    }
    let candidates = target.iter().flat_map(|target| &target.candidates).chain(versions.keys());
    let is_storage_version = |version: &&String| {
        let (Some(target), Some((group, kind))) = (target, target.map(|target| (&target.group, &target.kind))) else {
            return false;
        };
        let hash = storage_version_hash(group, version, kind);
        target.in_force.as_ref().is_ok_and(|in_force| in_force.as_str() == hash)
    };
    let example = others.first().map(|(_, row)| *row).or(stored.rows.first().map(|(_, row)| *row));
    KindVerdict {
        group: stored.group.to_string(),
        kind: stored.kind.to_string(),
        resource: target.map(|target| target.resource.clone()).unwrap_or_default(),
        storage_version: candidates.into_iter().find(is_storage_version).cloned(),
        folders: stored.rows.iter().map(|(_, row)| row.folder.clone()).collect(),
        example: example.map(|row| row.example.clone()),
        stored: versions,
        verdict: because.verdict(),
        because,
    }
}

/// Older versions; those come first that no API server can read.
fn old_version(target: &Target, others: &[&(&str, &CensusRow)]) -> Because {
    let all: BTreeSet<&str> = others.iter().map(|(version, _)| *version).collect();
    let is_undefined = |version: &&&str| {
        target.defined.as_ref().is_some_and(|defined| !defined.iter().any(|known| known == **version))
    };
    let undefined: Vec<String> = all.iter().filter(is_undefined).map(ToString::to_string).collect();
    match undefined.is_empty() {
        true => Because::OlderVersion { versions: all.into_iter().map(String::from).collect() },
        false => Because::UndefinedVersion { versions: undefined },
    }
}

/// Whether a value that does not tell its kind is one of those that API servers keep for themselves.
pub(super) fn is_record(row: &CensusRow) -> bool {
    match row.encoding {
        Encoding::Record => true,
        Encoding::Encrypted { .. } => is_of_servers_alone(&row.folder),
        Encoding::Json { .. } | Encoding::Protobuf { .. } | Encoding::Other => false,
    }
}

#[cfg(test)]
mod tests;
