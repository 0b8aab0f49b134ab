//! The report on everything that was read.

use super::layout::{FURTHER_FOLDERS, resource_of_folder};
use super::verdict::{evaluate_kinds, is_record};
use super::{CensusRow, CensusVerdict, Encoding, KindTarget, KindVerdict, OpaqueVerdict, StoreIdentity, VerdictReason};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Everything that the report is based on.
#[derive(Clone, Debug)]
pub struct CensusEvidence {
    /// How many values were read.
    pub total: u64,
    /// The revision that reading began at.
    pub from_revision: u64,
    /// The revision that reading ended at.
    pub to_revision: u64,
    /// What was read.
    pub rows: Vec<CensusRow>,
    /// What the API servers write now.
    pub targets: Vec<KindTarget>,
    /// Whether these are the API servers of this store.
    pub identity: StoreIdentity,
    /// The results of rewriting resources with encrypted values through the API.
    pub answers: BTreeMap<String, ApiAnswer>,
    /// Resources that have objects in the API, or may have, and none in the store.
    pub elsewhere: BTreeMap<String, String>,
    /// The full names of the resources to report on; all if empty.
    pub wanted: Vec<String>,
}

/// The result of asking the API servers to write each object of a resource as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiAnswer {
    /// They left this number of objects unchanged, and there are no others.
    AllCurrent {
        /// How many.
        objects: u64,
    },
    /// They rewrote some.
    SomeOld {
        /// What was found.
        words: String,
    },
    /// Unknown.
    Unknown {
        /// Why.
        words: String,
    },
}

/// Why nothing can be concluded about the whole store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "reason")]
pub enum Doubt {
    /// Nothing was read.
    NothingStored,
    /// What was read belongs to another cluster than the one that was queried.
    OtherCluster {
        /// How that is known.
        because: String,
    },
    /// It is unknown whether what was read belongs to the cluster that was queried.
    ClusterNotCompared {
        /// Why.
        because: String,
    },
    /// It was not read at a single revision.
    SeveralRevisions {
        /// The first one.
        from: u64,
        /// The last one.
        to: u64,
    },
    /// The objects of a resource do not lie here.
    StoredElsewhere {
        /// The resource.
        resource: String,
        /// The reason.
        because: String,
    },
}

/// The report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CensusReport {
    /// The verdict on all that it refers to.
    pub verdict: CensusVerdict,
    /// Why nothing can be concluded about the whole store.
    pub doubts: Vec<Doubt>,
    /// The verdict on each kind.
    pub kinds: Vec<KindVerdict>,
    /// The verdict on values that do not name their kind.
    pub opaque: Vec<OpaqueVerdict>,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::NothingStored => write!(
                f,
                "nothing is stored under this prefix; give the --etcd-prefix that the API servers have (for kube-apiserver \
                 it is /registry, where no flag says otherwise), and the etcd that they use"
            ),
            Doubt::OtherCluster { because } => write!(
                f,
                "the store and the API belong to different clusters: {because}. Give the etcd and the kubeconfig of one \
                 cluster"
            ),
            Doubt::ClusterNotCompared { because } => write!(
                f,
                "it could not be checked whether the store and the API belong to one cluster: {because}. It needs \
                 permission to get and list namespaces, and the prefix and the etcd in which namespaces are stored"
            ),
            Doubt::SeveralRevisions { from, to } => write!(
                f,
                "the store was compacted while it was read, from revision {from} to {to}, so objects may have changed behind \
                 the reader; run it again, or on a restored snapshot's copy of the control plane"
            ),
            Doubt::StoredElsewhere { resource, because } => write!(f, "{resource}: {because}"),
        }
    }
}

/// Evaluates everything. `Current` is the result only if nothing contradicts it.
pub fn evaluate(evidence: &CensusEvidence) -> CensusReport {
    let doubts = doubts(evidence);
    let is_wanted_folder = |folder: &str| {
        evidence.wanted.is_empty()
            || folder == FURTHER_FOLDERS
            || resource_of_folder(folder, &evidence.targets)
                .is_some_and(|found| evidence.wanted.contains(&found.resource))
    };
    let mut kinds = evaluate_kinds(&evidence.rows, &evidence.targets);
    kinds.retain(|kind| {
        evidence.wanted.contains(&kind.resource) || kind.folders.iter().any(|folder| is_wanted_folder(folder))
    });
    let mut opaque = evaluate_opaque(evidence);
    opaque.retain(|values| is_wanted_folder(&values.row.folder));
    let lines = || kinds.iter().map(|kind| kind.verdict).chain(opaque.iter().map(|values| values.verdict));
    let is_of_this_cluster =
        evidence.total > 0 && matches!(evidence.identity, StoreIdentity::Same { .. } | StoreIdentity::OneAndTheSame);
    let verdict = match () {
        () if !is_of_this_cluster => CensusVerdict::Unknown,
        () if lines().any(|verdict| verdict == CensusVerdict::Old) => CensusVerdict::Old,
        () if doubts.is_empty() && lines().all(|verdict| verdict == CensusVerdict::Current) => CensusVerdict::Current,
        () => CensusVerdict::Unknown,
    };
    CensusReport { verdict, doubts, kinds, opaque }
}

