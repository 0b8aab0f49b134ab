//! Runs the migrations that there are, some at once, and writes down how far they are.

use super::observe::wire;
use super::wakes::{Wake, Wakes};
use super::{Context, MigrationObject};
use crate::exchange::Failure;
use crate::migration::{MigrationError, MigrationReport, Outcome, Reins, Target, migrate};
use crate::runner::{Order, Progress};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use restow_agreement::migrate::window;
use restow_api::internal_apiserver::ConditionStatus;
use restow_api::migration::{MigrationCondition, StorageVersionMigrationStatus};
use restow_api::{GroupResource, GroupVersionResource, Time};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

/// The migrations that run.
pub(super) struct Workers {
    context: Context,
    wakes: Arc<Wakes>,
    slots: Arc<Semaphore>,
    running: BTreeMap<String, Worker>,
    /// Those that have ended. What was read before that still shows them as live.
    ended: BTreeSet<String>,
}

struct Worker {
    resource: GroupResource,
    order: watch::Sender<Order>,
    handle: JoinHandle<()>,
}

/// How often progress is written down.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);
/// How long a migration that waits for agreement waits before it asks again.
const AGREEMENT_WAIT: Duration = Duration::from_secs(5);
/// The failures that a condition quotes.
const QUOTED_FAILURES: usize = 3;

impl Workers {
    pub(super) fn new(context: Context, wakes: Arc<Wakes>) -> Self {
        let slots = Arc::new(Semaphore::new(context.config.at_once.max(1)));
        Workers { context, wakes, slots, running: BTreeMap::new(), ended: BTreeSet::new() }
    }

    /// Makes what runs fit what there is: starts what is new, stops what was deleted.
    pub(super) fn follow(&mut self, migrations: Vec<MigrationObject>) {
        let ended = self.running.iter().filter(|(_, worker)| worker.handle.is_finished());
        self.ended.extend(ended.map(|(uid, _)| uid.clone()));
        self.running.retain(|uid, _| !self.ended.contains(uid));
        let live: Vec<MigrationObject> =
            migrations.into_iter().filter(|migration| super::observe::known(migration).is_live()).collect();
        let uids: BTreeSet<&str> = live.iter().filter_map(|migration| migration.metadata.uid.as_deref()).collect();
        for (uid, worker) in &self.running {
            if !uids.contains(uid.as_str()) {
                worker.order.send_replace(Order::Stop);
            }
        }
        self.ended.retain(|uid| uids.contains(uid.as_str()));
        for migration in live {
            self.start(migration);
        }
    }

    /// Forgets which ones have ended, so that one whose end could not be written down is taken up again.
    pub(super) fn forget_ended(&mut self) {
        self.ended.clear();
    }

    fn start(&mut self, migration: MigrationObject) {
        let Some(uid) = migration.metadata.uid.clone() else { return };
        let Ok(resource) = GroupVersionResource::try_from(&migration.spec.resource) else {
            tracing::warn!("the migration {} names no resource", migration.metadata.name.unwrap_or_default());
            return;
        };
        let resource = resource.group_resource();
        let is_busy = self.running.values().any(|worker| worker.resource == resource);
        if self.running.contains_key(&uid) || self.ended.contains(&uid) || is_busy {
            return;
        }
        let (order, orders) = watch::channel(Order::Run);
        let (context, slots) = (self.context.clone(), Arc::clone(&self.slots));
        let work = Work { context, migration, resource: resource.clone(), orders };
        let (wakes, wake) = (Arc::clone(&self.wakes), Wake::resource(resource.clone()));
        let handle = tokio::spawn(async move {
            if let Ok(_slot) = slots.acquire_owned().await {
                work.run().await;
            }
            // Another migration of the same resource may have waited for this one to end.
            wakes.wake(wake);
        });
        self.running.insert(uid, Worker { resource, order, handle });
    }

