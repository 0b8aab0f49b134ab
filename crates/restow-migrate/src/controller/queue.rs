//! The reconcile queue: what has to be reconciled, and which versions the watches have shown meanwhile.
//!
//! A request names resources and nothing else. Only the versions that watches have shown are kept, because objects may have
//! been written in a version that came and went between two reconciles.

use super::observe::SinceLastPass;
use super::paged_list::{crds, crds_watch, objects_watch};
use super::{Context, MigrationObject, migration_api};
use crate::api_servers::hash_of;
use crate::cluster::API_SERVER_LEASES;
use crate::crd::{self, Crd};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ApiResource};
use kube::core::{GroupVersionKind, Object};
use kube::runtime::{WatchStreamExt, watcher};
use restow_api::GroupResource;
use restow_api::internal_apiserver::{StorageVersion, StorageVersionStatus};
use restow_host::{Moment, inherit};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A request to reconcile resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReconcileRequest {
    all: bool,
    resources: BTreeSet<GroupResource>,
}

/// How long requests are collected at least.
const MERGED: Duration = Duration::from_millis(10);
/// The shortest time between two reconciles.
const PAUSE: Duration = Duration::from_millis(100);

/// Collects requests and observed versions.
#[derive(Default)]
pub(super) struct ReconcileQueue {
    state: Mutex<State>,
    notify: Notify,
}

#[derive(Default)]
struct State {
    pending: ReconcileRequest,
    due: Option<Timestamp>,
    /// When the last request was returned.
    last: Option<Instant>,
    /// The encoding versions that watches have shown, by resource.
    encodings: BTreeMap<GroupResource, BTreeSet<String>>,
    /// The resources whose StorageVersions were watched without a gap since the last reconcile.
    followed: BTreeSet<GroupResource>,
    /// When each resource was last reconciled, with the observed versions written to its StorageState.
    looked_at: BTreeMap<GroupResource, Moment>,
}

impl ReconcileRequest {
    pub(super) fn all() -> Self {
        ReconcileRequest { all: true, resources: BTreeSet::new() }
    }

    pub(super) fn resource(resource: GroupResource) -> Self {
        ReconcileRequest { all: false, resources: BTreeSet::from([resource]) }
    }

    pub(super) fn is_all(&self) -> bool {
        self.all
    }

    pub(super) fn includes(&self, resource: &GroupResource) -> bool {
        self.all || self.resources.contains(resource)
    }

    pub(super) fn resources(&self) -> &BTreeSet<GroupResource> {
        &self.resources
    }

    fn is_empty(&self) -> bool {
        !self.all && self.resources.is_empty()
    }

    fn add(&mut self, other: ReconcileRequest) {
        self.all |= other.all;
        self.resources.extend(other.resources);
    }
}

impl ReconcileQueue {
    pub(super) fn enqueue(&self, request: ReconcileRequest) {
        self.lock().pending.add(request);
        self.notify.notify_one();
    }

    /// Requests a reconcile of everything at this time, if none is due earlier.
    pub(super) fn requeue_at(&self, due: Option<Timestamp>) {
        let mut state = self.lock();
        state.due = state.due.into_iter().chain(due).min();
    }

    /// Waits for the next request. The first one is returned after a few milliseconds, and the next ones [`PAUSE`] apart: when an API
    /// server starts, it reports dozens of resources, one after the other.
    pub(super) async fn next(&self) -> ReconcileRequest {
        loop {
            let due = self.lock().due.map(|due| due.duration_since(restow_host::now()));
            let due = due.map(|due| Duration::try_from(due).unwrap_or_default());
            tokio::select! {
                biased;
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {
                    self.lock().due = None;
                    return ReconcileRequest::all();
                }
                () = self.notify.notified() => {}
            }
            let earliest = self.lock().last.map_or(Duration::ZERO, |last| PAUSE.saturating_sub(last.elapsed()));
            tokio::time::sleep(earliest.max(MERGED)).await;
            let mut state = self.lock();
            let request = std::mem::take(&mut state.pending);
            if !request.is_empty() {
                state.last = Some(Instant::now());
                return request;
            }
        }
    }

    /// Takes what was observed of a resource since the last call.
    pub(super) fn take_observed(&self, resource: &GroupResource, kind: &str) -> SinceLastPass {
        let mut state = self.lock();
        let encodings = state.encodings.remove(resource).unwrap_or_default();
        let hashes = encodings.iter().map(|encoding| hash_of(encoding, kind)).collect();
        let is_unbroken = !state.followed.insert(resource.clone());
        let looked_at = state.looked_at.get(resource).and_then(|at| restow_host::now().checked_sub(at.elapsed()).ok());
        SinceLastPass { hashes, encodings, is_unbroken, looked_at }
    }

    /// The versions observed until this time are written to the StorageState.
    pub(super) fn looked(&self, resource: GroupResource, at: Moment) {
        self.lock().looked_at.insert(resource, at);
    }

