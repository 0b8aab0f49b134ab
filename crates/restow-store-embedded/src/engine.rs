//! The one place that talks to fjall: opening, batches, and reads of versions.

use crate::directory::{Directory, OpenError};
use crate::layout::{
    KeyState, META_COMPACTED, META_REVISION, Record, data_bound, data_key, data_prefix, read_number, revision_key,
    split_data_key, split_revision_key,
};
use bytes::Bytes;
use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};
use restow_store::{Key, KeyRange, Revision, StoreError};
use std::ops::Bound;

/// The engine's files, open.
#[derive(Clone)]
pub(crate) struct Engine {
    database: Database,
    data: Keyspace,
    revisions: Keyspace,
    keys: Keyspace,
    meta: Keyspace,
}

/// Changes that become visible and durable together, or not at all.
pub(crate) struct Batch<'a> {
    engine: &'a Engine,
    batch: fjall::OwnedWriteBatch,
}

/// How sure a batch must be when `commit` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Synced to the disk.
    Synced,
    /// Handed to the system; it can be done again after a crash.
    Repeatable,
}

/// What the engine held when it was opened.
pub(crate) struct Opened {
    pub(crate) engine: Engine,
    pub(crate) revision: Revision,
    pub(crate) compacted: Revision,
    pub(crate) keys: Vec<(Key, KeyState)>,
}

/// The revision of a new store. Nothing has been written at it, as in etcd.
const FIRST_REVISION: Revision = Revision::new(1);

impl Engine {
    pub(crate) fn open(directory: &Directory) -> Result<Opened, OpenError> {
        let engine = Self::open_files(directory)
            .map_err(|error| OpenError::Engine { directory: directory.path().into(), reason: explain(&error) })?;
        let opened = engine.load();
        opened.map_err(|reason| OpenError::Damaged { directory: directory.path().into(), reason })
    }

    fn open_files(directory: &Directory) -> fjall::Result<Engine> {
        let database = Database::builder(directory.engine())
            .cache_size(16 << 20)
            .max_journaling_size(64 << 20)
            .journal_compression(CompressionType::None)
            .worker_threads(2)
            .open()?;
        let large = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(8 << 20)
                .data_block_size_policy(BlockSizePolicy::all(16 << 10))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
        };
        let small = || KeyspaceCreateOptions::default().max_memtable_size(2 << 20);
        Ok(Engine {
            data: database.keyspace("data", large)?,
            revisions: database.keyspace("revisions", small)?,
            keys: database.keyspace("keys", small)?,
            meta: database.keyspace("meta", small)?,
            database,
        })
    }

    /// Reads what has to be in memory, and checks that the parts agree with each other.
    fn load(self) -> Result<Opened, String> {
        let revision = self.number(META_REVISION)?.map_or(FIRST_REVISION, Revision::new);
        let compacted = self.number(META_COMPACTED)?.map_or(Revision::ZERO, Revision::new);
        let last = self.revisions.last_key_value().map(|guard| guard.key()).transpose().map_err(|e| explain(&e))?;
        let last = last.map(|key| split_revision_key(&key).ok_or("a revision is unreadable")).transpose()?;
        if last.is_some_and(|last| last != revision) {
            return Err(format!("it says it is at revision {revision}, but its last change is another one"));
        }
        let mut keys = Vec::new();
        for guard in self.keys.iter() {
            let (key, state) = guard.into_inner().map_err(|error| explain(&error))?;
            let key = Key::new(Bytes::copy_from_slice(&key)).map_err(|error| error.to_string())?;
            let state = KeyState::decode(&state).ok_or_else(|| format!("what is known of {key} is unreadable"))?;
            keys.push((key, state));
        }
        Ok(Opened { engine: self, revision, compacted, keys })
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let bytes = self.meta.get(name).map_err(|error| explain(&error))?;
        bytes.map(|bytes| read_number(&bytes).ok_or_else(|| format!("the number {name:?} is unreadable"))).transpose()
    }

    /// A new, empty batch.
    pub(crate) fn batch(&self, durability: Durability) -> Batch<'_> {
        let mode = match durability {
            Durability::Synced => PersistMode::SyncData,
            Durability::Repeatable => PersistMode::Buffer,
        };
        Batch { engine: self, batch: self.database.batch().durability(Some(mode)) }
    }

    /// A view that later writes and compactions do not change.
    pub(crate) fn snapshot(&self) -> View {
        View { snapshot: self.database.snapshot(), engine: self.clone() }
    }

    /// The bytes that the engine's files take.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or_default()
    }

    /// The bytes that the stored versions take, on the disk and on their way there. The journal, which has a fixed size
    /// of its own, does not count.
    pub(crate) fn data_bytes(&self) -> u64 {
        let keyspaces = [&self.data, &self.revisions, &self.keys, &self.meta];
        let settled: u64 = keyspaces.into_iter().map(Keyspace::disk_space).sum();
        settled + self.database.write_buffer_size()
    }

    /// Writes out what is only in the journal, so that the next start has nothing to replay.
    pub(crate) fn settle(&self) {
        for keyspace in [&self.data, &self.revisions, &self.keys, &self.meta] {
            if let Err(error) = keyspace.rotate_memtable_and_wait() {
                tracing::warn!(reason = explain(&error), "could not settle the store; the next start takes longer");
            }
        }
    }
}

