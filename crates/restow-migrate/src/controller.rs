//! The controller: watches a cluster and migrates resources whose storage version has changed.
//!
//! One loop observes, decides (`restow_rules::trigger`) and executes. Events and timers only enqueue resources, and each
//! reconcile reads the state again. Migrations run in tasks of their own. Only the holder of the lease acts, but two that
//! act at once do no harm.

mod effects;
mod events;
mod failures;
#[cfg(test)]
pub(crate) mod fake_api;
mod in_tree;
mod leader_election;
mod metrics;
mod observe;
mod paged_list;
mod queue;
mod run_control;
mod worker;
mod workers;

pub use metrics::Metrics;

use crate::api_servers::ResourceObservation;
use crate::backoff::Backoff;
use crate::cluster::Cluster;
use crate::migration::MigrationOptions;
use crate::request::RequestError;
use events::{EventReason, Events};
use in_tree::InTree;
use jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ApiResource};
use kube::core::{GroupVersionKind, Object};
use leader_election::LeaseTerm;
use observe::{ClusterView, SeenMarks};
use queue::{ReconcileQueue, ReconcileRequest};
use restow_api::GroupResource;
use restow_api::migration::{
    GROUP, StorageState, StorageStateSpec, StorageStateStatus, StorageVersionMigration, StorageVersionMigrationSpec,
    StorageVersionMigrationStatus,
};
use restow_rules::migrate::maintenance_window::MaintenanceWindow;
use restow_rules::migrate::marks::{Holder, HolderKind};
use restow_rules::trigger::{TriggerEffect, TriggerPolicy, TriggerSnapshot, decide};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use workers::Workers;

/// The configuration of a controller.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The identity of this controller among others.
    pub identity: String,
    /// The namespace of its lease.
    pub namespace: String,
    /// The resync period: how often all resources are reconciled without an event.
    pub poll_interval: Duration,
    /// How objects are rewritten.
    pub migration: MigrationOptions,
    /// How many resources are migrated at the same time.
    pub at_once: usize,
    /// The maintenance windows in which objects may be rewritten; at any time if empty.
    pub windows: Vec<MaintenanceWindow>,
    /// Which resources are managed.
    pub resources: ResourceFilter,
    /// Whether leader election is needed.
    pub election: Election,
    /// The lease duration.
    pub lease_duration: Duration,
}

/// Which resources a controller manages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResourceFilter {
    /// All of them.
    #[default]
    All,
    /// Custom resources only.
    Custom,
}

/// Whether leader election is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Election {
    /// Other controllers may run; the holder of the lease acts.
    #[default]
    Lease,
    /// This controller is the only one.
    Alone,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        ControllerConfig {
            identity: "restow".to_owned(),
            namespace: "restow-system".to_owned(),
            poll_interval: Duration::from_secs(600),
            migration: MigrationOptions::default(),
            at_once: 4,
            windows: Vec::new(),
            resources: ResourceFilter::All,
            election: Election::Lease,
            lease_duration: Duration::from_secs(15),
        }
    }
}

pub(crate) type MigrationObject = Object<StorageVersionMigrationSpec, StorageVersionMigrationStatus>;
pub(crate) type StateObject = Object<StorageStateSpec, StorageStateStatus>;

/// What all parts of a controller share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) cluster: Cluster,
    pub(crate) config: ControllerConfig,
    pub(crate) metrics: Metrics,
    pub(crate) events: Events,
    pub(crate) in_tree: InTree,
    pub(crate) term: LeaseTerm,
}

impl Context {
    pub(crate) fn migrations(&self) -> Api<MigrationObject> {
        Api::all_with(self.cluster.client().clone(), &migration_api())
    }

    /// The holder of the marks on CRDs.
    fn holder(&self) -> Holder {
        Holder::new(HolderKind::Controller, &self.config.identity)
    }

    pub(crate) fn states(&self) -> Api<StateObject> {
        Api::all_with(self.cluster.client().clone(), &state_api())
    }
}

