//! Observes what the trigger decides on, and removes marks and StorageStates that are left over.

use super::paged_list::{all_crds, all_objects, crds_of};
use super::run_control::is_paused;
use super::{Context, MigrationObject, ReconcileRequest, ResourceFilter, StateObject, resources_of};
use crate::api_servers::{Observation, ResourceObservation, Scope, hash_of, observe as ask_servers};
use crate::crd::{self, Crd};
use crate::discovery::equivalents;
use crate::mark::{self, mark_of};
use crate::request::RequestError;
use crate::runner::RunControl;
use jiff::Timestamp;
use kube::api::DeleteParams;
use restow_api::migration::{GROUP, StorageState, StorageVersionMigration};
use restow_api::{GroupResource, ObjectMeta, StorageVersionHash};
use restow_host::Moment;
use restow_rules::migrate::marks::{MARK_TIMEOUT, MigrationMark, is_stale};
use restow_rules::trigger::{Continuity, KnownMigration, ObservedVersions, Retry, TriggerPolicy, TriggerSnapshot};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// The state that one reconcile is based on.
pub(super) struct ClusterView {
    pub(super) observation: Observation,
    pub(super) migrations: Vec<MigrationObject>,
    pub(super) states: BTreeMap<String, StateObject>,
    /// All CRDs, or those of the resources of this reconcile.
    pub(super) crds: Vec<Crd>,
    /// When the API servers were queried.
    pub(super) asked_at: Moment,
    request: ReconcileRequest,
}

/// The annotation on a failed migration that requests another attempt now.
pub(super) const RETRY_ANNOTATION: &str = "restow.dev/retry";

pub(super) async fn observe(context: &Context, request: &ReconcileRequest) -> Result<ClusterView, RequestError> {
    let asked_at = Moment::now();
    let resources: Vec<&GroupResource> = request.resources().iter().collect();
    let scope = if request.is_all() { Scope::All } else { Scope::Resources(&resources) };
    // The servers are queried last: what they write after a success is shown then.
    let migrations = migrations(context).await?;
    let observation = ask_servers(&context.cluster, scope).await?;
    let states = all_objects(&context.states()).await?;
    let states = states.into_iter().filter_map(|state| Some((state.metadata.name.clone()?, state))).collect();
    let crds = match request.is_all() {
        true => all_crds(context).await?,
        false => {
            // The CRD of migrations carries the annotation that pauses all of them.
            let mut resources = request.resources().clone();
            resources.extend(crd_of_migrations());
            crds_of(context, &resources).await?
        }
    };
    Ok(ClusterView { observation, migrations, states, crds, asked_at, request: request.clone() })
}

pub(super) async fn migrations(context: &Context) -> Result<Vec<MigrationObject>, RequestError> {
    match all_objects(&context.migrations()).await {
        Ok(found) => Ok(found),
        Err(failure) if failure.code == 404 => Err(RequestError {
            message: "migration.k8s.io/v1alpha1 is not served; run `restow install` to install its CRDs".to_owned(),
            ..failure
        }),
        Err(failure) => Err(failure),
    }
}

fn crd_of_migrations() -> Option<GroupResource> {
    GroupResource::new(GROUP, StorageVersionMigration::RESOURCE).ok()
}

impl ClusterView {
    /// The resources of this reconcile, without those that are not managed.
    pub(super) fn resources(&self, which: ResourceFilter) -> Vec<GroupResource> {
        let custom: BTreeSet<GroupResource> = self.crds.iter().filter_map(crd::resource).collect();
        let same = equivalents();
        let includes = |resource: &GroupResource| {
            self.request.includes(resource)
                && !same.contains(resource)
                && (which == ResourceFilter::All || custom.contains(resource))
                && self.observation.is_managed(resource, custom.contains(resource))
        };
        self.observation.resources().into_iter().filter(includes).collect()
    }

