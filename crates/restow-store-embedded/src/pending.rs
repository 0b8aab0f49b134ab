//! Applies a batch of transactions to the index in memory, before anything is written.

use crate::index::{Index, Slot};
use crate::layout::{KeyState, Record};
use crate::snapshot::EngineSnapshot;
use bytes::Bytes;
use restow_store::{CompareTarget, Entry, Key, Mutation, Put, Revision, StoreError, Txn, TxnOutcome};
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The store as it will be when the transactions applied so far are committed.
pub(crate) struct Pending<'a> {
    index: &'a Index,
    snapshot: LazySnapshot<'a>,
    revision: Revision,
    overlay: HashMap<Key, Option<Slot>>,
    changes: Vec<PendingChange>,
}

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingChange {
    pub(crate) revision: Revision,
    /// The position of the change in its transaction.
    pub(crate) position: u32,
    pub(crate) key: Key,
    pub(crate) current: Option<Slot>,
    pub(crate) previous: Option<Slot>,
}

/// A snapshot that is taken when the first value has to be read from the disk.
struct LazySnapshot<'a> {
    open: &'a dyn Fn() -> Result<EngineSnapshot, StoreError>,
    snapshot: std::cell::OnceCell<EngineSnapshot>,
}

impl<'a> Pending<'a> {
    pub(crate) fn new(index: &'a Index, open_snapshot: &'a dyn Fn() -> Result<EngineSnapshot, StoreError>) -> Self {
        let snapshot = LazySnapshot { open: open_snapshot, snapshot: std::cell::OnceCell::new() };
        Pending { index, snapshot, revision: index.revision(), overlay: HashMap::new(), changes: Vec::new() }
    }

    /// Applies a transaction.
    pub(crate) fn apply(&mut self, txn: Txn, now: SystemTime) -> Result<TxnOutcome, StoreError> {
        for compare in &txn.when {
            let by_value = matches!(compare.target, CompareTarget::Value(_));
            let current = match by_value {
                true => self.entry(&compare.key)?,
                false => self.slot(&compare.key).map(|slot| slot.state.entry(compare.key.clone(), Bytes::new())),
            };
            if !compare.holds(current.as_ref()) {
                let found = txn.otherwise.iter().map(|key| self.entry(key)).collect::<Result<_, _>>()?;
                return Ok(TxnOutcome::Refused { revision: self.revision, found });
            }
        }
        let revision = self.revision.next();
        let mut position = 0;
        for mutation in txn.then {
            let (key, current) = match mutation {
                Mutation::Put(put) => self.put(put, revision, now),
                Mutation::Delete(key) if self.slot(&key).is_none() => continue,
                Mutation::Delete(key) => (key, None),
            };
            let previous = self.slot(&key).cloned();
            self.overlay.insert(key.clone(), current.clone());
            self.changes.push(PendingChange { revision, position, key, current, previous });
            position += 1;
        }
        if position > 0 {
            self.revision = revision;
        }
        Ok(TxnOutcome::Committed { revision: self.revision })
    }

    /// The revision after all transactions.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// All changes in order.
    pub(crate) fn into_changes(self) -> Vec<PendingChange> {
        self.changes
    }

    fn put(&mut self, put: Put, revision: Revision, now: SystemTime) -> (Key, Option<Slot>) {
        let before = self.slot(&put.key).map(|slot| slot.state);
        let state = KeyState {
            create_revision: before.map_or(revision, |before| before.create_revision),
            mod_revision: revision,
            version: before.map_or(0, |before| before.version) + 1,
            expires_at: put.time_to_live.map_or(0, |time_to_live| expiry(now, time_to_live)),
        };
        (put.key, Some(Slot { state, value: Some(put.value) }))
    }

    fn slot(&self, key: &Key) -> Option<&Slot> {
        match self.overlay.get(key) {
            Some(slot) => slot.as_ref(),
            None => self.index.get(key),
        }
    }

    fn entry(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let Some(slot) = self.slot(key) else { return Ok(None) };
        let value = match &slot.value {
            Some(value) => value.clone(),
            None => self.snapshot.value(key, slot.state.mod_revision)?,
        };
        Ok(Some(slot.state.entry(key.clone(), value)))
    }
}

impl LazySnapshot<'_> {
    fn value(&self, key: &Key, revision: Revision) -> Result<Bytes, StoreError> {
        let snapshot = match self.snapshot.get() {
            Some(snapshot) => snapshot,
            None => {
                let opened = (self.open)()?;
                self.snapshot.get_or_init(|| opened)
            }
        };
        snapshot.value(key, revision)
    }
}

impl EngineSnapshot {
    /// The value of a key whose last change was at `revision`.
    pub(crate) fn value(&self, key: &Key, revision: Revision) -> Result<Bytes, StoreError> {
        match self.version(key, revision)? {
            Some(Record::Put { value, .. }) => Ok(value),
            _ => Err(StoreError::Corrupted(format!("the value of {key} at revision {revision} is missing"))),
        }
    }
}

/// When a key expires; never, if the time is out of range.
fn expiry(now: SystemTime, time_to_live: Duration) -> u64 {
    now.checked_add(time_to_live).map_or(u64::MAX, rounded_up)
}

/// The milliseconds since 1970. The present is rounded down and a deadline up, so that no key expires early.
pub(crate) fn milliseconds(present: SystemTime) -> u64 {
    let since = present.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The first millisecond at which a deadline has passed.
fn rounded_up(deadline: SystemTime) -> u64 {
    let since = deadline.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The size of all values that a transaction writes.
pub(crate) fn value_bytes(txn: &Txn) -> usize {
    let value = |mutation: &Mutation| match mutation {
        Mutation::Put(put) => put.value.len(),
        Mutation::Delete(_) => 0,
    };
    txn.then.iter().map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_expire_within_the_last_millisecond_of_its_time_to_live() {
        let written = UNIX_EPOCH + Duration::from_micros(1_000_900);
        let due = expiry(written, Duration::from_secs(2));
        assert!(milliseconds(written + Duration::from_micros(1_999_950)) < due);
        assert!(milliseconds(written + Duration::from_millis(2_001)) >= due);
    }

    #[test]
    fn a_time_to_live_beyond_the_range_of_the_clock_never_ends() {
        let now = SystemTime::now();
        assert_eq!(expiry(now, Duration::MAX), u64::MAX);
        assert_eq!(expiry(now, Duration::from_secs(5)), rounded_up(now) + 5000);
        assert_eq!(rounded_up(UNIX_EPOCH + Duration::from_nanos(1)), 1, "a deadline is rounded up");
        assert_eq!(milliseconds(UNIX_EPOCH + Duration::from_nanos(1)), 0, "and the present down");
    }
}
