//! The worker of one migration, from its first condition to its last.

use super::events::{EventReason, crd_reference, migration_reference};
use super::observe::wire;
use super::run_control::within;
use super::{Context, MigrationObject, failures};
use crate::backoff::Backoff;
use crate::crd;
use crate::migration::{
    EarlierAttempt, MigrationChannels, MigrationError, MigrationOutcome, MigrationReport, MigrationTarget, migrate,
};
use crate::request::RequestError;
use crate::runner::{Progress, RunControl};
use crate::step::MigrationStep;
use jiff::SignedDuration;
use kube::api::{Patch, PatchParams};
use restow_api::internal_apiserver::ConditionStatus;
use restow_api::migration::{
    MigrationCondition, MigrationCounts, MigrationFailure, SettledObjects, StorageVersionMigrationStatus,
};
use restow_api::{GroupResource, Time};
use restow_rules::migrate::maintenance_window;
use restow_rules::trigger::Backoff as WaitPolicy;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The worker of one migration.
pub(super) struct MigrationWorker {
    context: Context,
    migration: MigrationObject,
    resource: GroupResource,
    control: watch::Receiver<RunControl>,
    /// A permit allows to rewrite. A worker that waits holds none.
    slots: Arc<Semaphore>,
    continue_token: Option<String>,
    /// How many attempts in a row have ended with waiting and rewritten nothing.
    fruitless: u32,
}

/// How often progress is saved.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);
/// The backoff of a migration that waits for a server, an agreement or a webhook.
const WAIT: WaitPolicy = WaitPolicy { first: SignedDuration::from_secs(5), cap: SignedDuration::from_secs(30) };
/// How long a worker keeps its permit while a webhook cannot be reached. After an attempt that failed for this reason it is
/// zero.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(4);
/// The same while a server is overloaded.
const OVERLOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How many failures a condition quotes.
const QUOTED_FAILURES: usize = 3;

impl MigrationWorker {
    pub(super) fn new(
        context: Context,
        migration: MigrationObject,
        resource: GroupResource,
        control: watch::Receiver<RunControl>,
        slots: Arc<Semaphore>,
    ) -> Self {
        let continue_token = Some(migration.spec.continue_token.clone()).filter(|token| !token.is_empty());
        MigrationWorker { context, migration, resource, control, slots, continue_token, fruitless: 0 }
    }

    /// Records that a migration cannot run at all.
    pub(super) async fn refuse(context: Context, migration: MigrationObject, words: String) {
        let name = migration.metadata.name.clone().unwrap_or_default();
        tracing::warn!("{name}: {words}");
        let failed = condition(MigrationCondition::FAILED, ConditionStatus::True, &words);
        let status = json!({"conditions": [failed], "reason": words});
        let patch = json!({"metadata": {"uid": migration.metadata.uid}, "status": status});
        let written = context.migrations().patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        if let Err(error) = written {
            tracing::debug!("{name}: {error}");
        }
    }

    pub(super) async fn run(mut self) {
        let (progress, _seen) = watch::channel(Progress::default());
        let started = Instant::now();
        let report = self.attempts(&progress).await;
        let last = progress.borrow().clone();
        if let Some(report) = report {
            self.finish(report, &last, started.elapsed()).await;
        }
    }

    /// Attempts until there is a result. A migration that is stopped has none, unless it has succeeded: it was deleted, or
    /// another controller continues it. While it waits, it holds neither a permit nor a mark.
    async fn attempts(
        &mut self,
        progress: &watch::Sender<Progress>,
    ) -> Option<Result<MigrationReport, MigrationError>> {
        let mut told = None;
        let report = loop {
            self.wait_until_allowed(progress).await;
            let Some(slot) = self.slot().await else { break None };
            if self.why_not_now().is_some() {
                continue;
            }
            told = told.or_else(|| Some(self.report_start()));
            let report = self.attempt(progress).await;
            drop(slot);
            let has_succeeded = matches!(&report, Ok(MigrationReport { outcome: MigrationOutcome::Succeeded, .. }));
            if *self.control.borrow() == RunControl::Stop && !has_succeeded {
                break None;
            }
            match report {
                Ok(MigrationReport { outcome: MigrationOutcome::Stopped(token), .. }) => self.continue_token = token,
                Ok(report) => match wait_reason(&report.outcome, self.target_policy()) {
                    Some(waiting) => self.wait(&report, waiting, progress).await,
                    None => break Some(Ok(report)),
                },
                failed => break Some(failed),
            }
        };
        if let Some(told) = told {
            // If it panicked, there is nothing left to wait for.
            let _ = told.await;
        }
        report
    }