impl Batch<'_> {
    pub(crate) fn put_version(&mut self, key: &Key, revision: Revision, place: u32, record: &Record) {
        self.batch.insert(&self.engine.data, data_key(key.as_ref(), revision), record.encode());
        self.batch.insert(&self.engine.revisions, revision_key(revision, place), key.as_ref());
    }

    /// Says what a key is after this batch. Once for each key: the engine does not order writes within a batch.
    pub(crate) fn set_key(&mut self, key: &Key, state: Option<&KeyState>) {
        match state {
            Some(state) => self.batch.insert(&self.engine.keys, key.as_ref(), state.encode()),
            None => self.batch.remove(&self.engine.keys, key.as_ref()),
        }
    }

    pub(crate) fn set_number(&mut self, name: &str, number: Revision) {
        self.batch.insert(&self.engine.meta, name, number.get().to_be_bytes());
    }

    pub(crate) fn remove_version(&mut self, data_key: &[u8]) {
        self.batch.remove(&self.engine.data, data_key);
    }

    pub(crate) fn remove_revision(&mut self, revision_key: &[u8]) {
        self.batch.remove(&self.engine.revisions, revision_key);
    }

    pub(crate) fn len(&self) -> usize {
        self.batch.len()
    }

    pub(crate) fn commit(self) -> fjall::Result<()> {
        self.batch.commit()
    }
}

/// A view of the engine at one moment.
pub(crate) struct View {
    snapshot: Snapshot,
    engine: Engine,
}

/// A change as `revisions` tells it.
pub(crate) struct ChangedKey {
    pub(crate) revision: Revision,
    pub(crate) revision_key: Vec<u8>,
    pub(crate) key: Key,
}

impl View {
    /// What a key became at exactly this revision; `None` when that was compacted away.
    pub(crate) fn version(&self, key: &Key, revision: Revision) -> Result<Option<Record>, StoreError> {
        let bytes = self.snapshot.get(&self.engine.data, data_key(key.as_ref(), revision)).map_err(failed)?;
        bytes.map(|bytes| Record::decode(&bytes).ok_or_else(|| unreadable(key))).transpose()
    }

    /// The newest version of a key at or before `revision`, with its revision.
    pub(crate) fn version_at(&self, key: &Key, revision: Revision) -> Result<Option<(Revision, Record)>, StoreError> {
        let start = data_key(key.as_ref(), revision);
        let prefix = data_prefix(key.as_ref());
        let bounds = (Bound::Included(start.as_slice()), Bound::Unbounded);
        let Some(guard) = self.snapshot.range::<&[u8], _>(&self.engine.data, bounds).next() else { return Ok(None) };
        let (found, bytes) = guard.into_inner().map_err(failed)?;
        if !found.starts_with(&prefix) || found.len() != start.len() {
            return Ok(None);
        }
        let (_, revision) = split_data_key(&found).ok_or_else(|| unreadable(key))?;
        let record = Record::decode(&bytes).ok_or_else(|| unreadable(key))?;
        Ok(Some((revision, record)))
    }

    /// Calls `visit` for the version of each key in the range that was in force at `revision`, in order, until it
    /// returns false. Deleted keys are passed over.
    pub(crate) fn scan(
        &self,
        range: &KeyRange,
        revision: Revision,
        mut visit: impl FnMut(Key, KeyState, Bytes) -> bool,
    ) -> Result<(), StoreError> {
        let start = Bound::Included(data_bound(range.start()));
        let end = range.end().map_or(Bound::Unbounded, |end| Bound::Excluded(data_bound(end)));
        let mut settled: Vec<u8> = Vec::new();
        for guard in self.snapshot.range(&self.engine.data, (start, end)) {
            let (found, bytes) = guard.into_inner().map_err(failed)?;
            let Some((key, version)) = split_data_key(&found) else {
                return Err(StoreError::Corrupted("a key in the data is unreadable".into()));
            };
            if version > revision || settled == key {
                continue;
            }
            settled.clear();
            settled.extend_from_slice(key);
            let key = Key::new(Bytes::copy_from_slice(key)).map_err(|e| StoreError::Corrupted(e.to_string()))?;
            match Record::decode(&bytes).ok_or_else(|| unreadable(&key))? {
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

    /// The changes from `first` to `last`, at most `limit` and then to the end of the last revision begun.
    pub(crate) fn changes(&self, first: Revision, last: Revision, limit: usize) -> Result<Vec<ChangedKey>, StoreError> {
        let start = revision_key(first, 0);
        let end = revision_key(last.next(), 0);
        let mut changes: Vec<ChangedKey> = Vec::new();
        for guard in self.snapshot.range(&self.engine.revisions, start..end) {
            let (found, key) = guard.into_inner().map_err(failed)?;
            let revision = split_revision_key(&found);
            let revision = revision.ok_or_else(|| StoreError::Corrupted("a revision is unreadable".into()))?;
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
        found.map(|guard| guard.key().map(|key| key.to_vec()).map_err(failed)).collect()
    }
}

fn unreadable(key: &Key) -> StoreError {
    StoreError::Corrupted(format!("a version of {key} is unreadable"))
}

/// A read that failed changed nothing and may work again.
fn failed(error: fjall::Error) -> StoreError {
    match &error {
        fjall::Error::Storage(fjall::LsmError::ChecksumMismatch { .. }) => StoreError::Corrupted(explain(&error)),
        _ => StoreError::Unavailable(format!("reading failed: {}", explain(&error))),
    }
}

/// The engine's error in words for people.
pub(crate) fn explain(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(source) => source.to_string(),
        fjall::Error::Poisoned => "an earlier write to the disk failed".into(),
        fjall::Error::JournalRecovery(source) => format!("the end of its journal is damaged ({source:?})"),
        other => format!("{other:?}"),
    }
}
