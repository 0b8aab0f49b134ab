//! The one place that talks to fjall: opening, batches, and reads of versions.

use crate::directory::{Directory, OpenError};
use crate::layout::{
    KeyState, META_COMPACTED, META_REVISION, Record, data_bound, data_key, data_prefix, read_number, revision_key,
    split_data_key, split_revision_key,
};
use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};
use restow_store::{Key, KeyRange, Revision, StoreError};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
/// The bytes of versions that the engine gathers in memory before it writes them out as a table.
const DATA_TABLE: u64 = 8 << 20;
/// The same for the smaller keyspaces.
const SMALL_TABLE: u64 = 2 << 20;
/// The bytes of a table that was merged with others. A merge rewrites whole levels, and how large these are follows from
/// this: small tables keep the room that it needs within the reserve.
const MERGED_TABLE: u64 = 4 << 20;
/// How many tables may wait to be written out, and how many written ones to be merged, before writers wait. Both lie
/// well below where the engine's own commit begins to wait.
const MAX_SEALED: usize = 1;
const MAX_UNMERGED: usize = 12;
/// How long to wait before the engine is asked again how far it is.
const PAUSE: Duration = Duration::from_millis(5);
/// How often it is asked to tidy up while writers wait for it.
const TIDY: Duration = Duration::from_millis(250);
/// How long closing waits for the engine to write out what it has in memory.
const SETTLE_TIME: Duration = Duration::from_secs(10);

impl Engine {
    pub(crate) fn open(directory: &Directory) -> Result<Opened, OpenError> {
        let failed =
            |error: fjall::Error| OpenError::Engine { directory: directory.path().into(), reason: explain(&error) };
        // The engine cannot open what it was killed in the middle of making, so it makes it under another name.
        directory.create_engine(|draft| Self::open_files(draft).map(drop).map_err(failed))?;
        let engine = Self::open_files(&directory.engine()).map_err(failed)?;
        let opened = engine.load();
        opened.map_err(|reason| OpenError::Damaged { directory: directory.path().into(), reason })
    }

    fn open_files(path: &Path) -> fjall::Result<Engine> {
        let database = Database::builder(path)
            .cache_size(16 << 20)
            .max_journaling_size(64 << 20)
            .journal_compression(CompressionType::None)
            .worker_threads(2)
            .open()?;
        let merged = || Arc::new(Leveled::default().with_table_target_size(MERGED_TABLE));
        let large = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(DATA_TABLE)
                .compaction_strategy(merged())
                .data_block_size_policy(BlockSizePolicy::all(16 << 10))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
        };
        let small = || KeyspaceCreateOptions::default().max_memtable_size(SMALL_TABLE).compaction_strategy(merged());
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
        let settled: u64 = self.keyspaces().into_iter().map(Keyspace::disk_space).sum();
        settled + self.database.write_buffer_size()
    }

    /// The bytes that the engine will write without being asked: what it has in memory, and what it will merge. For each
    /// table that waits to be merged it lets the level below grow by one merged table, which are merged again with it.
    pub(crate) fn unsettled_bytes(&self) -> u64 {
        let unmerged = self.data.l0_table_count() as u64 * (DATA_TABLE + MERGED_TABLE);
        self.database.write_buffer_size() + unmerged
    }

    /// Waits until the engine has caught up so far that it can take another batch, or fails where it never will. Its
    /// commit waits by itself, but for ever when the threads that it waits for have died of a failed write.
    pub(crate) fn wait_for_room(&self) -> fjall::Result<()> {
        let behind = |keyspace: &Keyspace| {
            keyspace.sealed_memtable_count() > MAX_SEALED || keyspace.l0_table_count() > MAX_UNMERGED
        };
        let mut tidied = Instant::now();
        while self.keyspaces().into_iter().any(behind) {
            self.check()?;
            std::thread::sleep(PAUSE);
            if tidied.elapsed() > TIDY {
                self.tidy()?;
                tidied = Instant::now();
            }
        }
        Ok(())
    }

    /// Writes out what is only in the journal, so that the next start has nothing to replay.
    pub(crate) fn settle(&self) {
        if let Err(reason) = self.write_out() {
            tracing::warn!(reason, "could not settle the store; the next start takes longer");
        }
    }

    /// Lets the engine delete the files that it has replaced. By itself it does so only when it begins to write out what
    /// it has in memory, so not while writers wait or are refused; but it goes on replacing files.
    pub(crate) fn tidy(&self) -> fjall::Result<()> {
        self.check()?;
        if self.revisions.sealed_memtable_count() > MAX_SEALED || self.revisions.l0_table_count() > MAX_UNMERGED / 2 {
            return Ok(());
        }
        self.write_nothing()?;
        self.revisions.rotate_memtable().map(drop)
    }

    /// Rewrites everything without what was removed. The engine does so by itself only where much is written.
    pub(crate) fn reclaim(&self) -> Result<(), String> {
        // The engine drops only what an older batch has removed, so there must be one after the last removal.
        self.write_nothing().map_err(|error| explain(&error))?;
        self.write_out()?;
        for keyspace in self.keyspaces() {
            keyspace.major_compact().map_err(|error| explain(&error))?;
        }
        Ok(())
    }

    fn write_out(&self) -> Result<(), String> {
        let until = Instant::now() + SETTLE_TIME;
        self.check().map_err(|error| explain(&error))?;
        for keyspace in self.keyspaces() {
            keyspace.rotate_memtable().map_err(|error| explain(&error))?;
        }
        while self.keyspaces().into_iter().any(|keyspace| keyspace.sealed_memtable_count() > 0) {
            self.check().map_err(|error| explain(&error))?;
            if Instant::now() > until {
                return Err(format!("the disk did not finish within {SETTLE_TIME:?}"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Commits a batch that changes nothing. It does not wait for room, which it may be there to bring about.
    fn write_nothing(&self) -> fjall::Result<()> {
        let mut batch = self.batch(Durability::Repeatable);
        batch.remove_revision(&revision_key(Revision::ZERO, 0));
        batch.batch.commit()
    }

    /// Fails once the engine has given up writing, be it in its own threads.
    fn check(&self) -> fjall::Result<()> {
        self.database.persist(PersistMode::Buffer)
    }

    fn keyspaces(&self) -> [&Keyspace; 4] {
        [&self.data, &self.revisions, &self.keys, &self.meta]
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
        self.engine.wait_for_room()?;
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
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => source.to_string(),
        fjall::Error::Poisoned => "an earlier write to the disk failed".into(),
        fjall::Error::JournalRecovery(source) => format!("the end of its journal is damaged ({source:?})"),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_files_are_deleted_when_it_is_tidied_up() {
        let parent = tempfile::tempdir().unwrap();
        let directory = Directory::claim(&parent.path().join("store")).unwrap();
        let Opened { engine, .. } = Engine::open(&directory).unwrap();
        let files = || std::fs::read_dir(engine.data.path().join("tables")).unwrap().count();
        for revision in 2..6 {
            let mut batch = engine.batch(Durability::Synced);
            let key = Key::try_from("a").unwrap();
            batch.put_version(&key, Revision::new(revision), 0, &Record::Deleted);
            batch.commit().unwrap();
            engine.write_out().unwrap();
        }
        engine.data.major_compact().unwrap();
        assert!(files() > engine.data.table_count(), "without this the engine needs no tidying");
        engine.tidy().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while files() > engine.data.table_count() {
            assert!(Instant::now() < until, "{} files for {} tables", files(), engine.data.table_count());
            std::thread::sleep(PAUSE);
            engine.tidy().unwrap();
        }
    }
}
