//! The storage engine, fjall (an LSM tree): opening its files, write batches, flushes and space. No other file writes to
//! fjall; `snapshot.rs`, `verification.rs` and `repair.rs` read through it.

use crate::fingerprint::Fingerprint;
use crate::layout::{
    KeyState, META_COMPACTED, META_FINGERPRINT, META_REVISION, Record, data_key, read_number, revision_key,
};
use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Snapshot};
use restow_store::{Key, Revision};
use std::io::ErrorKind;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The open engine.
pub(crate) struct Engine {
    database: Database,
    pub(crate) data: Keyspace,
    pub(crate) revisions: Keyspace,
    pub(crate) keys: Keyspace,
    meta: Keyspace,
}

/// An atomic write batch.
pub(crate) struct Batch<'a> {
    engine: &'a Engine,
    batch: fjall::OwnedWriteBatch,
}

/// How durable a batch is when `commit` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Synced to the disk: it survives a power failure.
    Synced,
    /// Written to the operating system: it survives a crash of the process. For work that is repeated after a power
    /// failure.
    Buffered,
}

/// Whether the engine flushes memtables and compacts tables in background threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Background {
    Enabled,
    /// The engine is opened only for reading.
    Disabled,
}

/// An engine that was opened, with the content that is kept in memory.
pub(crate) struct Opened {
    pub(crate) engine: Engine,
    pub(crate) fingerprint: Fingerprint,
    /// The keys in order.
    pub(crate) keys: Vec<(Key, KeyState)>,
}

/// Why the engine failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EngineError {
    /// The disk or the operating system failed. A retry may succeed.
    Io(String),
    /// The files were read, and their content is not what was written.
    Corrupt(String),
}

/// What the keyspace `meta` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metadata {
    /// The fingerprint, written by every batch.
    Fingerprint,
    /// Two revisions, as in format 1. The fingerprint is computed from the keys.
    RevisionsOnly,
}

/// The revision of a new, empty store, as in etcd.
pub(crate) const FIRST_REVISION: Revision = Revision::new(1);
/// The size of a memtable of the keyspace `data` at which it is flushed.
const DATA_MEMTABLE_BYTES: u64 = 8 << 20;
/// The same for the smaller keyspaces.
const SMALL_MEMTABLE_BYTES: u64 = 2 << 20;
/// The target size of a table after compaction. It determines the size of a level, and a compaction rewrites whole levels:
/// with small tables the temporary space of a compaction stays within the disk reserve.
const TABLE_TARGET_BYTES: u64 = 4 << 20;
/// How many memtables may wait for their flush, and how many L0 tables for their compaction, before writes stall. Both are
/// well below the numbers at which the engine's own commit stalls.
const MAX_SEALED_MEMTABLES: usize = 1;
const MAX_L0_TABLES: usize = 12;
/// How often a stalled write, or a flush, looks whether the engine has caught up.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How often obsolete files are deleted during a write stall.
const CLEANUP_INTERVAL: Duration = Duration::from_millis(250);
/// No store reaches this sequence number: a larger one in the journal is corrupt.
const MAX_SEQUENCE_NUMBER: u64 = 1 << 56;
/// How long closing the store waits for the flush of the memtables.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

impl Engine {
    /// Opens the files in `path`, or creates them.
    pub(crate) fn open(path: &Path, background: Background) -> Result<Engine, EngineError> {
        let engine = catch_panic(|| Self::open_files(path, background).map_err(|error| EngineError::of(&error)))?;
        match engine.database.seqno() < MAX_SEQUENCE_NUMBER {
            true => Ok(engine),
            false => Err(EngineError::Corrupt("a sequence number in its journal is corrupt".into())),
        }
    }

