//! What the garbage collector does: it looks and decides, and carries out its decisions one by one, perhaps much later.

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

    /// Whether a look would find anything. This only spares the model useless steps.
    fn has_leftovers(&self) -> bool {
        let entries = self.store.storage_version.as_ref().map_or([None; SERVERS], |record| record.entries);
        (0..SERVERS).any(|server| match self.store.leases[server] {
            Some(lease) => lease.expired,
            None => entries[server].is_some(),
        })
    }

    pub(crate) fn plan_removals(&mut self) {
        self.collector = bridge::removals(self);
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
            Removal::Entries { revision, absent, after } => {
                let all_absent = (0..SERVERS).all(|server| !absent[server] || self.store.leases[server].is_none());
                if revision == self.store.record_revision() && (all_absent || !comparisons.absence) {
                    self.store.storage_version = after.map(|record| Record { revision: Revision::NEW, ..*record });
                }
            }
        }
    }
}
