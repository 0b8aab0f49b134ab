//! The most recent changes, in memory, for watches that keep up. Other watches read their history from the disk.

use crate::pending::PendingChange;
use restow_store::Revision;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most bytes of values that are kept.
const MAX_BYTES: usize = 4 << 20;
/// The most changes that are kept.
const MAX_CHANGES: usize = 10_000;

/// The most recent changes, in order, without gaps.
pub(crate) struct RecentChanges {
    log: Mutex<Log>,
}

struct Log {
    changes: VecDeque<Arc<PendingChange>>,
    bytes: usize,
    /// Every change at or after this revision is here.
    complete_from: Revision,
}

impl RecentChanges {
    /// An empty log of what comes after `revision`.
    pub(crate) fn after(revision: Revision) -> Self {
        RecentChanges { log: Mutex::new(Log { changes: VecDeque::new(), bytes: 0, complete_from: revision.next() }) }
    }

    /// Adds changes that have been committed.
    pub(crate) fn push(&self, changes: Vec<PendingChange>) {
        let mut log = self.lock();
        for change in changes {
            log.bytes += bytes_of(&change);
            log.changes.push_back(Arc::new(change));
        }
        while log.bytes > MAX_BYTES || log.changes.len() > MAX_CHANGES {
            let Some(oldest) = log.changes.pop_front() else { break };
            log.bytes -= bytes_of(&oldest);
            log.complete_from = oldest.revision.next();
        }
    }

    /// The changes from `first` to `last`; `None` if the log does not reach back to `first`.
    pub(crate) fn between(&self, first: Revision, last: Revision) -> Option<Vec<Arc<PendingChange>>> {
        let log = self.lock();
        if first < log.complete_from {
            return None;
        }
        let start = log.changes.partition_point(|change| change.revision < first);
        Some(log.changes.iter().skip(start).take_while(|change| change.revision <= last).cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        // Every change to the log is complete before anything in it can panic.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of(change: &PendingChange) -> usize {
    let value = |slot: &Option<crate::index::Slot>| {
        slot.as_ref().and_then(|slot| slot.value.as_ref()).map_or(0, bytes::Bytes::len)
    };
    value(&change.current) + value(&change.previous)
}
