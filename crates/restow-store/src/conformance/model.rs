//! The semantics of a store as plain code: obvious rather than fast, without I/O, clock or randomness.
//!
//! Time to live is not modelled: the caller deletes a key when it expires.

use crate::{
    At, Change, Content, Entry, Event, Key, KeyRange, Limits, Mutation, RangeRequest, RangeResponse, Revision,
    StoreError, Txn, TxnOutcome,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

#[cfg(test)]
mod tests;

/// A whole store with its history.
#[derive(Clone, Debug)]
pub struct Model {
    limits: Limits,
    revision: Revision,
    /// The oldest revision that can be read; zero while nothing was compacted.
    compact_revision: Revision,
    /// For each key what it was, oldest first; `None` where it was deleted.
    versions: BTreeMap<Bytes, Vec<(Revision, Option<Entry>)>>,
    log: Vec<Event>,
}

impl Model {
    /// An empty store at some revision.
    pub fn new(revision: Revision, limits: Limits) -> Self {
        Self::with_entries(revision, limits, &[])
    }

    /// A store that holds these entries at `revision`, and whose history before it is not known.
    pub fn with_entries(revision: Revision, limits: Limits, entries: &[Entry]) -> Self {
        let versions = entries
            .iter()
            .map(|entry| (entry.key.as_bytes().clone(), vec![(entry.mod_revision, Some(entry.clone()))]))
            .collect();
        Model { limits, revision, compact_revision: Revision::ZERO, versions, log: Vec::new() }
    }

    /// The latest revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The oldest revision that can be read; zero while nothing was compacted.
    pub fn compact_revision(&self) -> Revision {
        self.compact_revision
    }

    /// The limits that transactions are held to.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What is stored under a key now.
    pub fn entry(&self, key: &Key) -> Option<&Entry> {
        self.entry_at(key, self.revision)
    }

    /// What was stored under a key at a revision, which must not be compacted.
    pub fn entry_at(&self, key: &Key, at: Revision) -> Option<&Entry> {
        self.versions.get(key.as_bytes()).and_then(|versions| version_at(versions, at))
    }

    /// Reads a range. The count is always known.
    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse, StoreError> {
        let at = match request.at {
            At::Latest => self.revision,
            At::Revision(revision) => self.readable(revision)?,
        };
        let found: Vec<Entry> = self.entries_at(&request.range, at).cloned().collect();
        let count = Some(found.len() as u64);
        let limit = request.limit.map_or(usize::MAX, |limit| limit.get());
        let more = request.content != Content::CountOnly && found.len() > limit;
        let entries = match request.content {
            Content::Full => found.into_iter().take(limit).collect(),
            Content::KeysOnly => {
                found.into_iter().take(limit).map(|entry| Entry { value: Bytes::new(), ..entry }).collect()
            }
            Content::CountOnly => Vec::new(),
        };
        Ok(RangeResponse { revision: self.revision, entries, more, count })
    }

    /// Applies a transaction.
    pub fn txn(&mut self, txn: &Txn) -> Result<TxnOutcome, StoreError> {
        txn.check(&self.limits)?;
        let Some(events) = self.changes(txn, self.revision) else {
            let found = txn.otherwise.iter().map(|key| self.entry(key).cloned()).collect();
            return Ok(TxnOutcome::Refused { revision: self.revision, found });
        };
        self.check_room(txn)?;
        if !events.is_empty() {
            self.revision = self.revision.next();
            for event in events {
                self.record(event);
            }
        }
        Ok(TxnOutcome::Committed { revision: self.revision })
    }

    /// The events that a transaction would make if it came directly after revision `at`, with the entries before;
    /// `None` if one of its comparisons would not hold.
    pub fn changes(&self, txn: &Txn, at: Revision) -> Option<Vec<Event>> {
        let holds = txn.when.iter().all(|compare| compare.holds(self.entry_at(&compare.key, at)));
        holds.then(|| txn.then.iter().filter_map(|mutation| self.change(mutation, at)).collect())
    }

    /// The changes in a range from a revision on: what a watch delivers. The entry before a change is missing where
    /// it is not requested, or compacted.
    pub fn events(&self, range: &KeyRange, from: Revision, previous: bool) -> Result<Vec<Event>, StoreError> {
        if from < self.compact_revision {
            return Err(StoreError::Compacted { oldest: self.compact_revision });
        }
        let start = self.log.partition_point(|event| event.revision < from);
        let wanted = self.log[start..].iter().filter(|event| range.contains(event.key()));
        Ok(wanted
            .map(|event| {
                let known = previous && event.revision > self.compact_revision;
                Event { previous: event.previous.clone().filter(|_| known), ..event.clone() }
            })
            .collect())
    }

    /// Compacts the history before `revision`.
    pub fn compact(&mut self, revision: Revision) -> Result<(), StoreError> {
        if revision <= self.compact_revision {
            return Err(StoreError::Compacted { oldest: self.compact_revision });
        }
        if revision > self.revision {
            return Err(StoreError::FutureRevision { requested: revision, current: self.revision });
        }
        self.compact_revision = revision;
        self.log.retain(|event| event.revision >= revision);
        self.versions.retain(|_, versions| {
            let kept = versions.partition_point(|(written, _)| *written <= revision).saturating_sub(1);
            versions.drain(..kept);
            if versions.first().is_some_and(|(written, entry)| *written <= revision && entry.is_none()) {
                versions.remove(0);
            }
            !versions.is_empty()
        });
        Ok(())
    }

    /// The bytes of all keys and values that are kept, old ones too.
    pub fn bytes(&self) -> u64 {
        let entries = self.versions.values().flatten().filter_map(|(_, entry)| entry.as_ref());
        entries.map(|entry| (entry.key.as_bytes().len() + entry.value.len()) as u64).sum()
    }

    fn entries_at(&self, range: &KeyRange, at: Revision) -> impl Iterator<Item = &Entry> {
        let end = if range.is_empty() { Some(range.start()) } else { range.end() };
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) =
            (Bound::Included(range.start()), end.map_or(Bound::Unbounded, |end| Bound::Excluded(end)));
        self.versions.range::<[u8], _>(bounds).filter_map(move |(_, versions)| version_at(versions, at))
    }

    fn readable(&self, revision: Revision) -> Result<Revision, StoreError> {
        if revision > self.revision {
            return Err(StoreError::FutureRevision { requested: revision, current: self.revision });
        }
        if revision < self.compact_revision {
            return Err(StoreError::Compacted { oldest: self.compact_revision });
        }
        Ok(revision)
    }

    fn change(&self, mutation: &Mutation, at: Revision) -> Option<Event> {
        let revision = at.next();
        let previous = self.entry_at(mutation.key(), at).cloned();
        let change = match mutation {
            Mutation::Put(put) => Change::Put(Entry {
                key: put.key.clone(),
                value: put.value.clone(),
                create_revision: previous.as_ref().map_or(revision, |entry| entry.create_revision),
                mod_revision: revision,
                version: previous.as_ref().map_or(0, |entry| entry.version) + 1,
            }),
            Mutation::Delete(key) => Change::Delete(previous.as_ref().map(|_| key.clone())?),
        };
        Some(Event { revision, change, previous })
    }

    fn record(&mut self, event: Event) {
        let entry = match &event.change {
            Change::Put(entry) => Some(entry.clone()),
            Change::Delete(_) => None,
        };
        self.versions.entry(event.key().as_bytes().clone()).or_default().push((event.revision, entry));
        self.log.push(event);
    }

    fn check_room(&self, txn: &Txn) -> Result<(), StoreError> {
        let Some(quota) = self.limits.store_bytes else { return Ok(()) };
        let added: usize = txn.then.iter().map(bytes_added).sum();
        if added > 0 && self.bytes() + added as u64 > quota {
            return Err(StoreError::Full(format!("its quota is {quota} bytes")));
        }
        Ok(())
    }
}

fn version_at(versions: &[(Revision, Option<Entry>)], at: Revision) -> Option<&Entry> {
    let newer = versions.partition_point(|(written, _)| *written <= at);
    versions[..newer].last().and_then(|(_, entry)| entry.as_ref())
}

fn bytes_added(mutation: &Mutation) -> usize {
    match mutation {
        Mutation::Put(put) => put.key.as_bytes().len() + put.value.len(),
        Mutation::Delete(_) => 0,
    }
}
