//! Detects that the cluster's history was rolled back, as after a backup was restored.
//!
//! Every response of etcd carries a revision and a raft term, and neither ever decreases. A response that is behind one that
//! was received before its request was sent belongs to another history. A restored cluster may have the same cluster id, so
//! there is no other sign.

use crate::keyspace::revision;
use crate::proto::ResponseHeader;
use restow_store::Revision;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Compares the responses of one cluster.
#[derive(Debug)]
pub(crate) struct RollbackDetector {
    latest: Mutex<Seen>,
    /// How often the history was rolled back.
    rollbacks: watch::Sender<u64>,
}

/// The latest revision and term that were seen before a request was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    revision: Revision,
    term: u64,
    rollbacks: u64,
}

impl Seen {
    /// A revision that existed before the request.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }
}

impl Default for RollbackDetector {
    fn default() -> Self {
        RollbackDetector { latest: Mutex::default(), rollbacks: watch::Sender::new(0) }
    }
}

impl RollbackDetector {
    /// The latest revision and term. It has to be called before a request is sent.
    pub(crate) fn seen(&self) -> Seen {
        *self.latest()
    }

    /// Takes the response to a linearizable request into account, and returns its revision.
    pub(crate) fn observe(&self, seen: Seen, header: Option<ResponseHeader>) -> Revision {
        let header = header.unwrap_or_default();
        let found = revision(header.revision);
        if found == Revision::ZERO {
            return found;
        }
        let mut latest = self.latest();
        // A request from before an earlier rollback says nothing about the history of now.
        let is_behind = found < seen.revision || header.raft_term < seen.term;
        if is_behind && seen.rollbacks == latest.rollbacks {
            tracing::error!(
                revision = found.get(),
                before = seen.revision.get(),
                term = header.raft_term,
                term_before = seen.term,
                "the history of etcd was rolled back: a backup was restored; everything is read again"
            );
            *latest = Seen { revision: found, term: header.raft_term, rollbacks: latest.rollbacks + 1 };
            self.rollbacks.send_replace(latest.rollbacks);
        } else if seen.rollbacks == latest.rollbacks {
            latest.revision = latest.revision.max(found);
            latest.term = latest.term.max(header.raft_term);
        }
        found
    }

    /// Reports a rollback that was detected otherwise.
    pub(crate) fn report(&self) {
        let mut latest = self.latest();
        *latest = Seen { revision: Revision::ZERO, term: 0, rollbacks: latest.rollbacks + 1 };
        self.rollbacks.send_replace(latest.rollbacks);
    }

    /// Receives the number of rollbacks whenever it changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.rollbacks.subscribe()
    }

    fn latest(&self) -> MutexGuard<'_, Seen> {
        // Every change under the lock is a single assignment.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(detector: &RollbackDetector, seen: Seen, revision: i64, term: u64) {
        detector.observe(seen, Some(ResponseHeader { revision, raft_term: term, ..Default::default() }));
    }

    #[test]
    fn a_response_behind_one_that_was_received_before_its_request_is_a_rollback() {
        let detector = RollbackDetector::default();
        let early = detector.seen();
        observe(&detector, early, 10, 3);
        observe(&detector, early, 8, 3);
        assert_eq!(*detector.subscribe().borrow(), 0, "it was requested before the other response came");
        observe(&detector, detector.seen(), 10, 4);
        let late = detector.seen();
        detector.observe(late, None);
        assert_eq!(*detector.subscribe().borrow(), 0, "a response without a header says nothing");
        observe(&detector, late, 7, 4);
        assert_eq!(*detector.subscribe().borrow(), 1);
        observe(&detector, late, 8, 4);
        assert_eq!(*detector.subscribe().borrow(), 1, "one rollback is counted once");
        observe(&detector, detector.seen(), 9, 4);
        observe(&detector, detector.seen(), 20, 2);
        assert_eq!(*detector.subscribe().borrow(), 2, "its revision is ahead, but its term is not");
    }
}