pub(crate) fn migration_api() -> ApiResource {
    let kind = GroupVersionKind::gvk(GROUP, "v1alpha1", StorageVersionMigration::KIND);
    ApiResource::from_gvk_with_plural(&kind, StorageVersionMigration::RESOURCE)
}

pub(crate) fn state_api() -> ApiResource {
    let kind = GroupVersionKind::gvk(GROUP, "v1alpha1", StorageState::KIND);
    ApiResource::from_gvk_with_plural(&kind, StorageState::RESOURCE)
}

/// Runs until it is stopped. Then it completes the requests in flight and releases the lease.
pub async fn run(cluster: Cluster, config: ControllerConfig, metrics: Metrics, stop: watch::Receiver<bool>) {
    let events = Events::new(cluster.client().clone(), &config.identity);
    let context = Context { cluster, config, metrics, events, in_tree: InTree::default(), term: LeaseTerm::default() };
    match context.config.election {
        Election::Alone => reconcile_loop(context, stop).await,
        Election::Lease => leader_election::run(context, stop).await,
    }
}

/// Reconciles until it is stopped.
async fn reconcile_loop(context: Context, mut stop: watch::Receiver<bool>) {
    context.metrics.set_leading(true);
    let queue = Arc::new(ReconcileQueue::default());
    let watching = queue::watch_cluster(&context, Arc::clone(&queue));
    let mut workers = Workers::new(context.clone(), Arc::clone(&queue));
    let in_tree = restow_host::spawn(in_tree::follow(context.clone(), Arc::clone(&queue)));
    let mut marks = SeenMarks::default();
    let mut backoff = None;
    let mut next_poll = tokio::time::Instant::now();
    loop {
        let request = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            () = tokio::time::sleep_until(next_poll) => {
                workers.forget_ended();
                ReconcileRequest::all()
            }
            request = queue.next() => request,
        };
        match reconcile(&context, &queue, (&mut workers, &mut marks), &request).await {
            Ok(due) => {
                backoff = None;
                if request.is_all() {
                    next_poll = tokio::time::Instant::now() + context.config.poll_interval;
                }
                queue.requeue_at(due);
            }
            Err(failure) => {
                // Right after the start, what was just installed may not be served yet.
                if backoff.is_none() {
                    tracing::debug!("cannot reconcile the cluster, will retry: {failure}");
                } else {
                    tracing::warn!("cannot reconcile the cluster: {failure}");
                }
                queue.enqueue(request);
                let wait = backoff.get_or_insert_with(Backoff::of_reconcile).next_delay();
                tokio::select! {
                    biased;
                    () = tokio::time::sleep(wait) => {}
                    () = stopped(&mut stop) => break,
                }
            }
        }
    }
    watching.abort();
    in_tree.abort();
    workers.stop_all().await;
    context.metrics.set_leading(false);
}

pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A dropped sender means stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Reconciles the requested resources: observes, decides, executes. Returns when to reconcile again.
async fn reconcile(
    context: &Context,
    queue: &ReconcileQueue,
    (workers, marks): (&mut Workers, &mut SeenMarks),
    request: &ReconcileRequest,
) -> Result<Option<Timestamp>, RequestError> {
    let view = observe::observe(context, request).await?;
    let policy = TriggerPolicy::for_poll_interval(
        SignedDuration::try_from(context.config.poll_interval).unwrap_or(SignedDuration::from_mins(10)),
    );
    let mut done = ReconcileResult::default();
    for resource in view.resources(context.config.resources) {
        let crd = view.crd(&resource);
        let Some(seen) = view.observation.resource(&resource, crd) else { continue };
        // The settling time of a migration counts from here.
        view.observation.agreed_since(&context.cluster, &seen, crd);
        report_disagreement(context, &view, &resource, &seen).await;
        let since = queue.take_observed(&resource, &seen.resource.kind);
        let encodings = since.encodings.clone();
        let snapshot = view.snapshot(&resource, &seen, since, policy);
        match reconcile_resource(context, &view, &seen, &snapshot, &mut done).await {
            Ok(()) => queue.looked(resource, view.asked_at),
            Err(failure) => {
                // A conflict or a server error. What follows depends on this effect, so the resource is requeued.
                tracing::debug!("{resource}: {failure}");
                queue.restore_observed(&resource, encodings);
                queue.enqueue(ReconcileRequest::resource(resource));
            }
        }
    }
    let command = view.command();
    let live = if done.changed { observe::migrations(context).await? } else { view.migrations.clone() };
    context.term.check()?;
    workers.reconcile(live, command);
    let recheck = observe::remove_stale_marks(context, &view, &workers.resources(), marks).await?;
    // A server that is back, or has caught up, causes no event.
    let again = match (view.observation.every_server_answered(), view.observation.is_complete()) {
        (false, _) => Some(SILENT_SERVER_WAIT),
        (true, is_complete) => (done.has_disagreement || !is_complete).then_some(DISAGREEMENT_WAIT),
    };
    Ok(again
        .and_then(|wait| restow_host::now().checked_add(wait).ok())
        .into_iter()
        .chain(done.due)
        .chain(recheck)
        .min())
}

