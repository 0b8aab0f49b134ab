//! The compactor thread: removes versions that were compacted, in small batches beside the writer.
//!
//! Each change at or before the compacted revision supersedes the earlier versions of its key, which are removed. The version
//! of the change itself stays if it is the latest one at the compacted revision, unless it is a tombstone. The entries in
//! `revisions` are removed up to the compacted revision, but not at that revision itself, since a watch may start there. The
//! next start continues an interrupted compaction: what is left to do is what is left in `revisions`.

use crate::disk_space::DiskSpace;
use crate::engine::{Batch, Durability, Engine, explain};
use crate::layout::{Record, data_key};
use crate::shared::SharedState;
use crate::snapshot::{ChangedKey, EngineSnapshot};
use restow_store::{Key, Revision, StoreError};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

/// How many changes one batch handles.
const BATCH: usize = 256;

/// A request to the compactor.
pub(crate) enum Command {
    UpTo(Revision),
    Stop,
}

/// How often it is checked whether removed versions should be reclaimed. Space may become low long after a compaction, and
/// must not wait for the next one.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until [`Command::Stop`], or until the store is dropped.
pub(crate) fn run(shared: &Arc<SharedState>, mut space: DiskSpace, commands: &Receiver<Command>) {
    let mut next = Revision::ZERO;
    let mut order = commands.recv().ok();
    while let Some(Command::UpTo(target)) = order {
        space.refresh(shared.engine().ok().as_deref());
        match space.may_write().and_then(|()| compact_some(shared, next, target)) {
            Ok(Some(done)) => {
                next = done.next();
                match commands.try_recv() {
                    // A later target includes the earlier one.
                    Err(TryRecvError::Empty) => {}
                    other => order = other.ok(),
                }
            }
            Ok(None) => order = reclaim_until_next(shared, &space, commands),
            Err(error) => {
                tracing::warn!(%error, "compaction failed; the next one continues it");
                order = commands.recv().ok();
            }
        }
    }
}

/// Reclaims the space of removed versions as soon as space is low. Returns the next command.
fn reclaim_until_next(shared: &SharedState, space: &DiskSpace, commands: &Receiver<Command>) -> Option<Command> {
    while !shared.engine().is_ok_and(|engine| space.should_reclaim(&engine)) {
        match commands.recv_timeout(SPACE_CHECK_INTERVAL) {
            Err(RecvTimeoutError::Timeout) => {}
            other => return other.ok(),
        }
    }
    if let Ok(engine) = shared.engine() {
        match engine.reclaim_space() {
            Ok(()) => tracing::info!(
                bytes = engine.data_bytes(),
                "reclaimed the space of removed versions, because disk space is low"
            ),
            Err(reason) => tracing::warn!(reason, "could not reclaim the space of removed versions"),
        }
    }
    commands.recv().ok()
}

/// Compacts one batch of changes. Returns the revision that it reached, or `None` if nothing is left.
fn compact_some(shared: &SharedState, first: Revision, target: Revision) -> Result<Option<Revision>, StoreError> {
    let engine = shared.engine()?;
    let changes = EngineSnapshot::of(engine.clone()).changes(first, target, BATCH)?;
    let Some(reached) = changes.last().map(|change| change.revision) else { return Ok(None) };
    let batch = removals(&engine, changes, target)?;
    if batch.len() > 0 {
        batch.commit().map_err(|error| StoreError::Unavailable(explain(&error)))?;
    }
    Ok((reached < target).then_some(reached))
}

/// The removal of what these changes superseded.
fn removals(engine: &Arc<Engine>, changes: Vec<ChangedKey>, target: Revision) -> Result<Batch<'_>, StoreError> {
    let snapshot = EngineSnapshot::of(engine.clone());
    let mut batch = engine.batch(Durability::Buffered);
    // The last change of a key supersedes all before it, so the others need no search.
    let mut last: HashMap<Key, Revision> = HashMap::new();
    for change in changes {
        if change.revision != target {
            batch.remove_revision(&change.revision_key);
        }
        last.insert(change.key, change.revision);
    }
    for (key, revision) in last {
        for version in snapshot.older_versions(&key, revision)? {
            batch.remove_version(&version);
        }
        if revision != target && snapshot.version(&key, revision)? == Some(Record::Deleted) {
            batch.remove_version(&data_key(key.as_ref(), revision));
        }
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Background;

    #[test]
    fn the_versions_of_a_key_that_changes_often_are_removed_once() {
        let parent = tempfile::tempdir().unwrap();
        let engine = Arc::new(Engine::open(&parent.path().join("engine"), Background::Enabled).unwrap());
        let mut batch = engine.batch(Durability::Synced);
        let changed = 2..102;
        for revision in changed.clone() {
            batch.put_version(&Key::try_from("lease").unwrap(), Revision::new(revision), 0, &Record::Deleted);
        }
        batch.commit().unwrap();
        let (first, target) = (Revision::new(changed.start), Revision::new(changed.end - 1));
        let changes = EngineSnapshot::of(engine.clone()).changes(first, target, BATCH).unwrap();
        let batch = removals(&engine, changes, target).unwrap();
        // Every version but the last, and as many entries of `revisions`.
        assert_eq!(batch.len(), 2 * 99);
        batch.commit().unwrap();
        let left = EngineSnapshot::of(engine.clone()).changes(Revision::ZERO, target, BATCH).unwrap();
        assert_eq!(left.iter().map(|change| change.revision).collect::<Vec<_>>(), [target]);
    }
}
