//! The one place that talks to fjall: opening, batches, and reads of versions.

use crate::account::Account;
use crate::layout::{
    KeyState, META_ACCOUNT, META_COMPACTED, META_REVISION, Record, data_key, read_number, revision_key,
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

/// The engine's files, open.
pub(crate) struct Engine {
    database: Database,
    pub(crate) data: Keyspace,
    pub(crate) revisions: Keyspace,
    pub(crate) keys: Keyspace,
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

/// What the engine does by itself while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Background {
    /// It writes out what it has in memory, and merges tables.
    Works,
    /// Nothing: it is opened only to look at it.
    Rests,
}

/// What the engine held when it was opened.
pub(crate) struct Opened {
    pub(crate) engine: Engine,
    pub(crate) account: Account,
    /// The keys in order.
    pub(crate) keys: Vec<(Key, KeyState)>,
}

/// Why the engine cannot read its files, by what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The disk, or the system, did not do what it was asked to; it may the next time.
    Disk(String),
    /// It did, and what it gave is not what was written.
    Damage(String),
}

/// Where the engine's account is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// Every batch has recorded it.
    Account,
    /// It has only the revisions, as in format 1: the account is made of what is found.
    Numbers,
}

/// The revision of a new store. Nothing has been written at it, as in etcd.
pub(crate) const FIRST_REVISION: Revision = Revision::new(1);
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
/// Sequence numbers that no store reaches: one in the journal is damaged.
const HIGHEST_SEQUENCE: u64 = 1 << 56;
/// How long closing waits for the engine to write out what it has in memory.
const SETTLE_TIME: Duration = Duration::from_secs(10);

impl Engine {
    /// Opens the files in `path`, or makes new ones.
    pub(crate) fn open(path: &Path, background: Background) -> Result<Engine, Failure> {
        let engine = without_panic(|| Self::open_files(path, background).map_err(|error| Failure::of(&error)))?;
        match engine.database.seqno() < HIGHEST_SEQUENCE {
            true => Ok(engine),
            false => Err(Failure::Damage("a sequence number in its journal is damaged".into())),
        }
    }

    fn open_files(path: &Path, background: Background) -> fjall::Result<Engine> {
        let builder = Database::builder(path)
            .cache_size(16 << 20)
            .max_journaling_size(64 << 20)
            .journal_compression(CompressionType::None);
        let database = match background {
            Background::Works => builder.worker_threads(2).open()?,
            Background::Rests => builder.worker_threads_unchecked(0).open()?,
        };
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

    /// Reads what has to be in memory, and checks that it is what the account says.
    pub(crate) fn load(self, recorded: Recorded) -> Result<Opened, Failure> {
        let mut found = match recorded {
            Recorded::Account => self.account()?,
            Recorded::Numbers => {
                let revision = self.number(META_REVISION)?.map_or(FIRST_REVISION, Revision::new);
                Account::of_new_store(revision, self.number(META_COMPACTED)?.map_or(Revision::ZERO, Revision::new))
            }
        };
        let said = found;
        (found.keys, found.digest) = (0, 0);
        let mut keys = Vec::new();
        for guard in self.keys.iter() {
            let (key, state) = guard.into_inner().map_err(|error| Failure::of(&error))?;
            let key = Key::new(Bytes::copy_from_slice(&key)).map_err(|error| Failure::Damage(error.to_string()))?;
            let state = KeyState::decode(&state)
                .ok_or_else(|| Failure::Damage(format!("what is known of {key} is unreadable")))?;
            found.add(&key, &state);
            keys.push((key, state));
        }
        if recorded == Recorded::Account && said != found {
            let reason = format!("it says that it has {said}, and {} keys were found, or others", found.keys);
            return Err(Failure::Damage(reason));
        }
        Ok(Opened { engine: self, account: found, keys })
    }

    /// The account that the last batch recorded.
    fn account(&self) -> Result<Account, Failure> {
        let damaged = |reason: &str| Failure::Damage(reason.into());
        let bytes = self.meta.get(META_ACCOUNT).map_err(|error| Failure::of(&error))?;
        let bytes = bytes.ok_or_else(|| damaged("its engine does not say what it holds, as if it were new"))?;
        Account::decode(&bytes).ok_or_else(|| damaged("what its engine says that it holds is unreadable"))
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Failure> {
        let bytes = self.meta.get(name).map_err(|error| Failure::of(&error))?;
        let damaged = || Failure::Damage(format!("the number {name:?} is unreadable"));
        bytes.map(|bytes| read_number(&bytes).ok_or_else(damaged)).transpose()
    }

    /// A new, empty batch.
    pub(crate) fn batch(&self, durability: Durability) -> Batch<'_> {
        let mode = match durability {
            Durability::Synced => PersistMode::SyncData,
            Durability::Repeatable => PersistMode::Buffer,
        };
        Batch { engine: self, batch: self.database.batch().durability(Some(mode)) }
    }

    /// What the engine holds now, whatever is written later.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.database.snapshot()
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
    pub(crate) fn check(&self) -> fjall::Result<()> {
        self.database.persist(PersistMode::Buffer)
    }

    fn keyspaces(&self) -> [&Keyspace; 4] {
        [&self.data, &self.revisions, &self.keys, &self.meta]
    }
}

impl Failure {
    pub(crate) fn of(error: &fjall::Error) -> Self {
        match error {
            fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source))
                if !matches!(source.kind(), ErrorKind::UnexpectedEof | ErrorKind::NotFound) =>
            {
                Failure::Disk(explain(error))
            }
            fjall::Error::Locked | fjall::Error::Poisoned => Failure::Disk(explain(error)),
            _ => Failure::Damage(explain(error)),
        }
    }
}

impl Batch<'_> {
    pub(crate) fn put_version(&mut self, key: &Key, revision: Revision, place: u32, record: &Record) {
        self.put_record(key, revision, record);
        self.batch.insert(&self.engine.revisions, revision_key(revision, place), key.as_ref());
    }

    /// Writes a version that is not part of the history.
    pub(crate) fn put_record(&mut self, key: &Key, revision: Revision, record: &Record) {
        let bytes = record.encode(key.as_ref(), revision);
        self.batch.insert(&self.engine.data, data_key(key.as_ref(), revision), bytes);
    }

    /// Says what a key is after this batch. Once for each key: the engine does not order writes within a batch.
    pub(crate) fn set_key(&mut self, key: &Key, state: Option<&KeyState>) {
        match state {
            Some(state) => self.batch.insert(&self.engine.keys, key.as_ref(), state.encode()),
            None => self.batch.remove(&self.engine.keys, key.as_ref()),
        }
    }

    /// Says what the store holds after this batch.
    pub(crate) fn set_account(&mut self, account: &Account) {
        self.batch.insert(&self.engine.meta, META_ACCOUNT, account.encode());
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

/// The engine's error in words for people.
pub(crate) fn explain(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => source.to_string(),
        fjall::Error::Poisoned => "an earlier write to the disk failed".into(),
        fjall::Error::JournalRecovery(source) => format!("the end of its journal is damaged ({source:?})"),
        other => format!("{other:?}"),
    }
}

/// Makes a failure of a panic: the engine asserts much of what it reads.
pub(crate) fn without_panic<T>(read: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    std::panic::catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(ToString::to_string);
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure::Damage(format!("its engine cannot read its files: {said}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_files_are_deleted_when_it_is_tidied_up() {
        let parent = tempfile::tempdir().unwrap();
        let engine = Engine::open(&parent.path().join("engine"), Background::Works).unwrap();
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
