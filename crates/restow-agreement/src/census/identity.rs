//! Whether a store is that of the cluster that was asked what is old in it.

use serde::Serialize;

/// Whether the store that was read belongs to the cluster that was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum Identity {
    /// What was read and what was asked is one: a server read its own store, or the store itself says what is written.
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

/// What the store says of the namespace kube-system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredUid {
    /// It has this uid.
    Is(String),
    /// It lies there encrypted.
    Encrypted,
    /// It lies there and has no uid that could be read.
    Unreadable,
    /// It does not lie there.
    Absent,
}

/// The store's revision before and after the API was asked for the latest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevisionsSeen {
    /// The store's revision before.
    pub before: u64,
    /// What the API says; nothing where its resource versions are no numbers.
    pub told: Option<u64>,
    /// The store's revision after.
    pub after: u64,
}

impl Identity {
    /// Compares the namespace kube-system, and the revisions: a copy of a cluster has the uids of its original, but not
    /// its revisions, as soon as either is written to.
    pub fn compare(stored: StoredUid, told: Result<String, String>, revisions: RevisionsSeen) -> Self {
        let not_compared = |because: String| Identity::NotCompared { because };
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
            return Identity::Different {
                because: format!("the namespace kube-system has the uid {stored} in the store, and {told} in the API"),
            };
        }
        match revisions.told {
            Some(revision) if !(revisions.before..=revisions.after).contains(&revision) => Identity::Different {
                because: format!(
                    "the API is at revision {revision}, the store at {} to {}; is one a copy of the other?",
                    revisions.before, revisions.after
                ),
            },
            _ => Identity::Same { uid: told },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(stored: StoredUid, told: Result<&str, &str>, revision: Option<u64>) -> Identity {
        let revisions = RevisionsSeen { before: 10, told: revision, after: 12 };
        Identity::compare(stored, told.map(String::from).map_err(String::from), revisions)
    }

    #[test]
    fn only_the_same_uid_at_the_same_revision_is_the_same_cluster() {
        let is = |uid: &str| StoredUid::Is(uid.into());
        let same = Identity::Same { uid: "a".into() };
        for revision in [Some(10), Some(11), Some(12), None] {
            assert_eq!(compare(is("a"), Ok("a"), revision), same, "{revision:?}");
        }
        for revision in [Some(9), Some(13)] {
            assert!(matches!(compare(is("a"), Ok("a"), revision), Identity::Different { .. }), "{revision:?}");
        }
        assert!(matches!(compare(is("a"), Ok("b"), Some(11)), Identity::Different { .. }));
        for stored in [StoredUid::Encrypted, StoredUid::Unreadable, StoredUid::Absent] {
            assert!(matches!(compare(stored.clone(), Ok("a"), Some(11)), Identity::NotCompared { .. }), "{stored:?}");
        }
        assert!(matches!(compare(is("a"), Err("forbidden"), Some(11)), Identity::NotCompared { .. }));
    }
}