    /// The resources whose migrations run.
    pub(super) fn resources(&self) -> BTreeSet<GroupResource> {
        let unfinished = self.running.values().filter(|worker| !worker.handle.is_finished());
        unfinished.map(|worker| worker.resource.clone()).collect()
    }

    /// Stops all of them, and waits until they have.
    pub(super) async fn stop_all(mut self) {
        for worker in self.running.values() {
            worker.order.send_replace(Order::Stop);
        }
        while let Some((_, worker)) = self.running.pop_first() {
            // One that panicked has stopped, too.
            let _ = worker.handle.await;
        }
    }
}

/// One migration.
struct Work {
    context: Context,
    migration: MigrationObject,
    resource: GroupResource,
    orders: watch::Receiver<Order>,
}

impl Work {
    async fn run(mut self) {
        if *self.orders.borrow() == Order::Stop {
            return;
        }
        let (progress, seen) = watch::channel(Progress::default());
        self.write(&running(None)).await;
        let saver = tokio::spawn(save(self.context.clone(), self.name(), self.resource.clone(), seen));
        let report = loop {
            self.wait_for_window().await;
            let report = self.attempt(&progress).await;
            let waits = matches!(&report, Ok(MigrationReport { outcome: Outcome::NoAgreement(_), .. }));
            if !waits || *self.orders.borrow() == Order::Stop {
                break report;
            }
            if let Ok(MigrationReport { outcome: Outcome::NoAgreement(words), .. }) = &report {
                tracing::info!("{}: {words}", self.resource);
                self.write(&running(Some(words))).await;
            }
            tokio::select! {
                () = tokio::time::sleep(AGREEMENT_WAIT) => {}
                _ = self.orders.changed() => {}
            }
        };
        saver.abort();
        let last = progress.borrow().clone();
        self.finish(report, &last).await;
    }

    async fn attempt(&self, progress: &watch::Sender<Progress>) -> Result<MigrationReport, MigrationError> {
        let wire = wire(&self.migration);
        let mut options = self.context.config.migration.clone();
        options.expected = wire.target_hash().map(|hash| Target { hash, revision: wire.agreement_revision() });
        options.run.continue_token = Some(wire.spec.continue_token).filter(|token| !token.is_empty());
        let reins = Reins { orders: self.orders.clone(), progress };
        migrate(&self.context.cluster, &self.resource, options, reins).await
    }

    async fn wait_for_window(&mut self) {
        while let Some(wait) = window::wait(&self.context.config.windows, Timestamp::now()) {
            if *self.orders.borrow() == Order::Stop {
                return;
            }
            self.write(&running(Some("waiting for a maintenance window"))).await;
            let wait = Duration::try_from(wait).unwrap_or(Duration::from_secs(60));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = self.orders.changed() => {}
            }
        }
    }

    /// Writes down how it ended. A migration that was stopped was deleted, or another controller goes on with it.
    async fn finish(&mut self, report: Result<MigrationReport, MigrationError>, progress: &Progress) {
        let (result, words) = match &report {
            Ok(report) => match describe(report) {
                Some(ending) => ending,
                None => return,
            },
            Err(MigrationError::Died(_)) => return,
            Err(error) => (MigrationCondition::FAILED, error.to_string()),
        };
        tracing::info!("{}: {result}: {words}", self.resource);
        let trimmed = report.as_ref().ok().and_then(|report| report.trimmed_to.as_ref());
        if let Some(versions) = trimmed {
            tracing::info!("{}: status.storedVersions is now {versions:?}", self.resource);
        }
        self.context.metrics.ended(&self.resource, result, progress);
        let mut status = StorageVersionMigrationStatus {
            conditions: vec![
                condition(MigrationCondition::RUNNING, ConditionStatus::False, ""),
                condition(result, ConditionStatus::True, &words),
            ],
            reason: words,
            counts: Some(progress.counts),
            ..StorageVersionMigrationStatus::default()
        };
        if let Ok(report) = report {
            status.target_storage_version_hash = report.target.as_ref().map(|target| target.hash.clone());
            status.agreement_revision = report.target.and_then(|target| target.revision);
            status.failures = report.run.map(|run| run.failures).unwrap_or_default();
        }
        self.write(&json!(status)).await;
    }

    /// Writes to the status, again and again while the server cannot be reached.
    async fn write(&mut self, status: &Value) {
        let name = self.name();
        let patch = json!({"metadata": {"uid": self.migration.metadata.uid}, "status": status});
        for tries in 0u32.. {
            let written =
                self.context.migrations().patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            let Err(failure) = written.map_err(Failure::from) else { return };
            let is_final = matches!(failure.code, 400..=428 | 430..=499);
            if is_final || *self.orders.borrow() == Order::Stop {
                tracing::debug!("{name}: {failure}");
                return;
            }
            tokio::time::sleep(restow_agreement::migrate::verdict::wait_after(tries)).await;
        }
    }

    fn name(&self) -> String {
        self.migration.metadata.name.clone().unwrap_or_default()
    }
}

