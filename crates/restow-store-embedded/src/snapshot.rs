//! Snapshot reads: versions of keys, and changes, in the engine at one moment.

use crate::engine::{Engine, explain};
use crate::layout::{
    KeyState, Record, data_bound, data_key, data_prefix, revision_key, split_data_key, split_revision_key,
};
use bytes::Bytes;
use fjall::{Readable, Snapshot};
use restow_store::{Key, KeyRange, Revision, StoreError};
use std::io::ErrorKind;
use std::ops::Bound;
use std::sync::Arc;

/// A snapshot of the engine.
pub(crate) struct EngineSnapshot {
    snapshot: Snapshot,
    engine: Arc<Engine>,
}

/// An entry of `revisions`.
pub(crate) struct ChangedKey {
    pub(crate) revision: Revision,
    pub(crate) revision_key: Vec<u8>,
    pub(crate) key: Key,
}

impl EngineSnapshot {
    /// Takes a snapshot: later writes and compactions do not change it.
    pub(crate) fn of(engine: Arc<Engine>) -> Self {
        EngineSnapshot { snapshot: engine.snapshot(), engine }
    }

    /// The version of a key that was written at exactly this revision; `None` if it was compacted.
    pub(crate) fn version(&self, key: &Key, revision: Revision) -> Result<Option<Record>, StoreError> {
        let bytes = self.snapshot.get(&self.engine.data, data_key(key.as_ref(), revision));
        let bytes = bytes.map_err(|error| failed(error, Some(key)))?;
        bytes.map(|bytes| decode(&bytes, key, revision)).transpose()
    }

    /// The newest version of a key at or before `revision`, with its revision.
    pub(crate) fn version_at(&self, key: &Key, revision: Revision) -> Result<Option<(Revision, Record)>, StoreError> {
        let start = data_key(key.as_ref(), revision);
        let prefix = data_prefix(key.as_ref());
        let bounds = (Bound::Included(start.as_slice()), Bound::Unbounded);
        let Some(guard) = self.snapshot.range::<&[u8], _>(&self.engine.data, bounds).next() else { return Ok(None) };
        let (found, bytes) = guard.into_inner().map_err(|error| failed(error, Some(key)))?;
        if !found.starts_with(&prefix) || found.len() != start.len() {
            return Ok(None);
        }
        let (_, revision) = split_data_key(&found).ok_or_else(|| unreadable(key))?;
        Ok(Some((revision, decode(&bytes, key, revision)?)))
    }

    /// Calls `visit` for the version of each key in the range at `revision`, in order, until it returns false. Deleted keys
    /// are skipped.
    pub(crate) fn scan(
        &self,
        range: &KeyRange,
        revision: Revision,
        mut visit: impl FnMut(Key, KeyState, Bytes) -> bool,
    ) -> Result<(), StoreError> {
        let start = Bound::Included(data_bound(range.start()));
        let end = range.end().map_or(Bound::Unbounded, |end| Bound::Excluded(data_bound(end)));
        let mut last: Vec<u8> = Vec::new();
        for guard in self.snapshot.range(&self.engine.data, (start, end)) {
            let (found, bytes) = guard.into_inner().map_err(|error| failed(error, last_key(&last).as_ref()))?;
            let Some((key, version)) = split_data_key(&found) else {
                return Err(StoreError::Corrupted("a key in the data is unreadable".into()));
            };
            if version > revision || last == key {
                continue;
            }
            last.clear();
            last.extend_from_slice(key);
            let key = Key::new(Bytes::copy_from_slice(key)).map_err(|e| StoreError::Corrupted(e.to_string()))?;
            match decode(&bytes, &key, version)? {
                Record::Put { state, value } => {
                    if !visit(key, state, value) {
                        return Ok(());
                    }
                }
                Record::Deleted => {}
            }
        }
        Ok(())
    }

    /// The changes from `first` to `last`, at most `limit`, plus the rest of the last revision.
    pub(crate) fn changes(&self, first: Revision, last: Revision, limit: usize) -> Result<Vec<ChangedKey>, StoreError> {
        let start = revision_key(first, 0);
        let end = revision_key(last.next(), 0);
        let mut changes: Vec<ChangedKey> = Vec::new();
        for guard in self.snapshot.range(&self.engine.revisions, start..end) {
            let (found, key) = guard.into_inner().map_err(|error| failed(error, None))?;
            let revision = split_revision_key(&found);
            let (revision, _) = revision.ok_or_else(|| StoreError::Corrupted("a revision is unreadable".into()))?;
            if changes.len() >= limit && changes.last().is_some_and(|change| change.revision != revision) {
                break;
            }
            let key = Key::new(Bytes::copy_from_slice(&key)).map_err(|e| StoreError::Corrupted(e.to_string()))?;
            changes.push(ChangedKey { revision, revision_key: found.to_vec(), key });
        }
        Ok(changes)
    }

    /// The keys in `data` of the versions of `key` that are older than `revision`.
    pub(crate) fn older_versions(&self, key: &Key, revision: Revision) -> Result<Vec<Vec<u8>>, StoreError> {
        let start = data_key(key.as_ref(), revision);
        let mut end = data_prefix(key.as_ref());
        end.extend_from_slice(&[0xff; 8]);
        let bounds = (Bound::Excluded(start.as_slice()), Bound::Included(end.as_slice()));
        let found = self.snapshot.range::<&[u8], _>(&self.engine.data, bounds);
        let found = found.map(|guard| guard.key().map(|key| key.to_vec()));
        found.map(|found| found.map_err(|error| failed(error, Some(key)))).collect()
    }
}

/// The last key before a failed read, for the error message.
fn last_key(last: &[u8]) -> Option<Key> {
    Key::new(Bytes::copy_from_slice(last)).ok()
}

fn decode(bytes: &[u8], key: &Key, revision: Revision) -> Result<Record, StoreError> {
    Record::decode(bytes, key.as_ref(), revision).ok_or_else(|| unreadable(key))
}

fn unreadable(key: &Key) -> StoreError {
    StoreError::Corrupted(format!("a version of {key} is unreadable"))
}

/// The error for a read that failed at or after a key. If the disk failed, a retry may succeed; if the data is corrupt, it
/// will not.
fn failed(error: fjall::Error, at: Option<&Key>) -> StoreError {
    let location = at.map(|key| format!(" at or after {key}")).unwrap_or_default();
    match &error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source))
            if source.kind() != ErrorKind::UnexpectedEof =>
        {
            StoreError::Unavailable(format!("reading{location} failed: {source}"))
        }
        _ => StoreError::Corrupted(format!("the data{location} is corrupt: {}", explain(&error))),
    }
}