    fn open_files(path: &Path, background: Background) -> fjall::Result<Engine> {
        let builder = Database::builder(path)
            .cache_size(16 << 20)
            .max_journaling_size(64 << 20)
            .journal_compression(CompressionType::None);
        let database = match background {
            Background::Enabled => builder.worker_threads(2).open()?,
            Background::Disabled => builder.worker_threads_unchecked(0).open()?,
        };
        let merged = || Arc::new(Leveled::default().with_table_target_size(TABLE_TARGET_BYTES));
        let large = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(DATA_MEMTABLE_BYTES)
                .compaction_strategy(merged())
                .data_block_size_policy(BlockSizePolicy::all(16 << 10))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
        };
        let small =
            || KeyspaceCreateOptions::default().max_memtable_size(SMALL_MEMTABLE_BYTES).compaction_strategy(merged());
        Ok(Engine {
            data: database.keyspace("data", large)?,
            revisions: database.keyspace("revisions", small)?,
            keys: database.keyspace("keys", small)?,
            meta: database.keyspace("meta", small)?,
            database,
        })
    }

    /// Reads all keys into memory, and checks that they match the fingerprint.
    pub(crate) fn load(self, metadata: Metadata) -> Result<Opened, EngineError> {
        let mut found = match metadata {
            Metadata::Fingerprint => self.fingerprint()?,
            Metadata::RevisionsOnly => {
                let revision = self.number(META_REVISION)?.map_or(FIRST_REVISION, Revision::new);
                Fingerprint::of_new_store(revision, self.number(META_COMPACTED)?.map_or(Revision::ZERO, Revision::new))
            }
        };
        let expected = found;
        (found.keys, found.digest) = (0, 0);
        let mut keys = Vec::new();
        for guard in self.keys.iter() {
            let (key, state) = guard.into_inner().map_err(|error| EngineError::of(&error))?;
            let key =
                Key::new(Bytes::copy_from_slice(&key)).map_err(|error| EngineError::Corrupt(error.to_string()))?;
            let state = KeyState::decode(&state)
                .ok_or_else(|| EngineError::Corrupt(format!("the metadata of {key} is unreadable")))?;
            found.add(&key, &state);
            keys.push((key, state));
        }
        if metadata == Metadata::Fingerprint && expected != found {
            let reason = format!("its fingerprint says {expected}, but {} keys were found, or other ones", found.keys);
            return Err(EngineError::Corrupt(reason));
        }
        Ok(Opened { engine: self, fingerprint: found, keys })
    }

    /// The fingerprint that the last batch wrote.
    fn fingerprint(&self) -> Result<Fingerprint, EngineError> {
        let damaged = |reason: &str| EngineError::Corrupt(reason.into());
        let bytes = self.meta.get(META_FINGERPRINT).map_err(|error| EngineError::of(&error))?;
        let bytes = bytes.ok_or_else(|| damaged("its engine has no fingerprint, as if it were new"))?;
        Fingerprint::decode(&bytes).ok_or_else(|| damaged("the fingerprint of its engine is unreadable"))
    }

    fn number(&self, name: &str) -> Result<Option<u64>, EngineError> {
        let bytes = self.meta.get(name).map_err(|error| EngineError::of(&error))?;
        let damaged = || EngineError::Corrupt(format!("the number {name:?} is unreadable"));
        bytes.map(|bytes| read_number(&bytes).ok_or_else(damaged)).transpose()
    }

    /// A new, empty batch.
    pub(crate) fn batch(&self, durability: Durability) -> Batch<'_> {
        let mode = match durability {
            Durability::Synced => PersistMode::SyncData,
            Durability::Buffered => PersistMode::Buffer,
        };
        Batch { engine: self, batch: self.database.batch().durability(Some(mode)) }
    }

    /// A snapshot of the engine: later writes do not change it.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.database.snapshot()
    }

    /// The size of the engine's files.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or_default()
    }

    /// The size of all stored versions, in tables and in memtables. The journal, which has a fixed size, does not count.
    pub(crate) fn data_bytes(&self) -> u64 {
        let tables: u64 = self.keyspaces().into_iter().map(Keyspace::disk_space).sum();
        tables + self.database.write_buffer_size()
    }

    /// The bytes that the engine will write in the background: its memtables, and what it will compact. For each L0 table
    /// the level below may grow by one table, which is then compacted with it.
    pub(crate) fn pending_write_bytes(&self) -> u64 {
        let compactions = self.data.l0_table_count() as u64 * (DATA_MEMTABLE_BYTES + TABLE_TARGET_BYTES);
        self.database.write_buffer_size() + compactions
    }

    /// Waits until flushes and compactions have caught up, or fails when a background thread has failed. The engine's own
    /// commit waits too, but it waits forever when the thread that it waits for has ended after a failed write.
    pub(crate) fn wait_out_write_stall(&self) -> fjall::Result<()> {
        let behind = |keyspace: &Keyspace| {
            keyspace.sealed_memtable_count() > MAX_SEALED_MEMTABLES || keyspace.l0_table_count() > MAX_L0_TABLES
        };
        let mut cleanups = Instant::now();
        while self.keyspaces().into_iter().any(behind) {
            self.check()?;
            std::thread::sleep(POLL_INTERVAL);
            if cleanups.elapsed() > CLEANUP_INTERVAL {
                self.delete_obsolete_files()?;
                cleanups = Instant::now();
            }
        }
        Ok(())
    }

    /// Flushes all memtables, so that the next start has no journal to replay.
    pub(crate) fn flush(&self) {
        if let Err(reason) = self.flush_memtables() {
            tracing::warn!(reason, "could not flush the store; the next start replays the journal");
        }
    }

    /// Makes the engine delete the files that a compaction has replaced. By itself it does so only when a flush begins, and
    /// no flush begins while writes stall or are refused; but compactions go on and replace more files.
    pub(crate) fn delete_obsolete_files(&self) -> fjall::Result<()> {
        self.check()?;
        if self.revisions.sealed_memtable_count() > MAX_SEALED_MEMTABLES
            || self.revisions.l0_table_count() > MAX_L0_TABLES / 2
        {
            return Ok(());
        }
        self.commit_empty_batch()?;
        self.revisions.rotate_memtable().map(drop)
    }

    /// Compacts all tables, which removes deleted versions from the disk. By itself the engine compacts only when much is
    /// written.
    pub(crate) fn reclaim_space(&self) -> Result<(), String> {
        // A compaction drops only what an older batch has removed, so there must be a batch after the last removal.
        self.commit_empty_batch().map_err(|error| explain(&error))?;
        self.flush_memtables()?;
        for keyspace in self.keyspaces() {
            keyspace.major_compact().map_err(|error| explain(&error))?;
        }
        Ok(())
    }

    fn flush_memtables(&self) -> Result<(), String> {
        let until = Instant::now() + FLUSH_TIMEOUT;
        self.check().map_err(|error| explain(&error))?;
        for keyspace in self.keyspaces() {
            keyspace.rotate_memtable().map_err(|error| explain(&error))?;
        }
        while self.keyspaces().into_iter().any(|keyspace| keyspace.sealed_memtable_count() > 0) {
            self.check().map_err(|error| explain(&error))?;
            if Instant::now() > until {
                return Err(format!("the flush did not finish within {FLUSH_TIMEOUT:?}"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Commits a batch that changes nothing. It does not wait for a write stall, which it may be needed to end.
    fn commit_empty_batch(&self) -> fjall::Result<()> {
        let mut batch = self.batch(Durability::Buffered);
        batch.remove_revision(&revision_key(Revision::ZERO, 0));
        batch.batch.commit()
    }

    /// Fails after a write has failed, also one in a background thread.
    pub(crate) fn check(&self) -> fjall::Result<()> {
        self.database.persist(PersistMode::Buffer)
    }

    fn keyspaces(&self) -> [&Keyspace; 4] {
        [&self.data, &self.revisions, &self.keys, &self.meta]
    }
}

impl EngineError {
    pub(crate) fn of(error: &fjall::Error) -> Self {
        match error {
            fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source))
                if !matches!(source.kind(), ErrorKind::UnexpectedEof | ErrorKind::NotFound) =>
            {
                EngineError::Io(explain(error))
            }
            fjall::Error::Locked | fjall::Error::Poisoned => EngineError::Io(explain(error)),
            _ => EngineError::Corrupt(explain(error)),
        }
    }
}

impl Batch<'_> {
    pub(crate) fn put_version(&mut self, key: &Key, revision: Revision, position: u32, record: &Record) {
        self.put_record(key, revision, record);
        self.batch.insert(&self.engine.revisions, revision_key(revision, position), key.as_ref());
    }

    /// Writes a version without an entry in `revisions`, so that watches do not see it.
    pub(crate) fn put_record(&mut self, key: &Key, revision: Revision, record: &Record) {
        let bytes = record.encode(key.as_ref(), revision);
        self.batch.insert(&self.engine.data, data_key(key.as_ref(), revision), bytes);
    }

    /// Writes the metadata of a key, or removes it. At most once for each key: writes within a batch have no order.
    pub(crate) fn set_key(&mut self, key: &Key, state: Option<&KeyState>) {
        match state {
            Some(state) => self.batch.insert(&self.engine.keys, key.as_ref(), state.encode()),
            None => self.batch.remove(&self.engine.keys, key.as_ref()),
        }
    }

    /// Writes the fingerprint of the store after this batch.
    pub(crate) fn set_fingerprint(&mut self, fingerprint: &Fingerprint) {
        self.batch.insert(&self.engine.meta, META_FINGERPRINT, fingerprint.encode());
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
        self.engine.wait_out_write_stall()?;
        self.batch.commit()
    }
}

/// The message of an engine error.
pub(crate) fn explain(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => source.to_string(),
        fjall::Error::Poisoned => "an earlier write to the disk failed".into(),
        fjall::Error::JournalRecovery(source) => format!("the end of its journal is corrupt ({source:?})"),
        other => format!("{other:?}"),
    }
}

/// Turns a panic into an error: the engine panics on much of what it cannot read.
pub(crate) fn catch_panic<T>(read: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    std::panic::catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().map(ToString::to_string);
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(EngineError::Corrupt(format!("its engine cannot read its files: {message}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obsolete_files_are_deleted() {
        let parent = tempfile::tempdir().unwrap();
        let engine = Engine::open(&parent.path().join("engine"), Background::Enabled).unwrap();
        let files = || std::fs::read_dir(engine.data.path().join("tables")).unwrap().count();
        for revision in 2..6 {
            let mut batch = engine.batch(Durability::Synced);
            let key = Key::try_from("a").unwrap();
            batch.put_version(&key, Revision::new(revision), 0, &Record::Deleted);
            batch.commit().unwrap();
            engine.flush_memtables().unwrap();
        }
        engine.data.major_compact().unwrap();
        assert!(files() > engine.data.table_count(), "the engine deletes these files by itself now");
        engine.delete_obsolete_files().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while files() > engine.data.table_count() {
            assert!(Instant::now() < until, "{} files for {} tables", files(), engine.data.table_count());
            std::thread::sleep(POLL_INTERVAL);
            engine.delete_obsolete_files().unwrap();
        }
    }
}