    /// The observed versions could not be written; the next reconcile needs them again.
    pub(super) fn restore_observed(&self, resource: &GroupResource, encodings: BTreeSet<String>) {
        self.lock().encodings.entry(resource.clone()).or_default().extend(encodings);
    }

    fn saw(&self, resource: &GroupResource, encoding: String) {
        self.lock().encodings.entry(resource.clone()).or_default().insert(encoding);
    }

    /// Changes may have been missed.
    fn forget_watched(&self) {
        self.lock().followed.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches everything that can require a reconcile. Ends when the handle is aborted.
pub(super) fn watch_cluster(context: &Context, queue: Arc<ReconcileQueue>) -> tokio::task::JoinHandle<()> {
    let client = context.cluster.client().clone();
    let crds = crds(context);
    let migrations: Api<MigrationObject> = Api::all_with(client.clone(), &migration_api());
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let reported: Api<Object<Value, StorageVersionStatus>> = Api::all_with(client, &storage_version_api());
    restow_host::spawn(async move {
        let mut watches = JoinSet::new();
        watches.spawn(inherit(watch_crds(crds, Arc::clone(&queue))));
        watches.spawn(inherit(watch_migrations(migrations, Arc::clone(&queue))));
        watches.spawn(inherit(watch_reports(reported, Arc::clone(&queue))));
        let slice_sign = |slice: &EndpointSlice| format!("{:?}", slice.metadata.generation);
        watches.spawn(inherit(watch_names(
            slices,
            "kubernetes.io/service-name=kubernetes",
            slice_sign,
            Arc::clone(&queue),
        )));
        // A Restow API server that restarts, perhaps as another release, keeps the name of its lease and changes the
        // holder. A kube-apiserver before 1.35 keeps both, but removes its endpoint when it shuts down gracefully. If one
        // ends without that, the next resync notices it.
        let lease_sign =
            |lease: &Lease| format!("{:?}", lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()));
        watches.spawn(inherit(watch_names(leases, API_SERVER_LEASES, lease_sign, queue)));
        while watches.join_next().await.is_some() {}
    })
}

fn storage_version_api() -> ApiResource {
    let kind = GroupVersionKind::gvk(StorageVersion::GROUP, "v1alpha1", StorageVersion::KIND);
    ApiResource::from_gvk_with_plural(&kind, StorageVersion::RESOURCE)
}

async fn watch_crds(crds: Api<Crd>, queue: Arc<ReconcileQueue>) {
    let mut events = watcher(crds, crds_watch()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(crd) | watcher::Event::InitApply(crd)) => {
                let Some(resource) = crd::resource(&crd) else { continue };
                let view = crd::view(&crd);
                queue.saw(&resource, format!("{}/{}", resource.group(), view.storage_version));
                queue.enqueue(ReconcileRequest::resource(resource));
            }
            Ok(watcher::Event::Delete(_)) => queue.enqueue(ReconcileRequest::all()),
            Ok(_) => {}
            Err(error) => tracing::debug!("watching CRDs: {error}"),
        }
    }
}

async fn watch_migrations(migrations: Api<MigrationObject>, queue: Arc<ReconcileQueue>) {
    let mut events = watcher(migrations, objects_watch()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        if let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object) | watcher::Event::Delete(object)) =
            event
        {
            let named = &object.spec.resource;
            if let Ok(resource) = GroupResource::new(&named.group, &named.resource) {
                queue.enqueue(ReconcileRequest::resource(resource));
            }
        }
    }
}

async fn watch_reports(reported: Api<Object<Value, StorageVersionStatus>>, queue: Arc<ReconcileQueue>) {
    let mut events = watcher(reported, objects_watch()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => queue.forget_watched(),
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                let Some(resource) = object.metadata.name.as_deref().and_then(resource_of_report) else { continue };
                for entry in object.status.unwrap_or_default().storage_versions {
                    queue.saw(&resource, entry.encoding_version);
                }
                queue.enqueue(ReconcileRequest::resource(resource));
            }
            // Most clusters do not serve this API, and each attempt fails.
            _ => {}
        }
    }
}

/// The resource of a StorageVersion: "core.pods", "apps.deployments".
fn resource_of_report(name: &str) -> Option<GroupResource> {
    let (group, resource) = name.rsplit_once('.')?;
    GroupResource::new(if group == "core" { "" } else { group }, resource).ok()
}

/// Watches which objects exist, and the `sign` of each. Lease renewals do not change the sign.
async fn watch_names<K>(api: Api<K>, labels: &str, sign: fn(&K) -> String, queue: Arc<ReconcileQueue>)
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut events = watcher(api, objects_watch().labels(labels)).default_backoff().boxed();
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                let metadata = object.meta();
                let name = metadata.name.clone().unwrap_or_default();
                let sign = format!("{:?} {}", metadata.uid, sign(&object));
                if known.insert(name, sign.clone()).is_none_or(|before| before != sign) {
                    queue.enqueue(ReconcileRequest::all());
                }
            }
            Ok(watcher::Event::Delete(object)) => {
                known.remove(object.meta().name.as_deref().unwrap_or_default());
                queue.enqueue(ReconcileRequest::all());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
