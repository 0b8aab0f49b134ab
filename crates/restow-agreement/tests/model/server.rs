//! What an API server does, and what is done to it.

use crate::bridge;
use crate::protocol::{Action, Comparisons};
use crate::state::{Lease, OBJECTS, Object, Process, Revision, State, Version, Write};

impl State {
    pub(crate) fn server_actions(&self, index: usize, actions: &mut Vec<Action>) {
        let server = &self.servers[index];
        // What is in flight needs no living process to arrive.
        if server.in_flight.is_some() {
            actions.push(Action::Land(index));
        }
        if let Some(lease) = self.store.leases[index] {
            let nobody_renews = server.paused || server.process == Process::Down;
            if nobody_renews && !lease.expired {
                actions.push(Action::Expire(index));
            }
        }
        if server.process == Process::Down {
            actions.push(Action::Start(index, Version::V1));
            actions.push(Action::Start(index, Version::V2));
            return;
        }
        if self.left.crashes > 0 {
            actions.push(Action::Crash(index));
        }
        if server.paused {
            actions.push(Action::Wake(index));
            return;
        }
        if self.left.pauses > 0 {
            actions.push(Action::Pause(index));
        }
        match server.process {
            Process::Down => {}
            Process::Starting { .. } => actions.push(Action::AcquireLease(index)),
            Process::Leased { .. } => actions.extend([Action::Register(index), Action::Renew(index)]),
            Process::Serving { .. } => {
                actions.push(Action::Renew(index));
                if server.in_flight.is_none() && self.left.writes > 0 {
                    actions.extend((0..OBJECTS).map(|object| Action::Send(index, object)));
                }
            }
        }
    }

    pub(crate) fn crash(&mut self, index: usize) {
        let server = &mut self.servers[index];
        server.process = Process::Down;
        server.paused = false;
        let in_flight = server.in_flight.take();
        // There is room for one such write; a second one is lost, which can happen to any.
        self.orphan = self.orphan.or(in_flight);
        self.left.crashes -= 1;
    }

    pub(crate) fn pause(&mut self, index: usize) {
        self.servers[index].paused = true;
        self.left.pauses -= 1;
    }

    /// One transaction deletes whatever lease an earlier life left and creates a new one.
    pub(crate) fn acquire_lease(&mut self, index: usize) {
        if let Process::Starting { version } = self.servers[index].process {
            self.store.leases[index] = Some(Lease { created: Revision::NEW, expired: false });
            self.servers[index].process = Process::Leased { version, lease: Revision::NEW };
        }
    }

    /// Reading, deciding and writing are one step here: everything that was read is compared when it is written, so a
    /// registration that commits is as good as one that happened at once.
    pub(crate) fn register(&mut self, index: usize) {
        let Process::Leased { version, lease } = self.servers[index].process else { return };
        if lease != self.store.lease_revision(index) {
            self.servers[index].process = Process::Starting { version };
            return;
        }
        let (record, _) = bridge::registered(&self.store, index, version);
        let unchanged = self
            .store
            .storage_version
            .as_ref()
            .is_some_and(|before| before.entries == record.entries && before.common == record.common);
        // A report that changes nothing leaves the revision as it is: API servers skip such writes.
        if !unchanged {
            self.store.storage_version = Some(record);
        }
        self.servers[index].process = Process::Serving { version, lease };
    }

    /// The server finds its lease and renews it, or finds it gone and has to begin anew.
    pub(crate) fn renew(&mut self, index: usize) {
        let current = self.store.lease_revision(index);
        let (Process::Leased { version, lease } | Process::Serving { version, lease }) = self.servers[index].process
        else {
            return;
        };
        if lease != current {
            self.servers[index].process = Process::Starting { version };
        } else if let Some(lease) = &mut self.store.leases[index] {
            lease.expired = false;
        }
    }

    pub(crate) fn expire(&mut self, index: usize) {
        self.store.leases[index].iter_mut().for_each(|lease| lease.expired = true);
    }

    pub(crate) fn send(&mut self, index: usize, object: usize) {
        let Process::Serving { version, lease } = self.servers[index].process else { return };
        let expects = self.store.object_revision(object);
        self.servers[index].in_flight = Some(Write { server: index, version, fence: lease, object, expects });
        self.left.writes -= 1;
    }

    pub(crate) fn land(&mut self, index: usize, comparisons: Comparisons) {
        if let Some(write) = self.servers[index].in_flight.take() {
            self.apply(write, comparisons);
        }
    }

    pub(crate) fn land_orphan(&mut self, comparisons: Comparisons) {
        if let Some(write) = self.orphan.take() {
            self.apply(write, comparisons);
        }
    }

    /// The store carries out a write transaction, and rule 1 is checked at the very revision of the write.
    pub(crate) fn apply(&mut self, write: Write, comparisons: Comparisons) -> bool {
        let is_fenced = comparisons.fence && write.fence != self.store.lease_revision(write.server);
        if is_fenced || write.expects != self.store.object_revision(write.object) {
            return false;
        }
        self.store.objects[write.object] = Some(Object { revision: Revision::NEW, version: write.version });
        let entry = self.store.storage_version.as_ref().and_then(|record| record.entries[write.server]);
        self.history.unreported_write |= entry != Some(write.version);
        true
    }
}