fn doubts(evidence: &CensusEvidence) -> Vec<Doubt> {
    let (from, to) = (evidence.from_revision, evidence.to_revision);
    let nothing = (evidence.total == 0).then_some(Doubt::NothingStored);
    let other = match &evidence.identity {
        // If nothing is stored, there was nothing to compare.
        _ if evidence.total == 0 => None,
        StoreIdentity::OneAndTheSame | StoreIdentity::Same { .. } => None,
        StoreIdentity::Different { because } => Some(Doubt::OtherCluster { because: because.clone() }),
        StoreIdentity::NotCompared { because } => Some(Doubt::ClusterNotCompared { because: because.clone() }),
    };
    let several = (from != to).then_some(Doubt::SeveralRevisions { from, to });
    let elsewhere = evidence.elsewhere.iter();
    let elsewhere = elsewhere.filter(|(resource, _)| evidence.wanted.is_empty() || evidence.wanted.contains(resource));
    let elsewhere = elsewhere
        .map(|(resource, because)| Doubt::StoredElsewhere { resource: resource.clone(), because: because.clone() });
    nothing.into_iter().chain(other).chain(several).chain(elsewhere).collect()
}

fn evaluate_opaque(evidence: &CensusEvidence) -> Vec<OpaqueVerdict> {
    let is_opaque = |row: &&CensusRow| !matches!(row.encoding, Encoding::Json { .. } | Encoding::Protobuf { .. });
    let resource = |row: &CensusRow| resource_of_folder(&row.folder, &evidence.targets).map(|target| &target.resource);
    let mut encrypted: BTreeMap<&str, u64> = BTreeMap::new();
    for row in evidence.rows.iter().filter(|row| matches!(row.encoding, Encoding::Encrypted { .. })) {
        if let Some(resource) = resource(row) {
            *encrypted.entry(resource).or_default() += row.count;
        }
    }
    let evaluate = |row: &CensusRow| {
        let resource = resource(row).cloned();
        let because = match (&row.encoding, &resource) {
            _ if is_record(row) => VerdictReason::RecordsOfServers,
            (Encoding::Encrypted { .. }, Some(resource)) => {
                let count = encrypted.get(resource.as_str()).copied().unwrap_or(u64::MAX);
                evaluate_encrypted(resource, count, evidence.answers.get(resource))
            }
            (Encoding::Encrypted { .. }, None) => VerdictReason::Encrypted { resource: None },
            _ => VerdictReason::Unreadable,
        };
        let resource = resource.unwrap_or_default();
        OpaqueVerdict { row: row.clone(), resource, verdict: because.verdict(), because }
    };
    evidence.rows.iter().filter(is_opaque).map(evaluate).collect()
}

/// The API server lists exactly the folder of the encrypted values, so there must be as many objects as values.
fn evaluate_encrypted(resource: &str, count: u64, answer: Option<&ApiAnswer>) -> VerdictReason {
    match answer {
        None => VerdictReason::Encrypted { resource: Some(resource.to_string()) },
        Some(ApiAnswer::AllCurrent { objects }) if *objects >= count => VerdictReason::LeftAsTheyWere,
        Some(ApiAnswer::AllCurrent { objects }) => VerdictReason::AskedInVain {
            words: format!("they showed {objects} objects, and {count} encrypted values are stored; run it again"),
        },
        Some(ApiAnswer::SomeOld { words }) => VerdictReason::RewrittenWhenAsked { words: words.clone() },
        Some(ApiAnswer::Unknown { words }) => VerdictReason::AskedInVain { words: words.clone() },
    }
}

#[cfg(test)]
mod tests {
    use super::super::Census;
    use super::*;

    fn evidence(values: &[(&str, &str)], identity: StoreIdentity) -> CensusEvidence {
        let mut census = Census::default();
        values.iter().for_each(|(key, value)| census.add(key.as_bytes(), value.as_bytes()));
        CensusEvidence {
            total: values.len() as u64,
            from_revision: 7,
            to_revision: 7,
            rows: census.rows(),
            targets: Vec::new(),
            identity,
            answers: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            wanted: Vec::new(),
        }
    }

    #[test]
    fn an_empty_store_is_the_only_doubt_about_it() {
        let not_compared = StoreIdentity::NotCompared { because: "no namespaces".into() };
        let report = evaluate(&evidence(&[], not_compared));
        assert_eq!((report.verdict, report.doubts), (CensusVerdict::Unknown, vec![Doubt::NothingStored]));
    }

    #[test]
    fn encrypted_values_in_an_unknown_folder_are_named_as_such() {
        let report = evaluate(&evidence(&[("/nowhere/a", "k8s:enc:kms:v2:name:x")], StoreIdentity::OneAndTheSame));
        assert_eq!(report.opaque[0].because, VerdictReason::Encrypted { resource: None });
    }

    #[test]
    fn a_doubt_says_what_it_is_about() {
        let because = || "namespaces differ".to_owned();
        for (doubt, words) in [
            (Doubt::NothingStored, "nothing is stored under this prefix"),
            (Doubt::OtherCluster { because: because() }, "different clusters: namespaces differ"),
            (Doubt::ClusterNotCompared { because: because() }, "could not be checked"),
            (Doubt::SeveralRevisions { from: 3, to: 5 }, "from revision 3 to 5"),
            (Doubt::StoredElsewhere { resource: "pods".into(), because: because() }, "pods: namespaces differ"),
        ] {
            assert!(doubt.to_string().contains(words), "{doubt}");
        }
    }
}
