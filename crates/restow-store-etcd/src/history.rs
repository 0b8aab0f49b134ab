//! How far the cluster's history was seen to go, and noticing when it goes back: somebody restored a backup.
//!
//! Every answer says at which revision and in which term it was given, and neither ever goes back. An answer that is behind one
//! that was met before it was asked for comes from another history. A restored cluster may have the same name, so nothing
//! else tells.

use crate::keyspace::revision;
use crate::proto::ResponseHeader;
use restow_store::Revision;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What was met of one cluster.
#[derive(Debug)]
pub(crate) struct History {
    met: Mutex<Seen>,
    /// How often the history went back.
    losses: watch::Sender<u64>,
}

/// What was met before a call was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    revision: Revision,
    term: u64,
    losses: u64,
}

impl Seen {
    /// A revision that existed before anything that is sent from then on.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }
}

impl Default for History {
    fn default() -> Self {
        History { met: Mutex::default(), losses: watch::Sender::new(0) }
    }
}

impl History {
    /// What was met so far. It has to be taken before a call is sent.
    pub(crate) fn seen(&self) -> Seen {
        *self.met()
    }

    /// Takes note of the answer to a linearizable call, and tells its revision.
    pub(crate) fn meet(&self, seen: Seen, header: Option<ResponseHeader>) -> Revision {
        let header = header.unwrap_or_default();
        let found = revision(header.revision);
        if found == Revision::ZERO {
            return found;
        }
        let mut met = self.met();
        // What was seen before an earlier loss says nothing about the history of now.
        let is_behind = found < seen.revision || header.raft_term < seen.term;
        if is_behind && seen.losses == met.losses {
            tracing::error!(
                revision = found.get(),
                before = seen.revision.get(),
                term = header.raft_term,
                term_before = seen.term,
                "etcd has gone back in its history: a backup was restored. Everything is read anew"
            );
            *met = Seen { revision: found, term: header.raft_term, losses: met.losses + 1 };
            self.losses.send_replace(met.losses);
        } else if seen.losses == met.losses {
            met.revision = met.revision.max(found);
            met.term = met.term.max(header.raft_term);
        }
        found
    }

    /// The history was found not to be the one that was met.
    pub(crate) fn lose(&self) {
        let mut met = self.met();
        *met = Seen { revision: Revision::ZERO, term: 0, losses: met.losses + 1 };
        self.losses.send_replace(met.losses);
    }

    /// Tells of every loss.
    pub(crate) fn losses(&self) -> watch::Receiver<u64> {
        self.losses.subscribe()
    }

    fn met(&self) -> MutexGuard<'_, Seen> {
        // Every change under the lock is a single assignment.
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meet(history: &History, seen: Seen, revision: i64, term: u64) {
        history.meet(seen, Some(ResponseHeader { revision, raft_term: term, ..Default::default() }));
    }

    #[test]
    fn an_answer_that_is_behind_what_was_met_before_it_was_asked_for_tells_of_a_loss() {
        let history = History::default();
        let early = history.seen();
        meet(&history, early, 10, 3);
        meet(&history, early, 8, 3);
        assert_eq!(*history.losses().borrow(), 0, "it was asked for before the other was met");
        meet(&history, history.seen(), 10, 4);
        let late = history.seen();
        history.meet(late, None);
        assert_eq!(*history.losses().borrow(), 0, "what says nothing says nothing");
        meet(&history, late, 7, 4);
        assert_eq!(*history.losses().borrow(), 1);
        meet(&history, late, 8, 4);
        assert_eq!(*history.losses().borrow(), 1, "one loss is told of once");
        meet(&history, history.seen(), 9, 4);
        meet(&history, history.seen(), 20, 2);
        assert_eq!(*history.losses().borrow(), 2, "its revision has passed the one of before, its term has not");
    }
}