    fn target_policy(&self) -> TargetPolicy {
        if MigrationTarget::of(&wire(&self.migration)).is_some() {
            TargetPolicy::OneVersion
        } else {
            TargetPolicy::AnyAgreedVersion
        }
    }

    /// Waits for a permit; `None` if the migration is stopped meanwhile.
    async fn slot(&mut self) -> Option<OwnedSemaphorePermit> {
        let slots = Arc::clone(&self.slots);
        let mut control = self.control.clone();
        tokio::select! {
            biased;
            // A dropped sender means stop too.
            _ = control.wait_for(|command| *command == RunControl::Stop) => None,
            slot = slots.acquire_owned() => slot.ok(),
        }
    }

    /// Publishes the Event in a task, so that rewriting need not wait for it.
    fn report_start(&self) -> JoinHandle<()> {
        let target = wire(&self.migration).target_hash().map(|hash| format!(" to {hash}")).unwrap_or_default();
        let words = format!("rewriting the stored objects of {}{target}", self.resource);
        restow_host::spawn(publish(self.context.clone(), self.migration.clone(), EventReason::Started, words))
    }

    /// Records why the migration waits, and waits, longer each time that an attempt rewrote nothing.
    async fn wait(&mut self, report: &MigrationReport, waiting: WaitReason, progress: &watch::Sender<Progress>) {
        tracing::info!("{}: {}", self.resource, waiting.words);
        if let ResumePoint::At(token) = waiting.resume {
            self.continue_token = token;
        }
        let passes = report.run.iter().flat_map(|run| &run.passes);
        let is_fruitless =
            passes.map(|reconcile| reconcile.rewritten + reconcile.current + reconcile.gone).sum::<u64>() == 0;
        self.fruitless = if is_fruitless { self.fruitless.saturating_add(1) } else { 0 };
        let counts = progress.borrow().counts;
        self.write(&waiting_status(MigrationCondition::WAITING, &waiting.words, counts)).await;
        let wait = Duration::try_from(WAIT.after(self.fruitless)).unwrap_or_default();
        tokio::select! {
            biased;
            () = tokio::time::sleep(wait) => {}
            _ = self.control.changed() => {}
        }
    }

    async fn attempt(&mut self, progress: &watch::Sender<Progress>) -> Result<MigrationReport, MigrationError> {
        self.write(&running()).await;
        MigrationStep::Running.log(&self.resource);
        let wire = wire(&self.migration);
        let mut options = self.context.config.migration.clone();
        options.expected = MigrationTarget::of(&wire);
        options.holder = Some(self.context.holder());
        options.run.continue_token.clone_from(&self.continue_token);
        options.run.webhook_timeout = if self.fruitless == 0 { WEBHOOK_TIMEOUT } else { Duration::ZERO };
        options.run.overload_timeout = OVERLOAD_TIMEOUT;
        options.settled = EarlierAttempt::of(&wire);
        let (end, ended) = oneshot::channel();
        let seen = progress.subscribe();
        let saver = restow_host::spawn(save(self.context.clone(), self.name(), self.resource.clone(), seen, ended));
        let (control, watcher) = within(self.context.config.windows.clone(), self.control.clone());
        let report =
            migrate(&self.context.cluster, &self.resource, options, MigrationChannels { control, progress }).await;
        watcher.abort();
        // The last save must not overwrite the next status. A server that hangs is not waited for.
        let _ = end.send(());
        let abort = saver.abort_handle();
        if tokio::time::timeout(SAVE_INTERVAL, saver).await.is_err() {
            abort.abort();
        }
        report
    }