    /// Whether all migrations are paused: by the annotation on the CRD of migrations.
    pub(super) fn command(&self) -> RunControl {
        let crd = crd_of_migrations().and_then(|name| self.crd(&name));
        match crd.is_some_and(|crd| is_paused(&crd.metadata)) {
            true => RunControl::Pause,
            false => RunControl::Run,
        }
    }

    /// The CRD of a resource, if it has one.
    pub(super) fn crd(&self, resource: &GroupResource) -> Option<&Crd> {
        self.crds.iter().find(|found| crd::resource(found).as_ref() == Some(resource))
    }

    pub(super) fn snapshot(
        &self,
        resource: &GroupResource,
        seen: &ResourceObservation,
        since: SinceLastPass,
        policy: TriggerPolicy,
    ) -> TriggerSnapshot {
        let storage_state = self.states.get(&StorageState::name_for(resource));
        let storage_state = storage_state.map(|state| state.status.clone().unwrap_or_default());
        let migrations: Vec<&MigrationObject> = self.migrations_of(resource).collect();
        // The status of a CRD lists each version that was ever the storage version, until a migration removes it. That
        // includes versions that came and went while no controller was running.
        let recorded = self.crd(resource).map(|found| {
            let stored = crd::view(found).stored_versions;
            let hash = |version: &String| hash_of(&format!("{}/{version}", resource.group()), &seen.resource.kind);
            stored.iter().map(hash).collect::<Vec<StorageVersionHash>>()
        });
        let recorded = recorded.filter(|recorded| !recorded.is_empty());
        let servers = seen.servers(&self.observation.servers);
        let continuity = match &storage_state {
            Some(last) if !since.is_unbroken => {
                Continuity::after_restart(last, seen.revision.as_ref(), servers.as_ref())
            }
            // No watch shows a server that came and went behind the Service of aggregated servers.
            Some(last) if !seen.marks.is_empty() => Continuity::after_restart(last, None, servers.as_ref()),
            _ => Continuity::Unbroken,
        };
        TriggerSnapshot {
            observed: ObservedVersions {
                agreement: seen.agreement.clone(),
                revision: seen.revision.clone(),
                servers,
                since_last_pass: since.hashes,
                continuity,
                recorded,
                disagreement: seen.disagreement(),
            },
            storage_state,
            looked_at: since.looked_at,
            retry: if migrations.iter().any(|migration| asks_for_retry(migration)) {
                Retry::AtOnce
            } else {
                Retry::WhenDue
            },
            migrations: migrations.into_iter().map(known).collect(),
            policy,
        }
    }

    pub(super) fn migrations_of<'a>(
        &'a self,
        resource: &'a GroupResource,
    ) -> impl Iterator<Item = &'a MigrationObject> + 'a {
        let is_of = move |migration: &&MigrationObject| {
            let named = &migration.spec.resource;
            named.group == resource.group() && named.resource == resource.resource()
        };
        self.migrations.iter().filter(is_of)
    }
}

/// What the watches have shown of a resource since the last reconcile.
pub(super) struct SinceLastPass {
    pub(super) hashes: Vec<StorageVersionHash>,
    /// The same, as reported by the servers.
    pub(super) encodings: BTreeSet<String>,
    pub(super) is_unbroken: bool,
    /// When it was last reconciled.
    pub(super) looked_at: Option<Timestamp>,
}

fn asks_for_retry(migration: &MigrationObject) -> bool {
    let annotations = migration.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(RETRY_ANNOTATION))
}

/// A migration as the trigger knows it.
pub(super) fn known(migration: &MigrationObject) -> KnownMigration {
    KnownMigration::from(&wire(migration))
}

/// A migration as API type.
pub(super) fn wire(migration: &MigrationObject) -> StorageVersionMigration {
    StorageVersionMigration {
        metadata: ObjectMeta {
            name: migration.metadata.name.clone().unwrap_or_default(),
            uid: migration.metadata.uid.clone().unwrap_or_default(),
            annotations: migration.metadata.annotations.clone().unwrap_or_default(),
            ..ObjectMeta::default()
        },
        spec: migration.spec.clone(),
        status: migration.status.clone().unwrap_or_default(),
        ..StorageVersionMigration::default()
    }
}

