//! The verdict on the stored values of one kind, or of one folder whose values do not name their kind.

use super::layout::{is_of_servers_alone, is_range};
use super::moves::moved_to;
use super::{CensusRow, Encoding, KindTarget};
use restow_api::storage_version_hash;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A verdict on stored values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum CensusVerdict {
    /// All are known to be stored in the version that is written now.
    Current,
    /// Some are known to lie in another version.
    Old,
    /// Unknown.
    Unknown,
}

/// The reason of a verdict. Each reason implies one verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "reason")]
pub enum VerdictReason {
    /// All are in the storage version in force.
    InStorageVersion,
    /// Records of API servers, which have one version only.
    RecordsOfServers,
    /// Encrypted, and the API servers left each object unchanged when it was rewritten.
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
    /// They have the group or kind of earlier releases.
    Moved {
        /// The resource that reads them today.
        to: String,
    },
    /// Encrypted, and the API servers changed some of them when they were rewritten.
    RewrittenWhenAsked {
        /// What was found.
        words: String,
    },
    /// It is unknown what the API servers write now.
    NotAgreed {
        /// Why.
        words: String,
    },
    /// No API server serves the kind.
    NotServed,
    /// Encrypted.
    Encrypted {
        /// The resource to rewrite through the API, if known.
        resource: Option<String>,
    },
    /// Encrypted, and rewriting through the API had no result.
    AskedInVain {
        /// Why.
        words: String,
    },
    /// Neither Kubernetes objects nor known records of API servers.
    Unreadable,
}

/// The verdict on one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KindVerdict {
    /// The group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name of the resource; empty if no server serves it.
    pub resource: String,
    /// The version that it is written in now.
    pub storage_version: Option<String>,
    /// How many objects lie in each version.
    pub stored: BTreeMap<String, u64>,
    /// The folders of keys that they lie in.
    pub folders: BTreeSet<String>,
    /// The key of one of the values that determine the verdict.
    pub example: Option<String>,
    /// The verdict.
    pub verdict: CensusVerdict,
    /// The reason.
    pub because: VerdictReason,
}

/// The verdict on values that do not name their kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpaqueVerdict {
    /// What was counted.
    #[serde(flatten)]
    pub row: CensusRow,
    /// The name of the resource whose objects are stored there; empty if unknown.
    pub resource: String,
    /// The verdict.
    pub verdict: CensusVerdict,
    /// The reason.
    pub because: VerdictReason,
}

impl VerdictReason {
    /// The verdict that this is a reason for.
    pub fn verdict(&self) -> CensusVerdict {
        match self {
            VerdictReason::InStorageVersion | VerdictReason::RecordsOfServers | VerdictReason::LeftAsTheyWere => {
                CensusVerdict::Current
            }
            VerdictReason::OlderVersion { .. }
            | VerdictReason::UndefinedVersion { .. }
            | VerdictReason::Moved { .. }
            | VerdictReason::RewrittenWhenAsked { .. } => CensusVerdict::Old,
            VerdictReason::NotAgreed { .. }
            | VerdictReason::NotServed
            | VerdictReason::Encrypted { .. }
            | VerdictReason::AskedInVain { .. }
            | VerdictReason::Unreadable => CensusVerdict::Unknown,
        }
    }
}

impl fmt::Display for VerdictReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VerdictReason::InStorageVersion => write!(f, "in the storage version"),
            VerdictReason::RecordsOfServers => write!(f, "records that API servers keep for themselves"),
            VerdictReason::LeftAsTheyWere => write!(f, "encrypted, and left as they were by the API servers"),
            VerdictReason::OlderVersion { versions } => write!(f, "stored in {}", versions.join(", ")),
            VerdictReason::UndefinedVersion { versions } => write!(
                f,
                "stored in {}, which the CRD does not have, so that no API server can read them; add the version to the \
                 CRD again, with served: false",
                versions.join(", ")
            ),
            VerdictReason::Moved { to } => write!(f, "stored in the form of earlier releases; today they are {to}"),
            VerdictReason::RewrittenWhenAsked { words } => {
                write!(f, "encrypted; the API servers were queried: {words}")
            }
            VerdictReason::NotAgreed { words } => write!(f, "{words}"),
            VerdictReason::NotServed => write!(
                f,
                "no API server serves this kind, so nobody can say which version is the right one; left over from a CRD \
                 or an API that is gone?"
            ),
            VerdictReason::Encrypted { resource: Some(_) } => {
                write!(f, "encrypted, so that their version cannot be seen")
            }
            VerdictReason::Encrypted { resource: None } => {
                write!(f, "encrypted, and it is not known of which resource they are")
            }
            VerdictReason::AskedInVain { words } => write!(f, "encrypted; the API servers were queried: {words}"),
            VerdictReason::Unreadable => {
                write!(f, "neither objects of Kubernetes nor anything that API servers keep there")
            }
        }
    }
}

