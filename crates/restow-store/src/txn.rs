//! Transactions: every change to a store consists of comparisons and mutations.

use crate::{Entry, Key, Limits, Revision, StoreError};
use bytes::Bytes;
use std::collections::HashSet;
use std::time::Duration;

/// If all comparisons hold, apply all mutations at one new revision; else change nothing and read some keys instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The comparisons, all of which must hold.
    pub when: Vec<Compare>,
    /// The mutations, applied in this order. A key may occur once.
    pub then: Vec<Mutation>,
    /// The keys to read when a comparison does not hold.
    pub otherwise: Vec<Key>,
}

/// A comparison of one property of a key with a given value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The key.
    pub key: Key,
    /// How the key's property must relate to the target: "key's property `relation` target".
    pub relation: Relation,
    /// The property and what to compare it with.
    pub target: CompareTarget,
}

/// How two values relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// They are equal.
    Equal,
    /// They differ.
    NotEqual,
    /// The key's is greater.
    Greater,
    /// The key's is less.
    Less,
}

/// A property of a key. A key that does not exist has version and revisions of zero, and no value: a comparison of
/// its value never holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareTarget {
    /// [`Entry::value`].
    Value(Bytes),
    /// [`Entry::version`].
    Version(u64),
    /// [`Entry::create_revision`].
    CreateRevision(Revision),
    /// [`Entry::mod_revision`].
    ModRevision(Revision),
}

/// A change to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Writes a value, creating the key where it does not exist.
    Put(Put),
    /// Deletes the key, if it exists.
    Delete(Key),
}

/// A value to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: Bytes,
    /// The time to live of the key. Soon after this time has passed, and never before, the key is deleted by a transaction
    /// of its own. Writing the key again replaces the time to live, or removes it with `None`.
    pub time_to_live: Option<Duration>,
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnOutcome {
    /// All comparisons held and the mutations are applied, durably.
    Committed {
        /// The store's revision after the transaction: the one of its changes, if it changed anything.
        revision: Revision,
    },
    /// A comparison did not hold; nothing was changed.
    Refused {
        /// The store's revision at which the comparisons were made.
        revision: Revision,
        /// The entries of [`Txn::otherwise`], in that order; `None` for a key that does not exist.
        found: Vec<Option<Entry>>,
    },
}

impl Txn {
    /// The most comparisons, mutations or reads in one transaction.
    pub const MAX_OPERATIONS: usize = 128;

    /// An empty transaction.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a comparison.
    pub fn when(mut self, compare: Compare) -> Self {
        self.when.push(compare);
        self
    }

    /// Adds the write of a value without a time to live.
    pub fn put(self, key: &Key, value: impl Into<Bytes>) -> Self {
        self.mutate(Mutation::Put(Put { key: key.clone(), value: value.into(), time_to_live: None }))
    }

    /// Adds the write of a value with a time to live.
    pub fn put_for(self, key: &Key, value: impl Into<Bytes>, time_to_live: Duration) -> Self {
        self.mutate(Mutation::Put(Put { key: key.clone(), value: value.into(), time_to_live: Some(time_to_live) }))
    }

    /// Adds a removal.
    pub fn delete(self, key: &Key) -> Self {
        self.mutate(Mutation::Delete(key.clone()))
    }

    /// Adds a mutation.
    pub fn mutate(mut self, mutation: Mutation) -> Self {
        self.then.push(mutation);
        self
    }

    /// Adds a key to read when a comparison does not hold.
    pub fn otherwise_get(mut self, key: &Key) -> Self {
        self.otherwise.push(key.clone());
        self
    }

    /// Checks the limits of every back end. Each back end calls it first, so that all refuse the same transactions.
    pub fn check(&self, limits: &Limits) -> Result<(), StoreError> {
        for (what, count) in
            [("comparisons", self.when.len()), ("mutations", self.then.len()), ("reads", self.otherwise.len())]
        {
            if count > Self::MAX_OPERATIONS {
                return Err(StoreError::Invalid(format!(
                    "a transaction may have at most {} {what}, this one has {count}",
                    Self::MAX_OPERATIONS
                )));
            }
        }
        let mut seen = HashSet::with_capacity(self.then.len());
        for mutation in &self.then {
            if !seen.insert(mutation.key()) {
                return Err(StoreError::Invalid(format!("the transaction changes the key {} twice", mutation.key())));
            }
            if let Mutation::Put(put) = mutation {
                limits.check_value(&put.key, put.value.len())?;
            }
        }
        Ok(())
    }
}