/// Removes the marks of migrations that have ended, and the StorageStates of resources that do not exist any more. Returns
/// when to check marks again that another holder still has.
pub(super) async fn remove_stale_marks(
    context: &Context,
    view: &ClusterView,
    running: &BTreeSet<GroupResource>,
    marks: &mut SeenMarks,
) -> Result<Option<Timestamp>, RequestError> {
    let mut migrating = resources_of(&view.migrations);
    migrating.extend(running.iter().cloned());
    migrating.extend(context.in_tree.resources());
    let mut due = None;
    for crd in &view.crds {
        let Some(resource) = crd::resource(crd) else { continue };
        let Some(holder) = marks.holder(&resource, mark_of(crd)) else { continue };
        if migrating.contains(&resource) {
            continue;
        }
        if !is_stale(&holder.text, holder.seen_at.elapsed()) {
            due = restow_host::now().checked_add(MARK_TIMEOUT).ok();
            continue;
        }
        tracing::info!("{resource}: no migration is under way; taking its mark away");
        if let Err(error) = mark::remove_stale(&context.cluster, crd).await {
            tracing::warn!("{resource}: {error}");
        }
    }
    remove_stale_states(context, view).await;
    Ok(due)
}

/// The holders of the marks, and since when each is unchanged.
#[derive(Default)]
pub(super) struct SeenMarks {
    holders: BTreeMap<GroupResource, SeenHolder>,
}

#[derive(Clone)]
struct SeenHolder {
    text: String,
    seen_at: Instant,
}

impl SeenMarks {
    /// The holder of a mark and since when it is unchanged; `None` if there is no mark.
    fn holder(&mut self, resource: &GroupResource, found: MigrationMark) -> Option<SeenHolder> {
        let MigrationMark::By(text) = found else {
            self.holders.remove(resource);
            return None;
        };
        let seen = self.holders.entry(resource.clone());
        let seen = seen.or_insert_with(|| SeenHolder { text: text.clone(), seen_at: Instant::now() });
        if seen.text != text {
            *seen = SeenHolder { text, seen_at: Instant::now() };
        }
        Some(seen.clone())
    }
}

/// The recorded resources that do not exist any more.
///
/// Empty unless all discovery documents of all servers could be read: a server that did not answer may serve the resource.
/// Objects of a resource with a CRD may be stored even if no server serves it.
fn gone<'a>(
    recorded: impl Iterator<Item = &'a String>,
    observation: &Observation,
    crds: &[Crd],
) -> Vec<(&'a str, GroupResource)> {
    if !observation.is_complete() {
        return Vec::new();
    }
    let mut existing: BTreeSet<GroupResource> = observation.resources().into_iter().collect();
    existing.extend(crds.iter().filter_map(crd::resource));
    let parsed = recorded.filter_map(|name| Some((name.as_str(), name.parse::<GroupResource>().ok()?)));
    parsed.filter(|(_, resource)| !existing.contains(resource)).collect()
}

async fn remove_stale_states(context: &Context, view: &ClusterView) {
    if !view.request.is_all() {
        return;
    }
    for (name, resource) in gone(view.states.keys(), &view.observation, &view.crds) {
        let Some(state) = view.states.get(name) else { continue };
        tracing::info!("{name}: no server serves it any more; forgetting what was stored");
        context.metrics.forget(&resource);
        let uid = state.metadata.uid.clone();
        let precondition = kube::api::Preconditions { uid, resource_version: state.metadata.resource_version.clone() };
        // If someone has changed it meanwhile, it is kept.
        let _ = context.states().delete(name, &DeleteParams::default().preconditions(precondition)).await;
    }
}

#[cfg(test)]
mod tests;