/// Evaluates every kind. Values that do not name their kind are evaluated elsewhere.
pub(super) fn evaluate_kinds(rows: &[CensusRow], targets: &[KindTarget]) -> Vec<KindVerdict> {
    let mut kinds: BTreeMap<(&str, &str), Vec<(&str, &CensusRow)>> = BTreeMap::new();
    for row in rows {
        if let Encoding::Json { version } | Encoding::Protobuf { version } = &row.encoding {
            kinds.entry((&row.group, &row.kind)).or_default().push((version, row));
        }
    }
    kinds.into_iter().map(|((group, kind), rows)| evaluate_kind(Stored { group, kind, rows }, targets)).collect()
}

/// The stored values of a kind, by version.
struct Stored<'r> {
    group: &'r str,
    kind: &'r str,
    rows: Vec<(&'r str, &'r CensusRow)>,
}

impl Stored<'_> {
    fn is_written_now(&self, version: &str, target: &KindTarget) -> bool {
        let hash = storage_version_hash(self.group, version, self.kind);
        target.in_force.as_ref().is_ok_and(|in_force| in_force.as_str() == hash)
    }

    fn is_kept_by_servers(&self) -> bool {
        self.rows.iter().all(|(_, row)| is_range(&row.folder, self.group, self.kind, &row.encoding))
    }

    /// The rows in other versions than the one that is written now.
    fn others(&self, target: &KindTarget) -> Vec<&(&str, &CensusRow)> {
        self.rows.iter().filter(|(version, _)| !self.is_written_now(version, target)).collect()
    }
}

fn evaluate_kind(stored: Stored<'_>, targets: &[KindTarget]) -> KindVerdict {
    let of = |group: &str, kind: &str| targets.iter().find(|target| target.group == group && target.kind == kind);
    let own = of(stored.group, stored.kind);
    let target = own.or_else(|| moved_to(stored.group, stored.kind).and_then(|(group, kind)| of(group, kind)));
    let others = target.map(|target| stored.others(target)).unwrap_or_default();
    let because = match (target, own) {
        (None, _) if stored.is_kept_by_servers() => VerdictReason::RecordsOfServers,
        (None, _) => VerdictReason::NotServed,
        (Some(KindTarget { in_force: Err(words), .. }), _) => VerdictReason::NotAgreed { words: words.clone() },
        (Some(_), _) if others.is_empty() => VerdictReason::InStorageVersion,
        (Some(target), None) => VerdictReason::Moved { to: target.resource.clone() },
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

/// Older versions; those that no API server can read take precedence.
fn old_version(target: &KindTarget, others: &[&(&str, &CensusRow)]) -> VerdictReason {
    let all: BTreeSet<&str> = others.iter().map(|(version, _)| *version).collect();
    let is_undefined = |version: &&&str| {
        target.defined.as_ref().is_some_and(|defined| !defined.iter().any(|known| known == **version))
    };
    let undefined: Vec<String> = all.iter().filter(is_undefined).map(ToString::to_string).collect();
    match undefined.is_empty() {
        true => VerdictReason::OlderVersion { versions: all.into_iter().map(String::from).collect() },
        false => VerdictReason::UndefinedVersion { versions: undefined },
    }
}

/// Whether a value that does not name its kind is a record of API servers.
pub(super) fn is_record(row: &CensusRow) -> bool {
    match row.encoding {
        Encoding::Record => true,
        Encoding::Encrypted { .. } => is_of_servers_alone(&row.folder),
        Encoding::Json { .. } | Encoding::Protobuf { .. } | Encoding::Other => false,
    }
}

#[cfg(test)]
mod tests;
