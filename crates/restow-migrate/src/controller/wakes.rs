//! What wakes the controller, and what is remembered of the versions that were seen in between.
//!
//! A wake says which resources to look at, nothing about them. Only the versions that watches showed are kept, because a
//! version that came and went between two passes has been written, too.

use super::collections::{definitions, definitions_watch, objects_watch};
use super::observe::SinceLastPass;
use super::{Context, MigrationObject, migration_api};
use crate::agreement::hash_of;
use crate::definition::{self, Definition};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ApiResource};
use kube::core::{GroupVersionKind, Object};
use kube::runtime::{WatchStreamExt, watcher};
use restow_api::GroupResource;
use restow_api::internal_apiserver::{StorageVersion, StorageVersionStatus};
use restow_clock::Moment;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Which resources to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wake {
    everything: bool,
    resources: BTreeSet<GroupResource>,
}

/// Collects wakes and sightings.
#[derive(Default)]
pub(super) struct Wakes {
    state: Mutex<State>,
    notify: Notify,
}

#[derive(Default)]
struct State {
    pending: Wake,
    due: Option<Timestamp>,
    /// The encoding versions that watches showed, by resource.
    encodings: BTreeMap<GroupResource, BTreeSet<String>>,
    /// The resources whose reported versions have been watched without a gap since the last pass.
    followed: BTreeSet<GroupResource>,
    /// When each resource was last looked at, and what was seen written down.
    looked_at: BTreeMap<GroupResource, Moment>,
}

impl Wake {
    pub(super) fn everything() -> Self {
        Wake { everything: true, resources: BTreeSet::new() }
    }

    pub(super) fn resource(resource: GroupResource) -> Self {
        Wake { everything: false, resources: BTreeSet::from([resource]) }
    }

    pub(super) fn is_everything(&self) -> bool {
        self.everything
    }

    pub(super) fn concerns(&self, resource: &GroupResource) -> bool {
        self.everything || self.resources.contains(resource)
    }

    pub(super) fn resources(&self) -> &BTreeSet<GroupResource> {
        &self.resources
    }

    /// The one group that all resources are of, if it is one.
    pub(super) fn only_group(&self) -> Option<String> {
        let first = self.resources.first()?.group();
        let is_one = !self.everything && self.resources.iter().all(|resource| resource.group() == first);
        (is_one && !first.is_empty()).then(|| first.to_owned())
    }

    fn is_empty(&self) -> bool {
        !self.everything && self.resources.is_empty()
    }

    fn add(&mut self, other: Wake) {
        self.everything |= other.everything;
        self.resources.extend(other.resources);
    }
}

impl Wakes {
    pub(super) fn wake(&self, wake: Wake) {
        self.lock().pending.add(wake);
        self.notify.notify_one();
    }

    /// Also wakes at this time, if not earlier.
    pub(super) fn wake_at(&self, due: Option<Timestamp>) {
        let mut state = self.lock();
        state.due = state.due.into_iter().chain(due).min();
    }