/// How a migration ended, for its condition; nothing where it did not end.
fn describe(report: &MigrationReport) -> Option<(&'static str, String)> {
    let failed = |words: String| Some((MigrationCondition::FAILED, words));
    match &report.outcome {
        Outcome::Succeeded => Some((MigrationCondition::SUCCEEDED, "every object is in the target version".to_owned())),
        Outcome::SomeFailed => {
            let run = report.run.as_ref()?;
            let quote = |failure: &restow_api::migration::MigrationFailure| {
                format!("{}/{}: {} {}", failure.namespace, failure.name, failure.code, failure.message)
            };
            let first: Vec<String> = run.failures.iter().take(QUOTED_FAILURES).map(quote).collect();
            failed(format!("{} objects could not be rewritten: {}", run.progress.counts.failed, first.join("; ")))
        }
        Outcome::NoAgreement(words) | Outcome::AgreementChanged(words) | Outcome::DefinitionChanged(words) => {
            failed(words.clone())
        }
        Outcome::NeverSettles => failed("objects keep changing their stored version".to_owned()),
        Outcome::ResourceGone => failed("the resource is not served any more".to_owned()),
        Outcome::Stopped(_) | Outcome::Asked => None,
    }
}

fn running(waiting: Option<&str>) -> Value {
    let words = waiting.unwrap_or_default();
    json!({"conditions": [condition(MigrationCondition::RUNNING, ConditionStatus::True, words)], "reason": words})
}

fn condition(condition_type: &str, status: ConditionStatus, message: &str) -> MigrationCondition {
    MigrationCondition {
        condition_type: condition_type.to_owned(),
        status,
        last_update_time: Some(Time::new(Timestamp::now())),
        reason: String::new(),
        message: message.to_owned(),
    }
}

/// Writes progress down from time to time, so that whoever comes next can go on, and everybody can see it.
async fn save(context: Context, name: String, resource: GroupResource, mut seen: watch::Receiver<Progress>) {
    loop {
        tokio::time::sleep(SAVE_INTERVAL).await;
        if seen.changed().await.is_err() {
            return;
        }
        let progress = seen.borrow_and_update().clone();
        context.metrics.progressed(&resource, &progress);
        let reason = progress.waiting.clone().unwrap_or_default();
        let status = json!({"status": {"counts": progress.counts, "reason": reason}});
        let api = context.migrations();
        let mut saved = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await;
        // Only the first pass is worth going on with; a later one is a check, and has to begin at the beginning.
        if saved.is_ok() && progress.pass == 1 {
            let token = json!({"spec": {"continueToken": progress.continue_token.unwrap_or_default()}});
            saved = api.patch(&name, &PatchParams::default(), &Patch::Merge(&token)).await;
        }
        if let Err(error) = saved {
            tracing::debug!("{name}: cannot write its progress down: {error}");
        }
    }
}
