//! Reopens the engine in the running process, after a write has failed.
//!
//! After a failed write the engine refuses all writes, even if the disk was full for only a moment. Its state in memory may
//! not match its files, so the files are opened again as after a crash, with the same checks. Until that succeeds, reads use
//! the old engine, and writes are refused at once.
//!
//! After a failed fsync the page cache may hold data that is not on disk, and the checks read the page cache. So the journals
//! are rewritten and synced before anything is appended to them.

use crate::directory::{Directory, OpenError};
use crate::engine::{Metadata, Opened};
use crate::fingerprint::Fingerprint;
use crate::index::Slot;
use crate::layout::Record;
use crate::open;
use crate::pending::PendingChange;
use crate::recovery_copy::{TableFiles, copy_directory, remove};
use crate::shared::SharedState;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use restow_store::{Key, StoreError};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The delays between attempts.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(500))
    .with_max_delay(Duration::from_secs(30))
    .without_max_times();
/// How long to wait for reads that still use the engine.
const READERS_TIMEOUT: Duration = Duration::from_secs(10);

/// A running check.
pub(crate) type Check = JoinHandle<Result<(), String>>;

/// A failed write, since which nothing can be written, and when to try again.
#[derive(Debug)]
pub(crate) struct WriteFailure {
    pub(crate) reason: String,
    backoff: ExponentialBackoff,
    next_attempt: Instant,
}

impl WriteFailure {
    /// A write failed now.
    pub(crate) fn new(reason: String) -> Self {
        let mut failure = WriteFailure { reason, backoff: BACKOFF.build(), next_attempt: Instant::now() };
        failure.schedule();
        failure
    }

    /// Whether it is time for another attempt. If so, the next one is scheduled.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = Instant::now() >= self.next_attempt;
        if due {
            self.schedule();
        }
        due
    }

    fn schedule(&mut self) {
        self.next_attempt = Instant::now() + self.backoff.next().unwrap_or_default();
    }
}

/// Starts a thread that checks the engine's files. That takes long if much is stored.
pub(crate) fn start_check(shared: &Arc<SharedState>) -> io::Result<Check> {
    let shared = shared.clone();
    let check = move || open::check(&shared.directory).map_err(|error| error.to_string());
    std::thread::Builder::new().name("restow-store-check".into()).spawn(check)
}

/// Reopens the engine after its files were checked. Returns its fingerprint, which may be ahead of what was acknowledged.
pub(crate) fn reopen(shared: &SharedState) -> Result<Fingerprint, String> {
    let mut engine = shared.replace_engine(None);
    let until = Instant::now() + READERS_TIMEOUT;
    while let Some(used) = engine.take() {
        match Arc::try_unwrap(used) {
            Ok(unused) => drop(unused),
            Err(used) if Instant::now() > until => {
                shared.replace_engine(Some(used));
                return Err("reads still use the old engine".into());
            }
            Err(used) => {
                engine = Some(used);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    let renewed = rewrite_files(&shared.directory).map_err(|error| error.to_string());
    let opened = open::open_engine(&shared.directory, Metadata::Fingerprint).map_err(|error| error.to_string())?;
    let Opened { engine, fingerprint, .. } = opened;
    shared.replace_engine(Some(Arc::new(engine)));
    renewed.map(|()| fingerprint)
}

/// Rewrites and syncs all files except the tables. The engine syncs a table before it refers to it.
fn rewrite_files(directory: &Directory) -> Result<(), OpenError> {
    let draft = directory.new_engine();
    let failed = |source| OpenError::Io { action: "rewrite the journal in", path: directory.new_engine(), source };
    remove(&draft).map_err(failed)?;
    let copied = copy_directory(&directory.engine(), &draft, TableFiles::Owned).map_err(failed);
    copied.and_then(|()| directory.exchange(&draft, &directory.engine())).inspect_err(|_| drop(remove(&draft)))?;
    remove(&draft).map_err(failed)
}

/// The changes that are on disk and were never published, because the outcome of their write was unknown.
pub(crate) fn unpublished_changes(shared: &SharedState) -> Result<Vec<PendingChange>, StoreError> {
    let snapshot = shared.snapshot()?;
    let index = shared.index();
    let mut latest: HashMap<Key, Option<Slot>> = HashMap::new();
    let mut changes: Vec<PendingChange> = Vec::new();
    let first = index.revision().next();
    for change in snapshot.changes(first, restow_store::Revision::new(u64::MAX - 1), usize::MAX)? {
        let (key, revision) = (change.key, change.revision);
        let current = match snapshot.version(&key, revision)? {
            Some(Record::Put { state, value }) => Some(Slot { state, value: Some(value) }),
            Some(Record::Deleted) => None,
            None => return Err(StoreError::Corrupted(format!("the change of {key} is missing"))),
        };
        let previous = latest.insert(key.clone(), current.clone()).unwrap_or_else(|| index.get(&key).cloned());
        let position = changes.iter().rev().take_while(|change| change.revision == revision).count();
        changes.push(PendingChange { revision, position: position as u32, key, current, previous });
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EmbeddedConfig;
    use crate::engine::Durability;
    use crate::layout::KeyState;
    use crate::store::EmbeddedStore;
    use bytes::Bytes;
    use restow_store::{Revision, StoreExt};

    /// A batch that reached the disk, but was not acknowledged.
    #[tokio::test]
    async fn changes_of_unknown_outcome_that_are_on_disk_are_found() {
        let parent = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(EmbeddedConfig::new(parent.path().join("store"))).unwrap();
        let (a, b) = (Key::try_from("a").unwrap(), Key::try_from("b").unwrap());
        let first = store.put(&a, "1".into()).await.unwrap();
        let shared = store.shared();
        assert_eq!(unpublished_changes(shared).unwrap(), Vec::new());
        let at = Revision::new(first.get() + 1);
        let state = KeyState { create_revision: at, mod_revision: at, version: 1, expires_at: 0 };
        let engine = shared.engine().unwrap();
        let mut batch = engine.batch(Durability::Synced);
        batch.put_version(&b, at, 0, &Record::Put { state, value: "2".into() });
        batch.put_version(&a, at, 1, &Record::Deleted);
        batch.put_version(&b, at.next(), 0, &Record::Deleted);
        batch.commit().unwrap();
        let found = unpublished_changes(shared).unwrap();
        let value = |slot: &Option<Slot>| slot.as_ref().and_then(|slot| slot.value.clone());
        let plain = |c: &PendingChange| (c.revision, c.position, c.key.clone(), value(&c.current), value(&c.previous));
        let found: Vec<_> = found.iter().map(plain).collect();
        let (one, two) = (Some(Bytes::from("1")), Some(Bytes::from("2")));
        let expected = [(at, 0, b.clone(), two.clone(), None), (at, 1, a, None, one), (at.next(), 0, b, None, two)];
        assert_eq!(found, expected);
    }
}