impl Compare {
    /// The key exists.
    pub fn exists(key: &Key) -> Self {
        Compare { key: key.clone(), relation: Relation::Greater, target: CompareTarget::Version(0) }
    }

    /// The key does not exist.
    pub fn absent(key: &Key) -> Self {
        Self::equal(key, CompareTarget::Version(0))
    }

    /// The key was last written at this revision.
    pub fn mod_revision(key: &Key, revision: Revision) -> Self {
        Self::equal(key, CompareTarget::ModRevision(revision))
    }

    /// The key was last created at this revision.
    pub fn create_revision(key: &Key, revision: Revision) -> Self {
        Self::equal(key, CompareTarget::CreateRevision(revision))
    }

    /// The key exists and has this value.
    pub fn value(key: &Key, value: impl Into<Bytes>) -> Self {
        Self::equal(key, CompareTarget::Value(value.into()))
    }

    /// The key's property equals the target.
    pub fn equal(key: &Key, target: CompareTarget) -> Self {
        Compare { key: key.clone(), relation: Relation::Equal, target }
    }

    /// Whether the comparison holds for what is stored under its key.
    pub fn holds(&self, current: Option<&Entry>) -> bool {
        let ordering = match &self.target {
            CompareTarget::Value(value) => match current {
                Some(entry) => entry.value.cmp(value),
                None => return false,
            },
            CompareTarget::Version(version) => current.map_or(0, |entry| entry.version).cmp(version),
            CompareTarget::CreateRevision(revision) => {
                current.map_or(Revision::ZERO, |entry| entry.create_revision).cmp(revision)
            }
            CompareTarget::ModRevision(revision) => {
                current.map_or(Revision::ZERO, |entry| entry.mod_revision).cmp(revision)
            }
        };
        match self.relation {
            Relation::Equal => ordering.is_eq(),
            Relation::NotEqual => ordering.is_ne(),
            Relation::Greater => ordering.is_gt(),
            Relation::Less => ordering.is_lt(),
        }
    }
}

impl Mutation {
    /// The key that is changed.
    pub fn key(&self) -> &Key {
        match self {
            Mutation::Put(put) => &put.key,
            Mutation::Delete(key) => key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::try_from(text).unwrap()
    }

    #[test]
    fn a_missing_key_has_version_and_revisions_of_zero_and_no_value() {
        let missing = key("missing");
        assert!(Compare::absent(&missing).holds(None));
        assert!(!Compare::exists(&missing).holds(None));
        assert!(Compare::mod_revision(&missing, Revision::ZERO).holds(None));
        assert!(Compare::create_revision(&missing, Revision::ZERO).holds(None));
        let differs =
            Compare { key: missing.clone(), relation: Relation::NotEqual, target: CompareTarget::Value("x".into()) };
        assert!(!differs.holds(None), "a value comparison never holds for a missing key");
    }

    #[test]
    fn a_transaction_changes_a_key_once_and_stays_within_its_limits() {
        let limits = Limits { value_bytes: 10, ..Limits::default() };
        let twice = Txn::new().put(&key("a"), "1").delete(&key("a"));
        assert!(matches!(twice.check(&limits), Err(StoreError::Invalid(_))));
        let large = Txn::new().put(&key("a"), vec![0; 11]);
        assert!(matches!(large.check(&limits), Err(StoreError::TooLarge { size: 11, limit: 10, .. })));
        let many = (0..=Txn::MAX_OPERATIONS).fold(Txn::new(), |txn, n| txn.delete(&key(&format!("k{n}"))));
        assert!(matches!(many.check(&limits), Err(StoreError::Invalid(_))));
        assert!(Txn::new().put(&key("a"), vec![0; 10]).delete(&key("b")).check(&limits).is_ok());
    }
}
