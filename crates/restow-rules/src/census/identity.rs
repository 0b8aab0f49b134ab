//! Whether a store belongs to the cluster whose API was queried.

use serde::Serialize;

/// Whether the store that was read belongs to the cluster that was queried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum StoreIdentity {
    /// By construction: a server read its own store, or the store itself says what is written.
    OneAndTheSame,
    /// Both have the same namespace kube-system.
    Same {
        /// Its uid.
        uid: String,
    },
    /// They are different clusters.
    Different {
        /// How that is known.
        because: String,
    },
    /// It could not be compared.
    NotCompared {
        /// Why.
        because: String,
    },
}

/// The namespace kube-system in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredUid {
    /// It has this uid.
    Is(String),
    /// It is stored encrypted.
    Encrypted,
    /// It is stored and has no readable uid.
    Unreadable,
    /// It is not stored.
    Absent,
}

/// The store's revision before and after the latest one was read from the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionsSeen {
    /// The store's revision before.
    pub before: u64,
    /// The resource version from the API, or why there is none.
    pub told: Result<String, String>,
    /// The store's revision after.
    pub after: u64,
}

impl StoreIdentity {
    /// Compares the namespace kube-system and the revisions. A copy of a cluster has the uids of the original, but other
    /// revisions as soon as either is written to.
    pub fn compare(stored: StoredUid, told: Result<String, String>, revisions: RevisionsSeen) -> Self {
        let not_compared = |because: String| StoreIdentity::NotCompared { because };
        let told = match told {
            Ok(uid) => uid,
            Err(words) => return not_compared(format!("the API does not show the namespace kube-system: {words}")),
        };
        let stored = match stored {
            StoredUid::Is(uid) => uid,
            StoredUid::Encrypted => return not_compared("the namespace kube-system is stored encrypted".into()),
            StoredUid::Unreadable => {
                return not_compared("the namespace kube-system is stored in a form that cannot be read".into());
            }
            StoredUid::Absent => {
                return not_compared("the namespace kube-system is not stored under this prefix".into());
            }
        };
        if stored != told {
            return StoreIdentity::Different {
                because: format!("the namespace kube-system has the uid {stored} in the store, and {told} in the API"),
            };
        }
        let revision = match revisions.told {
            Ok(revision) => revision,
            Err(words) => return not_compared(format!("the API does not say at which revision it is: {words}")),
        };
        if revision.is_empty() {
            return not_compared("the API does not say at which revision it is".into());
        }
        // A resource version that is not a number cannot be compared with a revision.
        match revision.parse::<u64>() {
            Ok(revision) if !(revisions.before..=revisions.after).contains(&revision) => StoreIdentity::Different {
                because: format!(
                    "the API is at revision {revision}, the store at {} to {}; is one a copy of the other?",
                    revisions.before, revisions.after
                ),
            },
            _ => StoreIdentity::Same { uid: told },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(stored: StoredUid, told: Result<&str, &str>, revision: Result<&str, &str>) -> StoreIdentity {
        let revision = revision.map(String::from).map_err(String::from);
        let revisions = RevisionsSeen { before: 10, told: revision, after: 12 };
        StoreIdentity::compare(stored, told.map(String::from).map_err(String::from), revisions)
    }

    #[test]
    fn only_the_same_uid_at_the_same_revision_is_the_same_cluster() {
        let is = |uid: &str| StoredUid::Is(uid.into());
        let same = StoreIdentity::Same { uid: "a".into() };
        for revision in ["10", "11", "12", "opaque"] {
            assert_eq!(compare(is("a"), Ok("a"), Ok(revision)), same, "{revision}");
        }
        for revision in ["9", "13"] {
            assert!(matches!(compare(is("a"), Ok("a"), Ok(revision)), StoreIdentity::Different { .. }), "{revision}");
        }
        // A copy of a cluster differs in nothing but the revision, so that nothing is known without it.
        for revision in [Err("403 Forbidden"), Err("429"), Err("no answer"), Ok("")] {
            assert!(matches!(compare(is("a"), Ok("a"), revision), StoreIdentity::NotCompared { .. }), "{revision:?}");
        }
        assert!(matches!(compare(is("a"), Ok("b"), Ok("11")), StoreIdentity::Different { .. }));
        for stored in [StoredUid::Encrypted, StoredUid::Unreadable, StoredUid::Absent] {
            assert!(
                matches!(compare(stored.clone(), Ok("a"), Ok("11")), StoreIdentity::NotCompared { .. }),
                "{stored:?}"
            );
        }
        assert!(matches!(compare(is("a"), Err("forbidden"), Ok("11")), StoreIdentity::NotCompared { .. }));
    }
}
