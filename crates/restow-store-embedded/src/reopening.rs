//! Opening the engine again, in the process that has it open, after a write has failed.
//!
//! The engine refuses everything after a failed write, be it that the disk was full for a moment. What it has read into
//! memory is not to be trusted with further writes, but its files are: they are opened as after a crash, with the
//! same checks. Until these succeed, reads go on with the engine as it was, and writes are refused at once.
//!
//! The system may have dropped what it failed to sync from the disk, though not from its memory, where the checks find it. So
//! the journals are written anew, and synced, before anything is written behind them.

use crate::account::Account;
use crate::directory::{Directory, OpenError};
use crate::engine::{Opened, Recorded};
use crate::index::Slot;
use crate::layout::Record;
use crate::opening;
use crate::pending::PendingChange;
use crate::rehearsal::{Tables, copy_directory, remove};
use crate::store::Shared;
use restow_store::{Key, StoreError};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The pauses between attempts, which grow while they fail.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long to wait for reads that still use the engine.
const READS: Duration = Duration::from_secs(10);

/// A check that is under way.
pub(crate) type Check = JoinHandle<Result<(), String>>;

/// Why nothing can be written, and when that may be over.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) reason: String,
    pause: Duration,
    attempt: Instant,
}

impl Broken {
    /// Nothing can be written from now on.
    pub(crate) fn because(reason: String) -> Self {
        Broken { reason, pause: FIRST_PAUSE, attempt: Instant::now() + FIRST_PAUSE }
    }

    /// Whether it is time for another attempt.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = Instant::now() >= self.attempt;
        if due {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            self.attempt = Instant::now() + self.pause;
        }
        due
    }
}

/// Finds out, on a thread of its own, whether the engine can be opened again. That takes long where much is stored.
pub(crate) fn begin_check(shared: &Arc<Shared>) -> io::Result<Check> {
    let shared = shared.clone();
    let check = move || opening::check(&shared.directory).map_err(|error| error.to_string());
    std::thread::Builder::new().name("restow-store-check".into()).spawn(check)
}

/// Opens the engine again, once it was checked. Returns what is in it, which may be more than was acknowledged.
pub(crate) fn reopen(shared: &Shared) -> Result<Account, String> {
    let mut engine = shared.replace_engine(None);
    let until = Instant::now() + READS;
    while let Some(used) = engine.take() {
        match Arc::try_unwrap(used) {
            Ok(unused) => drop(unused),
            Err(used) if Instant::now() > until => {
                shared.replace_engine(Some(used));
                return Err("reads still use the engine".into());
            }
            Err(used) => {
                engine = Some(used);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    let renewed = renew_files(&shared.directory).map_err(|error| error.to_string());
    let opened = opening::open_engine(&shared.directory, Recorded::Account).map_err(|error| error.to_string())?;
    let Opened { engine, account, .. } = opened;
    shared.replace_engine(Some(Arc::new(engine)));
    renewed.map(|()| account)
}

/// Writes everything but the tables anew, and has it synced. Tables are synced before anything refers to them.
fn renew_files(directory: &Directory) -> Result<(), OpenError> {
    let draft = directory.draft();
    let failed = |source| OpenError::Io { action: "write the journal anew in", path: directory.draft(), source };
    remove(&draft).map_err(failed)?;
    let copied = copy_directory(&directory.engine(), &draft, Tables::Owned).map_err(failed);
    copied.and_then(|()| directory.exchange(&draft, &directory.engine())).inspect_err(|_| drop(remove(&draft)))?;
    remove(&draft).map_err(failed)
}

/// The changes that are in the engine and were never published, because it was not known whether they are.
pub(crate) fn unpublished_changes(shared: &Shared) -> Result<Vec<PendingChange>, StoreError> {
    let view = shared.view()?;
    let index = shared.index();
    let mut latest: HashMap<Key, Option<Slot>> = HashMap::new();
    let mut changes: Vec<PendingChange> = Vec::new();
    let first = index.revision().next();
    for change in view.changes(first, restow_store::Revision::new(u64::MAX - 1), usize::MAX)? {
        let (key, revision) = (change.key, change.revision);
        let current = match view.version(&key, revision)? {
            Some(Record::Put { state, value }) => Some(Slot { state, value: Some(value) }),
            Some(Record::Deleted) => None,
            None => return Err(StoreError::Corrupted(format!("the change of {key} is missing"))),
        };
        let previous = latest.insert(key.clone(), current.clone()).unwrap_or_else(|| index.get(&key).cloned());
        let place = changes.iter().rev().take_while(|change| change.revision == revision).count();
        changes.push(PendingChange { revision, place: place as u32, key, current, previous });
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

    /// A batch that reached the disk though nobody was told.
    #[tokio::test]
    async fn changes_whose_outcome_was_unknown_are_found() {
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
        let plain = |c: &PendingChange| (c.revision, c.place, c.key.clone(), value(&c.current), value(&c.previous));
        let found: Vec<_> = found.iter().map(plain).collect();
        let (one, two) = (Some(Bytes::from("1")), Some(Bytes::from("2")));
        let expected = [(at, 0, b.clone(), two.clone(), None), (at, 1, a, None, one), (at.next(), 0, b, None, two)];
        assert_eq!(found, expected);
    }
}