    /// Waits for the next wake. What comes within a few milliseconds comes together.
    pub(super) async fn next(&self) -> Wake {
        loop {
            let due = self.lock().due.map(|due| due.duration_since(Timestamp::now()));
            let due = due.map(|due| Duration::try_from(due).unwrap_or_default());
            tokio::select! {
                () = self.notify.notified() => {}
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {
                    self.lock().due = None;
                    return Wake::everything();
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            let wake = std::mem::take(&mut self.lock().pending);
            if !wake.is_empty() {
                return wake;
            }
        }
    }

    /// What was seen of a resource since this was last asked.
    pub(super) fn take_sightings(&self, resource: &GroupResource, kind: &str) -> SinceLastPass {
        let mut state = self.lock();
        let encodings = state.encodings.remove(resource).unwrap_or_default();
        let hashes = encodings.iter().map(|encoding| hash_of(encoding, kind)).collect();
        let is_unbroken = !state.followed.insert(resource.clone());
        let looked_at = state.looked_at.get(resource).and_then(|at| Timestamp::now().checked_sub(at.elapsed()).ok());
        SinceLastPass { hashes, encodings, is_unbroken, looked_at }
    }

    /// What was seen until this time is written down.
    pub(super) fn looked(&self, resource: GroupResource, at: Moment) {
        self.lock().looked_at.insert(resource, at);
    }

    /// What was seen could not be written down, and has to be the next time.
    pub(super) fn put_back(&self, resource: &GroupResource, encodings: BTreeSet<String>) {
        self.lock().encodings.entry(resource.clone()).or_default().extend(encodings);
    }

    fn saw(&self, resource: &GroupResource, encoding: String) {
        self.lock().encodings.entry(resource.clone()).or_default().insert(encoding);
    }

    /// Changes may have been missed.
    fn lost_sight(&self) {
        self.lock().followed.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows everything that can make a pass necessary. Ends when the handle is aborted.
pub(super) fn watch_cluster(context: &Context, wakes: Arc<Wakes>) -> tokio::task::JoinHandle<()> {
    let client = context.cluster.client().clone();
    let definitions = definitions(context);
    let migrations: Api<MigrationObject> = Api::all_with(client.clone(), &migration_api());
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let reported: Api<Object<Value, StorageVersionStatus>> = Api::all_with(client, &storage_version_api());
    tokio::spawn(async move {
        let mut watches = JoinSet::new();
        watches.spawn(follow_definitions(definitions, Arc::clone(&wakes)));
        watches.spawn(follow_migrations(migrations, Arc::clone(&wakes)));
        watches.spawn(follow_reports(reported, Arc::clone(&wakes)));
        let slice_sign = |slice: &EndpointSlice| format!("{:?}", slice.metadata.generation);
        watches.spawn(follow_names(slices, "kubernetes.io/service-name=kubernetes", slice_sign, Arc::clone(&wakes)));
        // A server of ours that is started anew, perhaps as another release, keeps the name of its lease, but not this. A
        // kube-apiserver keeps this, too (before 1.35), but takes its address away when it ends in an orderly way. One that
        // crashes is noticed at the next look at everything.
        let lease_sign =
            |lease: &Lease| format!("{:?}", lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()));
        watches.spawn(follow_names(leases, "apiserver.kubernetes.io/identity=kube-apiserver", lease_sign, wakes));
        while watches.join_next().await.is_some() {}
    })
}

fn storage_version_api() -> ApiResource {
    let kind = GroupVersionKind::gvk(StorageVersion::GROUP, "v1alpha1", StorageVersion::KIND);
    ApiResource::from_gvk_with_plural(&kind, StorageVersion::RESOURCE)
}

async fn follow_definitions(definitions: Api<Definition>, wakes: Arc<Wakes>) {
    let mut events = watcher(definitions, definitions_watch()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(definition) | watcher::Event::InitApply(definition)) => {
                let Some(resource) = definition::resource(&definition) else { continue };
                let view = definition::view(&definition);
                wakes.saw(&resource, format!("{}/{}", resource.group(), view.storage_version));
                wakes.wake(Wake::resource(resource));
            }
            Ok(watcher::Event::Delete(_)) => wakes.wake(Wake::everything()),
            Ok(_) => {}
            Err(error) => tracing::debug!("watching definitions: {error}"),
        }
    }
}

async fn follow_migrations(migrations: Api<MigrationObject>, wakes: Arc<Wakes>) {
    let mut events = watcher(migrations, objects_watch()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        if let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object) | watcher::Event::Delete(object)) =
            event
        {
            let named = &object.spec.resource;
            if let Ok(resource) = GroupResource::new(&named.group, &named.resource) {
                wakes.wake(Wake::resource(resource));
            }
        }
    }
}

async fn follow_reports(reported: Api<Object<Value, StorageVersionStatus>>, wakes: Arc<Wakes>) {
    let mut events = watcher(reported, objects_watch()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => wakes.lost_sight(),
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                let Some(resource) = object.metadata.name.as_deref().and_then(resource_of_report) else { continue };
                for entry in object.status.unwrap_or_default().storage_versions {
                    wakes.saw(&resource, entry.encoding_version);
                }
                wakes.wake(Wake::resource(resource));
            }
            // Most clusters do not serve this, and say so again and again.
            _ => {}
        }
    }
}

/// The resource that a StorageVersion is about: "core.pods", "apps.deployments".
fn resource_of_report(name: &str) -> Option<GroupResource> {
    let (group, resource) = name.rsplit_once('.')?;
    GroupResource::new(if group == "core" { "" } else { group }, resource).ok()
}

/// Follows which objects there are, and what `sign` says of each. That they are renewed every few seconds is no news.
async fn follow_names<K>(api: Api<K>, labels: &str, sign: fn(&K) -> String, wakes: Arc<Wakes>)
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
                    wakes.wake(Wake::everything());
                }
            }
            Ok(watcher::Event::Delete(object)) => {
                known.remove(object.meta().name.as_deref().unwrap_or_default());
                wakes.wake(Wake::everything());
            }
            _ => {}
        }
    }
}