    /// Waits while the migration is paused or no maintenance window is open.
    async fn wait_until_allowed(&mut self, progress: &watch::Sender<Progress>) {
        while let Some((reason, words, wait)) = self.why_not_now() {
            let counts = progress.borrow().counts;
            self.write(&waiting_status(reason, words, counts)).await;
            tokio::select! {
                biased;
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
                _ = self.control.changed() => {}
            }
        }
    }

    /// Why nothing may be rewritten now, and the maximum wait; `None` if it may, or if the migration is stopped.
    fn why_not_now(&mut self) -> Option<(&'static str, &'static str, Option<Duration>)> {
        let command = *self.control.borrow_and_update();
        let window = maintenance_window::wait(&self.context.config.windows, restow_host::now());
        let wait = window.and_then(|wait| Duration::try_from(wait).ok());
        match (command, &window) {
            (RunControl::Stop, _) | (RunControl::Run, None) => None,
            (RunControl::Pause, _) => {
                Some((MigrationCondition::PAUSED, "paused by the annotation restow.dev/paused", None))
            }
            (RunControl::Run, Some(_)) => Some((MigrationCondition::WAITING, "waiting for a maintenance window", wait)),
        }
    }

    /// Records the result.
    async fn finish(&mut self, report: Result<MigrationReport, MigrationError>, progress: &Progress, took: Duration) {
        let (result, mut words) = match &report {
            Ok(report) => match describe(report) {
                Some(ending) => ending,
                None => return,
            },
            Err(error) => (MigrationCondition::FAILED, error.to_string()),
        };
        tracing::info!("{}: {result}: {words}", self.resource);
        self.context.metrics.ended(&self.resource, result, progress, took);
        let run = report.as_ref().ok().and_then(|report| report.run.as_ref());
        let all = run.map(|run| run.failures.as_slice()).unwrap_or_default();
        let (listed, rest) = all.split_at(all.len().min(failures::IN_STATUS));
        if let Some(more) = failures::write_down(&self.context, &self.migration, rest, progress.counts.failed).await {
            words = format!("{words}; {more}");
        }
        let status = ended(&report, (result, &words), progress, listed);
        self.write(&status).await;
        MigrationStep::Ended.log(&self.resource);
        let happened = if result == MigrationCondition::FAILED { EventReason::Failed } else { EventReason::Succeeded };
        publish(self.context.clone(), self.migration.clone(), happened, words).await;
        if let Some(versions) = report.ok().and_then(|report| report.trimmed_to) {
            let words = format!("status.storedVersions is now {versions:?}");
            tracing::info!("{}: {words}", self.resource);
            publish(self.context.clone(), self.migration.clone(), EventReason::Trimmed, words).await;
        }
    }

