//! The migrator: it starts at an agreement, has each object rewritten, and checks at the end that the agreement has not
//! changed.

use crate::bridge;
use crate::protocol::{Action, Comparisons};
use crate::state::{Migration, OBJECTS, Process, Proof, SERVERS, State, Version, Write};

impl State {
    pub(crate) fn migrator_actions(&self, actions: &mut Vec<Action>) {
        let Some(migration) = &self.migration else {
            let agreed = self.store.storage_version.as_ref().is_some_and(|record| record.common.is_some());
            if agreed && self.left.migrations > 0 {
                actions.push(Action::BeginMigration);
            }
            return;
        };
        let Some(object) = (0..OBJECTS).find(|object| migration.to_do[*object].is_some()) else {
            actions.push(Action::EndMigration);
            return;
        };
        let can_serve = |server: &usize| {
            !self.servers[*server].paused && matches!(self.servers[*server].process, Process::Serving { .. })
        };
        actions.extend((0..SERVERS).filter(can_serve).map(|server| Action::Rewrite(object, server)));
    }

    /// The objects are listed as they are now; those created later are not rewritten.
    pub(crate) fn begin_migration(&mut self) {
        let target = self.store.storage_version.as_ref().and_then(bridge::migration_target);
        let Some(target) = target else { return };
        let to_do = std::array::from_fn(|object| self.store.objects[object].map(|object| object.revision));
        self.migration = Some(Migration { target, agreement: self.store.record_revision(), to_do });
        self.left.migrations -= 1;
    }

    /// A write that changes nothing but the encoding, through one of the servers. If another client changed the object since
    /// it was listed, that is enough. A server that is fenced out leaves the object to be tried again.
    pub(crate) fn rewrite(&mut self, object: usize, server: usize, comparisons: Comparisons) {
        let Some(listed) = self.migration.as_ref().and_then(|migration| migration.to_do[object]) else { return };
        let Process::Serving { version, lease } = self.servers[server].process else { return };
        let stored = self.store.objects[object].map(|object| object.version);
        let changed = self.store.object_revision(object) != listed;
        let (in_force, gate) = (self.servers[server].heard, self.servers[server].gate);
        let write = Write { server, version, fence: lease, in_force, gate, object, expects: listed };
        // The server skips the write when the object is stored as it would write it. The server decides that itself, so it
        // counts only while the server is a participant.
        let is_current = lease == self.store.lease_revision(server) && in_force == self.store.crd.revision;
        let takes_part = is_current || !comparisons.fence || !comparisons.skipped;
        let is_skipped = stored == Some(version) && takes_part;
        let is_done = changed || is_skipped || (stored != Some(version) && self.apply(write, comparisons));
        if is_done && let Some(migration) = &mut self.migration {
            migration.to_do[object] = None;
        }
    }

    /// Success needs the agreement of the beginning; then, by rule 3, every object is in the target version.
    pub(crate) fn end_migration(&mut self, comparisons: Comparisons) {
        let Some(migration) = self.migration.take() else { return };
        let is_unchanged = migration.agreement == self.store.record_revision();
        if !is_unchanged && comparisons.agreement {
            return;
        }
        let polluted = self.store.objects.iter().flatten().any(|object| object.version != migration.target);
        self.history.polluted_migration |= polluted;
        self.history.migrated_to_v2 |= migration.target == Version::V2;
        self.proof = Some(Proof { version: migration.target, agreement: migration.agreement });
    }
}