/// The requeue delay if a server did not answer.
const SILENT_SERVER_WAIT: SignedDuration = SignedDuration::from_secs(5);
/// The requeue delay if the servers disagree. The restart of a server causes an event.
const DISAGREEMENT_WAIT: SignedDuration = SignedDuration::from_secs(30);

/// The result of one reconcile.
#[derive(Default)]
struct ReconcileResult {
    due: Option<Timestamp>,
    /// Whether migrations were created or deleted.
    changed: bool,
    has_disagreement: bool,
}

/// Decides and executes for one resource.
async fn reconcile_resource(
    context: &Context,
    view: &ClusterView,
    seen: &ResourceObservation,
    snapshot: &TriggerSnapshot,
    done: &mut ReconcileResult,
) -> Result<(), RequestError> {
    done.has_disagreement |= seen.agreed().is_none();
    let mut unmigrated_since = snapshot.storage_state.as_ref().and_then(|state| state.unmigrated_since);
    let mut outcome = Ok(());
    for effect in decide(snapshot, restow_host::now()) {
        if let TriggerEffect::RequeueAt(time) = effect {
            done.due = done.due.into_iter().chain([time]).min();
            continue;
        }
        if let TriggerEffect::CreateStorageState(status) | TriggerEffect::UpdateStorageState(status) = &effect {
            unmigrated_since = status.unmigrated_since;
        }
        done.changed |= matches!(effect, TriggerEffect::StartMigration { .. } | TriggerEffect::RemoveMigration { .. });
        outcome = effects::execute(context, view, seen, effect).await;
        if outcome.is_err() {
            break;
        }
    }
    let resource = seen.resource.resource.group_resource();
    context.metrics.set_unmigrated_since(&resource, unmigrated_since.map(|since| since.timestamp()));
    outcome
}

/// Logs, and publishes as an Event, which server stores what, once for each disagreement.
async fn report_disagreement(
    context: &Context,
    view: &ClusterView,
    resource: &GroupResource,
    seen: &ResourceObservation,
) {
    let disagreement = seen.disagreement();
    if !context.metrics.set_agreement(resource, disagreement.as_deref()) {
        return;
    }
    let words = disagreement.unwrap_or_default();
    tracing::warn!("{resource}: {words}");
    let uid = view.states.get(&StorageState::name_for(resource)).and_then(|state| state.metadata.uid.clone());
    let mut about = vec![events::state_reference(resource, uid)];
    about.extend(view.crd(resource).map(events::crd_reference));
    context.events.publish(EventReason::Disagreement, &words, about, None).await;
}

/// The resources of migrations that wait or run.
pub(crate) fn resources_of(migrations: &[MigrationObject]) -> BTreeSet<GroupResource> {
    let live = migrations.iter().filter(|migration| observe::known(migration).is_live());
    live.filter_map(|migration| {
        GroupResource::new(&migration.spec.resource.group, &migration.spec.resource.resource).ok()
    })
    .collect()
}