    /// Writes the status. Retries while the server cannot be reached.
    async fn write(&mut self, status: &Value) {
        let name = self.name();
        let patch = json!({"metadata": {"uid": self.migration.metadata.uid}, "status": status});
        let mut backoff = Backoff::of_request();
        loop {
            let written =
                self.context.migrations().patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            let Err(failure) = written.map_err(RequestError::from) else { return };
            let is_final = matches!(failure.code, 400..=428 | 430..=499);
            if is_final || *self.control.borrow() == RunControl::Stop {
                tracing::debug!("{name}: {failure}");
                return;
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    fn name(&self) -> String {
        self.migration.metadata.name.clone().unwrap_or_default()
    }
}

/// Publishes an Event at the migration and at the CRD of its resource.
async fn publish(context: Context, migration: MigrationObject, happened: EventReason, words: String) {
    let mut about = vec![migration_reference(&migration)];
    let named = &migration.spec.resource;
    if let Ok(resource) = GroupResource::new(&named.group, &named.resource) {
        let crd = crd::read(context.cluster.client(), &resource).await;
        about.extend(crd.ok().flatten().as_ref().map(crd_reference));
    }
    context.events.publish(happened, &words, about, Some(migration_reference(&migration))).await;
}

/// The last status of a migration.
fn ended(
    report: &Result<MigrationReport, MigrationError>,
    (result, words): (&str, &str),
    progress: &Progress,
    failures: &[MigrationFailure],
) -> Value {
    let mut status = json!(StorageVersionMigrationStatus {
        conditions: vec![
            condition(MigrationCondition::RUNNING, ConditionStatus::False, ""),
            condition(result, ConditionStatus::True, words),
        ],
        reason: words.to_owned(),
        counts: Some(progress.counts),
        failures: failures.to_vec(),
        settled: report.as_ref().ok().and_then(settled),
        ..StorageVersionMigrationStatus::default()
    });
    if let Ok(MigrationReport { target: Some(target), .. }) = report {
        status["targetStorageVersionHash"] = json!(target.hash);
        status["agreementRevision"] = json!(target.revision);
    }
    // Removes what an earlier attempt left.
    for field in ["failures", "settled"] {
        if status.get(field).is_none() {
            status[field] = Value::Null;
        }
    }
    status
}

/// What is verified of the objects that did not fail, if all failures fit into the status.
fn settled(report: &MigrationReport) -> Option<SettledObjects> {
    let run = report.run.as_ref().filter(|run| run.failures.len() <= failures::IN_STATUS)?;
    let is_usable = report.outcome == MigrationOutcome::SomeFailed;
    is_usable.then(|| EarlierAttempt::by_run(run, report.crd_generation)).flatten()
}

/// The final condition of a migration; `None` if it has not ended.
pub(super) fn describe(report: &MigrationReport) -> Option<(&'static str, String)> {
    let failed = |words: String| Some((MigrationCondition::FAILED, words));
    match &report.outcome {
        MigrationOutcome::Succeeded => {
            Some((MigrationCondition::SUCCEEDED, "every object is in the target version".to_owned()))
        }
        MigrationOutcome::SomeFailed => {
            let run = report.run.as_ref()?;
            let quote = |failure: &MigrationFailure| {
                format!("{}/{}: {} {}", failure.namespace, failure.name, failure.code, failure.message)
            };
            let first: Vec<String> = run.failures.iter().take(QUOTED_FAILURES).map(quote).collect();
            failed(format!("{} objects could not be rewritten: {}", run.progress.counts.failed, first.join("; ")))
        }
        MigrationOutcome::NoAgreement(words)
        | MigrationOutcome::AgreementChanged(words)
        | MigrationOutcome::CrdChanged(words) => failed(words.clone()),
        // The controller queries each API server, so this does not occur.
        MigrationOutcome::Unproven(words) => failed(words.clone()),
        MigrationOutcome::NotManaged(words) => failed(words.clone()),
        MigrationOutcome::ServerUnresponsive { words, .. }
        | MigrationOutcome::NotReady { words, .. }
        | MigrationOutcome::WebhookDown { words, .. }
        | MigrationOutcome::Overloaded { words, .. } => failed(words.clone()),
        MigrationOutcome::NeverSettles => failed("objects keep changing their stored version".to_owned()),
        MigrationOutcome::ResourceGone => failed("the resource is not served any more".to_owned()),
        MigrationOutcome::Stopped(_) | MigrationOutcome::DryRunDone => None,
    }
}

/// Why a migration has to wait.
pub(super) struct WaitReason {
    words: String,
    resume: ResumePoint,
}

/// Where a migration continues after it had to wait.
pub(super) enum ResumePoint {
    /// Where the last attempt began.
    AsBefore,
    /// At this token, or at the beginning.
    At(Option<String>),
}

/// Whether a migration is for one version only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetPolicy {
    /// Its annotations name the version.
    OneVersion,
    /// For whatever version the servers agree on: a migration that names only a resource.
    AnyAgreedVersion,
}

/// Why an attempt that has not ended the migration waits; `None` if it has ended it. A migration for any agreed version
/// starts over when the agreement changes, because its creator waits for its success.
pub(super) fn wait_reason(outcome: &MigrationOutcome, target_policy: TargetPolicy) -> Option<WaitReason> {
    match outcome {
        MigrationOutcome::AgreementChanged(words) | MigrationOutcome::CrdChanged(words)
            if target_policy == TargetPolicy::AnyAgreedVersion =>
        {
            Some(WaitReason { words: format!("starts over: {words}"), resume: ResumePoint::At(None) })
        }
        MigrationOutcome::NoAgreement(words) => {
            Some(WaitReason { words: words.clone(), resume: ResumePoint::AsBefore })
        }
        MigrationOutcome::ServerUnresponsive { words, continue_token }
        | MigrationOutcome::NotReady { words, continue_token }
        | MigrationOutcome::WebhookDown { words, continue_token }
        | MigrationOutcome::Overloaded { words, continue_token } => {
            Some(WaitReason { words: words.clone(), resume: ResumePoint::At(continue_token.clone()) })
        }
        _ => None,
    }
}

fn running() -> Value {
    json!({"conditions": [condition(MigrationCondition::RUNNING, ConditionStatus::True, "")], "reason": ""})
}

/// The status of a migration that does nothing now, for this reason.
fn waiting_status(reason: &str, words: &str, counts: MigrationCounts) -> Value {
    let waiting = MigrationCondition {
        reason: reason.to_owned(),
        ..condition(MigrationCondition::RUNNING, ConditionStatus::False, words)
    };
    json!({"conditions": [waiting], "reason": words, "counts": counts})
}

fn condition(condition_type: &str, status: ConditionStatus, message: &str) -> MigrationCondition {
    MigrationCondition {
        condition_type: condition_type.to_owned(),
        status,
        last_update_time: Some(Time::new(restow_host::now())),
        reason: String::new(),
        message: message.to_owned(),
    }
}

/// Saves progress periodically, for the next controller and for users.
async fn save(
    context: Context,
    name: String,
    resource: GroupResource,
    mut seen: watch::Receiver<Progress>,
    mut ended: oneshot::Receiver<()>,
) {
    let mut before: Option<(Progress, Instant)> = None;
    loop {
        let next = async {
            tokio::time::sleep(SAVE_INTERVAL).await;
            seen.changed().await
        };
        let is_over = tokio::select! {
            biased;
            _ = &mut ended => true,
            changed = next => changed.is_err(),
        };
        if is_over {
            return;
        }
        let progress = seen.borrow_and_update().clone();
        context.metrics.progressed(&resource, &progress, pace(before.as_ref(), &progress));
        before = Some((progress.clone(), Instant::now()));
        let reason = progress.waiting.clone().unwrap_or_default();
        let status = json!({"status": {"counts": progress.counts, "reason": reason}});
        let api = context.migrations();
        let mut saved = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await;
        // Only the first pass is resumed; a later one is a check, and starts at the beginning.
        if saved.is_ok() && progress.pass == 1 {
            let token = json!({"spec": {"continueToken": progress.continue_token.unwrap_or_default()}});
            saved = api.patch(&name, &PatchParams::default(), &Patch::Merge(&token)).await;
        }
        if let Err(error) = saved {
            tracing::debug!("{name}: cannot write its progress down: {error}");
        }
    }
}

/// Objects per second since the last save.
fn pace(before: Option<&(Progress, Instant)>, now: &Progress) -> Option<f64> {
    let (before, at) = before.filter(|(before, _)| before.pass == now.pass)?;
    let done = now.done_in_pass.saturating_sub(before.done_in_pass);
    Some(done as f64 / at.elapsed().as_secs_f64().max(0.001))
}

#[cfg(test)]
mod tests;
