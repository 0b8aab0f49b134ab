//! The garbage collector: it reads and decides, and carries out its decisions one by one, perhaps much later.

use crate::bridge;
use crate::protocol::{Action, Comparisons};
use crate::state::{Record, Removal, Revision, SERVERS, State};

impl State {
    pub(crate) fn collector_actions(&self, actions: &mut Vec<Action>) {
        if !self.collector.is_empty() {
            actions.push(Action::Remove);
        } else if self.has_leftovers() {
            actions.push(Action::PlanRemovals);
        }
    }

    /// Whether a run would find anything. This only saves useless steps of the model.
    fn has_leftovers(&self) -> bool {
        let Some(record) = self.store.storage_version.as_ref() else {
            return self.store.leases.iter().flatten().any(|lease| lease.expired);
        };
        let missing =
            (0..SERVERS).any(|server| self.store.leases[server].is_some() && record.entries[server].is_none());
        let first = record.entries.iter().flatten().next();
        let all_equal = record.entries.iter().flatten().all(|version| Some(version) == first);
        let is_overdue = record.common.is_some() != (all_equal && !missing);
        is_overdue
            || (0..SERVERS).any(|server| match self.store.leases[server] {
                Some(lease) => lease.expired,
                None => record.entries[server].is_some(),
            })
    }

    pub(crate) fn plan_removals(&mut self, comparisons: Comparisons) {
        self.collector = bridge::removals(self, comparisons);
    }

    /// Each removal is one transaction. One whose comparisons fail is skipped.
    pub(crate) fn remove(&mut self, comparisons: Comparisons) {
        match self.collector.remove(0) {
            Removal::Lease { server, created } => {
                // A renewal would have changed the revision that the deletion names; it also makes the lease young again.
                let is_unchanged =
                    self.store.leases[server].is_some_and(|lease| lease.created == created && lease.expired);
                if is_unchanged {
                    self.store.leases[server] = None;
                }
            }
            Removal::Entries { revision, joined, absent, after } => {
                if comparisons.joined && joined != self.store.joined {
                    return;
                }
                let all_absent = (0..SERVERS).all(|server| !absent[server] || self.store.leases[server].is_none());
                if revision == self.store.record_revision() && (all_absent || !comparisons.absence) {
                    self.store.storage_version = after.map(|record| Record { revision: Revision::NEW, ..*record });
                }
            }
        }
    }
}
