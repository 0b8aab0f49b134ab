//! The thread that removes versions which nobody may read any more, in small batches beside the writer.
//!
//! Each change at or before the compaction makes the versions of its key before it unreadable. The change itself stays
//! for as long as it is the key's state at the compaction; its entry among the revisions goes, except at the revision of
//! the compaction itself, from which a watch may still start. Work that a crash interrupts is found again at the next
//! start, because what is left to do is what is left in `revisions`.

use crate::engine::{Batch, Durability, Engine, explain};
use crate::layout::{Record, data_key};
use crate::space::Space;
use crate::store::Shared;
use crate::view::{ChangedKey, View};
use restow_store::{Key, Revision, StoreError};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

/// How many changes one batch looks at.
const BATCH: usize = 256;

/// Something for the compactor to do.
pub(crate) enum Order {
    UpTo(Revision),
    Stop,
}

/// How often it is looked whether what was removed should be given back to the disk. Room may become scarce long after
/// the removal, and then nobody should wait for the next one.
const LOOK: Duration = Duration::from_secs(1);

/// Works until it is told to stop, or the store is gone.
pub(crate) fn run(shared: &Arc<Shared>, mut space: Space, orders: &Receiver<Order>) {
    let mut next = Revision::ZERO;
    let mut order = orders.recv().ok();
    while let Some(Order::UpTo(target)) = order {
        space.refresh(shared.engine().ok().as_deref());
        match space.may_write().and_then(|()| compact_some(shared, next, target)) {
            Ok(Some(done)) => {
                next = done.next();
                match orders.try_recv() {
                    // A later target includes the earlier one.
                    Err(TryRecvError::Empty) => {}
                    other => order = other.ok(),
                }
            }
            Ok(None) => order = reclaim_until_next(shared, &space, orders),
            Err(error) => {
                tracing::warn!(%error, "compaction was interrupted; the next one takes it up again");
                order = orders.recv().ok();
            }
        }
    }
}

/// Gives what was removed back to the disk as soon as room is scarce. Returns the next order.
fn reclaim_until_next(shared: &Shared, space: &Space, orders: &Receiver<Order>) -> Option<Order> {
    while !shared.engine().is_ok_and(|engine| space.asks_for_reclaiming(&engine)) {
        match orders.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            other => return other.ok(),
        }
    }
    if let Ok(engine) = shared.engine() {
        match engine.reclaim() {
            Ok(()) => tracing::info!(bytes = engine.data_bytes(), "rewrote the store, because room was scarce"),
            Err(reason) => tracing::warn!(reason, "could not give room back"),
        }
    }
    orders.recv().ok()
}

/// Removes what one batch of changes made unreadable. Returns how far it came, or `None` when nothing is left.
fn compact_some(shared: &Shared, first: Revision, target: Revision) -> Result<Option<Revision>, StoreError> {
    let engine = shared.engine()?;
    let changes = View::of(engine.clone()).changes(first, target, BATCH)?;
    let Some(reached) = changes.last().map(|change| change.revision) else { return Ok(None) };
    let batch = removals(&engine, changes, target)?;
    if batch.len() > 0 {
        batch.commit().map_err(|error| StoreError::Unavailable(explain(&error)))?;
    }
    Ok((reached < target).then_some(reached))
}

/// What these changes made unreadable.
fn removals(engine: &Arc<Engine>, changes: Vec<ChangedKey>, target: Revision) -> Result<Batch<'_>, StoreError> {
    let view = View::of(engine.clone());
    let mut batch = engine.batch(Durability::Repeatable);
    // The last change of a key makes all before it unreadable, so the others need not be looked at.
    let mut last: HashMap<Key, Revision> = HashMap::new();
    for change in changes {
        if change.revision != target {
            batch.remove_revision(&change.revision_key);
        }
        last.insert(change.key, change.revision);
    }
    for (key, revision) in last {
        for version in view.older_versions(&key, revision)? {
            batch.remove_version(&version);
        }
        if revision != target && view.version(&key, revision)? == Some(Record::Deleted) {
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
    fn a_key_that_changes_often_is_removed_once() {
        let parent = tempfile::tempdir().unwrap();
        let engine = Arc::new(Engine::open(&parent.path().join("engine"), Background::Works).unwrap());
        let mut batch = engine.batch(Durability::Synced);
        let changed = 2..102;
        for revision in changed.clone() {
            batch.put_version(&Key::try_from("lease").unwrap(), Revision::new(revision), 0, &Record::Deleted);
        }
        batch.commit().unwrap();
        let (first, target) = (Revision::new(changed.start), Revision::new(changed.end - 1));
        let changes = View::of(engine.clone()).changes(first, target, BATCH).unwrap();
        let batch = removals(&engine, changes, target).unwrap();
        // Every version but the last, and as many entries among the revisions.
        assert_eq!(batch.len(), 2 * 99);
        batch.commit().unwrap();
        let left = View::of(engine.clone()).changes(Revision::ZERO, target, BATCH).unwrap();
        assert_eq!(left.iter().map(|change| change.revision).collect::<Vec<_>>(), [target]);
    }
}
