//! Empties namespaces that are to go, and lets them go. Webhooks and policies are asked about every object, as they would be
//! if a client deleted it: one that they keep keeps the namespace.

use crate::admission::{self, Rehearsal};
use crate::error::ApiError;
use crate::namespaces::Dismiss;
use crate::object::Object;
use crate::object_store::{Change, Changed, Decision, Place};
use crate::resource::{Resource, Scope, Verb};
use crate::server::ApiServer;
use crate::verbs::Call;
use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_store::RangeRequest;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Whom webhooks see.
const ACCOUNT: &str = "namespace-controller";
/// How long to wait before looking again: what held a namespace may have let go.
const BREATH: Duration = Duration::from_millis(500);

/// Empties namespaces for as long as the server lives.
pub(crate) async fn empty_namespaces(server: Weak<ApiServer>) {
    let mut told: BTreeMap<String, String> = BTreeMap::new();
    while let Some(strong) = server.upgrade() {
        let changed = strong.namespaces().changed();
        let terminating = strong.namespaces().terminating();
        told.retain(|name, _| terminating.contains(name));
        for name in terminating {
            let Err(error) = empty(&strong, &name).await else { continue };
            let error = error.to_string();
            if told.get(&name) != Some(&error) {
                tracing::warn!(namespace = name, error, "a namespace could not be emptied yet");
                told.insert(name, error);
            }
        }
        drop(strong);
        // Whether it was told of a change or only waited, everything is looked at again.
        let _ = tokio::time::timeout(BREATH, changed.notified()).await;
    }
}

/// Deletes everything in a namespace; once nothing is left, lets the namespace go.
async fn empty(server: &ApiServer, name: &str) -> Result<(), ApiError> {
    let Some((namespaces, namespaces_version)) = server.namespace_resource() else { return Ok(()) };
    let (mut left, mut failure) = (0, None);
    for resource in server.registry().resources() {
        let (Some(storage), Some(version)) = (&resource.storage, resource.served.first()) else { continue };
        if resource.scope != Scope::Namespaced || !resource.verbs.contains(&Verb::Delete) {
            continue;
        }
        let entries = server.objects().store().range(RangeRequest::new(storage.range(name))).await?.entries;
        for entry in entries {
            let object = crate::following::name_of(&entry.key);
            match dismiss(server, resource, version, name, object).await {
                Ok(Changed::Removed(_) | Changed::Absent) => {}
                Ok(Changed::Created(_) | Changed::Updated(_)) => left += 1,
                // One that cannot go must not keep the others.
                Err(error) => failure = Some(error),
            }
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    if left == 0 {
        let place = Place { resource: &namespaces, version: &namespaces_version, namespace: "", name };
        server.objects().change(place, &mut Release).await?;
    }
    Ok(())
}

async fn dismiss(
    server: &ApiServer,
    resource: &Arc<Resource>,
    version: &GroupVersion,
    namespace: &str,
    name: &str,
) -> Result<Changed, ApiError> {
    let place = Place { resource, version, namespace, name };
    let call = Call::by_controller(server, ACCOUNT, resource.clone(), place);
    server.objects().change(place, &mut Admitted { call }).await
}

/// Removes or marks an object if nobody is against it.
struct Admitted<'a> {
    call: Call<'a>,
}

#[async_trait]
impl Decision for Admitted<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let change = Dismiss.decide(before).await?;
        if let (Some(old), Change::Remove | Change::Write(_)) = (before, &change) {
            admission::admit_removal(&self.call, old, Rehearsal::No).await?;
        }
        Ok(change)
    }
}

/// Takes the finalizer of the server off a namespace; without any left, the namespace is gone.
struct Release;

#[async_trait]
impl Decision for Release {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let Some(object) = before.filter(|object| object.is_being_deleted()) else { return Ok(Change::Keep) };
        let finalizers = object.at(&["spec", "finalizers"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let others: Vec<Value> = finalizers.into_iter().filter(|finalizer| finalizer != "kubernetes").collect();
        if others.is_empty() && object.finalizers().is_empty() {
            return Ok(Change::Remove);
        }
        let mut released = object.clone();
        let mut spec = object.get("spec").cloned().unwrap_or_default();
        spec["finalizers"] = others.into();
        released.set("spec", Some(spec));
        Ok(Change::Write(released))
    }
}
