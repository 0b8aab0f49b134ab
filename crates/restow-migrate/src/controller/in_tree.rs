//! Reconciles the in-tree API, `storagemigration.k8s.io/v1`, on Restow API servers.
//!
//! On a stock cluster kube-controller-manager reconciles it, and this module does nothing. A Restow API server is
//! recognised by its version. Migrations of this API name only a resource; they run like all others.

use super::Context;
use super::queue::{ReconcileQueue, ReconcileRequest};
use super::worker::{TargetPolicy, describe, wait_reason};
use crate::backoff::Backoff;
use crate::migration::{MigrationChannels, MigrationOptions, MigrationReport, migrate};
use crate::request::RequestError;
use crate::runner::{Progress, RunControl};
use futures::StreamExt;
use kube::api::{Api, ApiResource, ListParams, Patch, PatchParams};
use kube::core::{GroupVersionKind, Object};
use kube::runtime::{WatchStreamExt, watcher};
use restow_api::GroupResource;
use restow_api::migration::{GroupResourceReference, MigrationCondition};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The resources that are being migrated for the in-tree API.
#[derive(Clone, Default)]
pub(crate) struct InTree {
    running: Arc<Mutex<BTreeSet<GroupResource>>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Spec {
    resource: GroupResourceReference,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    conditions: Vec<Value>,
    resource_version: String,
}

type InTreeMigration = Object<Spec, Status>;

/// The delay before servers that disagree, or cannot be queried, are queried again.
const WAIT: Duration = Duration::from_secs(5);

impl InTree {
    pub(crate) fn resources(&self) -> BTreeSet<GroupResource> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Claims a resource, if no other migration has.
    fn take(&self, resource: &GroupResource) -> Option<Taken> {
        let is_new = self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(resource.clone());
        is_new.then(|| Taken { in_tree: self.clone(), resource: resource.clone() })
    }
}

/// A claimed resource. It is released on drop.
struct Taken {
    in_tree: InTree,
    resource: GroupResource,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.in_tree.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.resource);
    }
}

/// Reconciles the migrations of the in-tree API on a Restow API server. Returns at once on other clusters.
pub(super) async fn follow(context: Context, queue: Arc<ReconcileQueue>) {
    if !is_ours(&context).await {
        return;
    }
    let api = migrations(&context);
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    // A dropped task is aborted, so nothing outlives this function.
    let mut running: BTreeMap<String, Running> = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(migration) | watcher::Event::InitApply(migration)) => {
                let Some(uid) = migration.metadata.uid.clone() else { continue };
                running.retain(|_, task| !task.0.is_finished());
                if is_live(&migration) && !running.contains_key(&uid) {
                    let task = restow_host::spawn(carry_out(context.clone(), Arc::clone(&queue), migration));
                    running.insert(uid, Running(task));
                }
            }
            Ok(watcher::Event::Delete(migration)) => {
                running.remove(&migration.metadata.uid.unwrap_or_default());
                // The next reconcile removes its mark.
                queue.enqueue(ReconcileRequest::all());
            }
            Ok(_) => {}
            // A release that does not serve this version causes this error repeatedly.
            Err(error) => tracing::debug!("watching in-tree migrations: {error}"),
        }
    }
}

struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn is_ours(context: &Context) -> bool {
    loop {
        match context.cluster.client().apiserver_version().await {
            Ok(version) => return version.git_version.ends_with("+restow"),
            Err(error) => {
                tracing::debug!("cannot ask for the version of the server: {error}");
                tokio::time::sleep(WAIT).await;
            }
        }
    }
}

fn migrations(context: &Context) -> Api<InTreeMigration> {
    let kind = GroupVersionKind::gvk("storagemigration.k8s.io", "v1", "StorageVersionMigration");
    let api = ApiResource::from_gvk_with_plural(&kind, "storageversionmigrations");
    Api::all_with(context.cluster.client().clone(), &api)
}

fn is_live(migration: &InTreeMigration) -> bool {
    let conditions = migration.status.iter().flat_map(|status| &status.conditions);
    let is_end = |condition: &Value| {
        let kind = condition["type"].as_str().unwrap_or_default();
        [MigrationCondition::SUCCEEDED, MigrationCondition::FAILED].contains(&kind) && condition["status"] == "True"
    };
    !conditions.into_iter().any(is_end)
}

async fn carry_out(context: Context, queue: Arc<ReconcileQueue>, migration: InTreeMigration) {
    let reference = &migration.spec.resource;
    let resource = match GroupResource::try_from(reference) {
        Ok(resource) => resource,
        Err(error) => {
            let failed = ended(&migration, MigrationCondition::FAILED, &error.to_string());
            return write(&context, &migration, failed).await;
        }
    };
    let taken = loop {
        match context.in_tree.take(&resource) {
            Some(taken) => break taken,
            None => tokio::time::sleep(WAIT).await,
        }
    };
    let begun = json!({"resourceVersion": revision(&context).await, "conditions": [
        condition(&migration, MigrationCondition::RUNNING, "True", "StorageVersionMigrationInProgress", ""),
    ]});
    write(&context, &migration, begun).await;
    let ending = loop {
        match attempt(&context, &resource).await {
            Ok(report) if wait_reason(&report.outcome, TargetPolicy::AnyAgreedVersion).is_some() => {}
            Ok(report) => break describe(&report),
            Err(words) => break Some((MigrationCondition::FAILED, words)),
        }
        tokio::time::sleep(WAIT).await;
    };
    drop(taken);
    if let Some((result, words)) = ending {
        write(&context, &migration, ended(&migration, result, &words)).await;
    }
    queue.enqueue(ReconcileRequest::resource(resource));
}

async fn attempt(context: &Context, resource: &GroupResource) -> Result<MigrationReport, String> {
    let (_order, control) = watch::channel(RunControl::Run);
    let (progress, _seen) = watch::channel(Progress::default());
    let holder = Some(context.holder());
    let options = MigrationOptions { holder, ..context.config.migration.clone() };
    let channels = MigrationChannels { control, progress: &progress };
    migrate(&context.cluster, resource, options, channels).await.map_err(|error| error.to_string())
}

/// The current resource version, which the status of this API shows. Objects written later need no migration.
async fn revision(context: &Context) -> String {
    let one = ListParams::default().limit(1);
    migrations(context).list(&one).await.ok().and_then(|list| list.metadata.resource_version).unwrap_or_default()
}

fn ended(migration: &InTreeMigration, result: &str, words: &str) -> Value {
    let reason = format!("StorageVersionMigration{result}");
    json!({"conditions": [
        condition(migration, MigrationCondition::RUNNING, "False", "MigrationCompleted", "Migration completed"),
        condition(migration, result, "True", &reason, words),
    ]})
}

fn condition(migration: &InTreeMigration, kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": restow_api::Time::new(restow_host::now()),
        "observedGeneration": migration.metadata.generation.unwrap_or(0),
    })
}

/// Writes the status. Retries while the server cannot be reached.
async fn write(context: &Context, migration: &InTreeMigration, status: Value) {
    let name = migration.metadata.name.clone().unwrap_or_default();
    let patch = json!({"metadata": {"uid": migration.metadata.uid}, "status": status});
    let mut backoff = Backoff::of_request();
    loop {
        let written = migrations(context).patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let Err(failure) = written.map_err(RequestError::from) else { return };
        if matches!(failure.code, 400..=428 | 430..=499) {
            tracing::debug!("{name}: {failure}");
            return;
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

#[cfg(test)]
mod tests;
