//! The steps of an API server, and the faults that it can have.

use crate::bridge;
use crate::protocol::{Action, Comparisons, Resource};
use crate::state::{Gate, Lease, OBJECTS, Object, Process, Revision, State, Version, Write};

impl State {
    pub(crate) fn server_actions(&self, index: usize, resource: Resource, actions: &mut Vec<Action>) {
        let server = &self.servers[index];
        // A write in flight can commit after its process has died.
        if server.in_flight.is_some() {
            actions.push(Action::Land(index));
        }
        if let Some(lease) = self.store.leases[index] {
            let is_not_renewed = server.paused || server.process == Process::Down;
            if is_not_renewed && !lease.expired {
                actions.push(Action::Expire(index));
            }
            if self.left.lost_leases > 0 {
                actions.push(Action::LoseLease(index));
            }
        }
        if server.process == Process::Down {
            let versions = match resource {
                Resource::Builtin => vec![Version::V1, Version::V2],
                Resource::Custom => vec![self.store.crd.storage_version],
            };
            for version in versions {
                actions.push(Action::Start(index, version, Gate::Open));
                if self.left.closed_gates > 0 {
                    actions.push(Action::Start(index, version, Gate::Closed));
                }
            }
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
        // A change of the encoding waits for the writes in flight.
        if resource == Resource::Custom && server.heard != Revision::CURRENT && server.in_flight.is_none() {
            actions.push(Action::Hear(index));
        }
        match server.process {
            Process::Down => {}
            Process::Starting { .. } => actions.push(Action::AcquireLease(index)),
            Process::Leased { .. } => {
                actions.push(Action::Renew(index));
                // The version of a built-in resource cannot change on the way, so reading and writing it are one step.
                actions.push(match resource {
                    Resource::Custom if server.reporting.is_none() => Action::BeginReport(index),
                    _ => Action::Register(index),
                });
            }
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
        server.reporting = None;
        let in_flight = server.in_flight.take();
        // There is room for one such write; a second one is lost, which can happen to any.
        self.orphan = self.orphan.or(in_flight);
        self.left.crashes -= 1;
    }

    pub(crate) fn pause(&mut self, index: usize) {
        self.servers[index].paused = true;
        self.left.pauses -= 1;
    }

    pub(crate) fn start(&mut self, index: usize, version: Version, gate: Gate) {
        let server = &mut self.servers[index];
        server.process = Process::Starting { version };
        (server.gate, server.heard) = (gate, Revision::CURRENT);
        if gate == Gate::Closed {
            self.left.closed_gates -= 1;
        }
    }

    pub(crate) fn lose_lease(&mut self, index: usize) {
        self.store.leases[index] = None;
        self.left.lost_leases -= 1;
    }

    /// The transaction that changes the CRD also writes the key that names the version in force.
    pub(crate) fn flip(&mut self) {
        let crd = &mut self.store.crd;
        crd.revision = Revision::NEW;
        crd.storage_version = match crd.storage_version {
            Version::V1 => Version::V2,
            Version::V2 => Version::V1,
        };
        self.left.flips -= 1;
    }

    /// The server encodes by the CRD as it is now, and writes nothing before that is reported.
    pub(crate) fn hear(&mut self, index: usize) {
        let heard = self.store.crd.storage_version;
        let server = &mut self.servers[index];
        server.heard = self.store.crd.revision;
        match &mut server.process {
            Process::Down => {}
            Process::Starting { version } | Process::Leased { version, .. } => *version = heard,
            Process::Serving { version, .. } if *version == heard => {}
            Process::Serving { lease, .. } => server.process = Process::Leased { version: heard, lease: *lease },
        }
    }

    pub(crate) fn begin_report(&mut self, index: usize) {
        if let Process::Leased { version, .. } = self.servers[index].process {
            self.servers[index].reporting = Some(version);
        }
    }

    /// One transaction deletes the lease of an earlier process and creates a new one.
    pub(crate) fn acquire_lease(&mut self, index: usize) {
        if let Process::Starting { version } = self.servers[index].process {
            self.store.leases[index] = Some(Lease { created: Revision::NEW, expired: false });
            self.store.joined = Revision::NEW;
            self.servers[index].process = Process::Leased { version, lease: Revision::NEW };
        }
    }

    /// Reading the StorageVersion and the leases, deciding and writing are one step here: everything that was read is compared
    /// when it is written, so a registration that commits is as good as one that happened at once. Which version is reported
    /// was read before, and may be out of date by now.
    pub(crate) fn register(&mut self, index: usize, comparisons: Comparisons) {
        let Process::Leased { version, lease } = self.servers[index].process else { return };
        let reported = self.servers[index].reporting.take().unwrap_or(version);
        if lease != self.store.lease_revision(index) {
            self.servers[index].process = Process::Starting { version };
            return;
        }
        if self.servers[index].gate == Gate::Closed {
            if comparisons.withdrawal
                && let Some(after) = bridge::withdrawn(&self.store, index, comparisons)
            {
                self.store.storage_version = after;
            }
            self.servers[index].process = Process::Serving { version, lease };
            return;
        }
        let (record, _) = bridge::registered(&self.store, index, reported, comparisons);
        let unchanged = self
            .store
            .storage_version
            .as_ref()
            .is_some_and(|before| before.entries == record.entries && before.common == record.common);
        // A report that changes nothing leaves the revision as it is: API servers skip such writes.
        if !unchanged {
            self.store.storage_version = Some(record);
        }
        // The right to write belongs to the version that was reported. A server that encodes another version by now reports again.
        if bridge::lets_write(index, reported, version) || !comparisons.grant {
            self.servers[index].process = Process::Serving { version, lease };
        }
    }

    /// The server finds its lease and renews it, or finds it gone and has to start over.
    pub(crate) fn renew(&mut self, index: usize) {
        let current = self.store.lease_revision(index);
        let (Process::Leased { version, lease } | Process::Serving { version, lease }) = self.servers[index].process
        else {
            return;
        };
        if lease != current {
            self.servers[index].process = Process::Starting { version };
            self.servers[index].reporting = None;
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
        let (in_force, gate) = (self.servers[index].heard, self.servers[index].gate);
        let write = Write { server: index, version, fence: lease, in_force, gate, object, expects };
        self.servers[index].in_flight = Some(write);
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
        let is_outdated = write.in_force != self.store.crd.revision;
        if is_fenced || is_outdated || write.expects != self.store.object_revision(write.object) {
            return false;
        }
        self.store.objects[write.object] = Some(Object { revision: Revision::NEW, version: write.version });
        let entry = self.store.storage_version.as_ref().and_then(|record| record.entries[write.server]);
        self.history.unreported_write |= entry != Some(write.version) && write.gate == Gate::Open;
        true
    }
}
