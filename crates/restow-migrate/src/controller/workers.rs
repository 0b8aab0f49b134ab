//! The workers of all migrations: each has a task of its own, and a limited number rewrites at the same time.

use super::queue::{ReconcileQueue, ReconcileRequest};
use super::run_control::is_paused;
use super::worker::MigrationWorker;
use super::{Context, MigrationObject};
use crate::runner::RunControl;
use restow_api::GroupResource;
use restow_api::migration::StorageVersionMigrationSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

/// The running migrations, by uid.
pub(super) struct Workers {
    context: Context,
    queue: Arc<ReconcileQueue>,
    /// The permits to rewrite. Workers that wait hold none.
    slots: Arc<Semaphore>,
    running: BTreeMap<String, RunningMigration>,
    /// Migrations that have ended. A list that was read before still shows them as live.
    ended: BTreeSet<String>,
}

struct RunningMigration {
    resource: GroupResource,
    command: watch::Sender<RunControl>,
    handle: JoinHandle<()>,
}

impl Workers {
    pub(super) fn new(context: Context, queue: Arc<ReconcileQueue>) -> Self {
        let slots = Arc::new(Semaphore::new(context.config.at_once.max(1)));
        Workers { context, queue, slots, running: BTreeMap::new(), ended: BTreeSet::new() }
    }

    /// Reconciles the workers with the migrations: starts new ones, stops deleted ones, pauses paused ones.
    pub(super) fn reconcile(&mut self, migrations: Vec<MigrationObject>, all: RunControl) {
        let ended = self.running.iter().filter(|(_, worker)| worker.handle.is_finished());
        self.ended.extend(ended.map(|(uid, _)| uid.clone()));
        self.running.retain(|uid, _| !self.ended.contains(uid));
        let live: Vec<MigrationObject> =
            migrations.into_iter().filter(|migration| super::observe::known(migration).is_live()).collect();
        let uids: BTreeSet<&str> = live.iter().filter_map(|migration| migration.metadata.uid.as_deref()).collect();
        for (uid, worker) in &self.running {
            if !uids.contains(uid.as_str()) {
                worker.command.send_replace(RunControl::Stop);
            }
        }
        self.ended.retain(|uid| uids.contains(uid.as_str()));
        for migration in live {
            let command = if is_paused(&migration.metadata) { RunControl::Pause } else { all };
            if let Some(worker) = migration.metadata.uid.as_ref().and_then(|uid| self.running.get(uid)) {
                worker
                    .command
                    .send_if_modified(|sent| *sent != RunControl::Stop && std::mem::replace(sent, command) != command);
            }
            self.start(migration, command);
        }
    }

    /// Forgets which migrations have ended, so that one whose result could not be written runs again.
    pub(super) fn forget_ended(&mut self) {
        self.ended.clear();
    }

    fn start(&mut self, migration: MigrationObject, command: RunControl) {
        let Some(uid) = migration.metadata.uid.clone() else { return };
        let resource = match named(&migration.spec) {
            Ok(resource) => resource,
            Err(words) => {
                // It counts as ended until the next resync.
                if self.ended.insert(uid) {
                    restow_host::spawn(MigrationWorker::refuse(self.context.clone(), migration, words));
                }
                return;
            }
        };
        // A paused migration does not block another one of the same resource that is not paused.
        let is_in_the_way = |worker: &RunningMigration| {
            worker.resource == resource
                && (*worker.command.borrow() != RunControl::Pause || command == RunControl::Pause)
        };
        let is_busy = self.running.values().any(is_in_the_way);
        if self.running.contains_key(&uid) || self.ended.contains(&uid) || is_busy {
            return;
        }
        let (command, control) = watch::channel(command);
        let worker =
            MigrationWorker::new(self.context.clone(), migration, resource.clone(), control, Arc::clone(&self.slots));
        let (queue, request) = (Arc::clone(&self.queue), ReconcileRequest::resource(resource.clone()));
        let handle = restow_host::spawn(async move {
            worker.run().await;
            // Another migration of the same resource may wait for this one.
            queue.enqueue(request);
        });
        self.running.insert(uid, RunningMigration { resource, command, handle });
    }

    /// The resources whose migrations run.
    pub(super) fn resources(&self) -> BTreeSet<GroupResource> {
        let unfinished = self.running.values().filter(|worker| !worker.handle.is_finished());
        unfinished.map(|worker| worker.resource.clone()).collect()
    }

    /// Stops all workers and waits for them.
    pub(super) async fn stop_all(mut self) {
        for worker in self.running.values() {
            worker.command.send_replace(RunControl::Stop);
        }
        while let Some((_, worker)) = self.running.pop_first() {
            // A worker that panicked has ended too.
            let _ = worker.handle.await;
        }
    }
}

/// The resource of a migration. The version is ignored: objects are rewritten in the storage version.
fn named(spec: &StorageVersionMigrationSpec) -> Result<GroupResource, String> {
    let named = &spec.resource;
    GroupResource::new(&named.group, &named.resource)
        .map_err(|error| format!("spec.resource does not name a resource: {error}"))
}

#[cfg(test)]
mod tests;
