//! Removing what a deleted definition has defined: all its objects first, then the definition itself.

use crate::apiextensions::definition::{CLEANUP, Definition};
use crate::core::Core;
use crate::crd::handler::Handler;
use crate::crd::resources;
use crate::crd::status::condition;
use crate::crd::strategy::{set_condition, set_status};
use crate::error::ApiError;
use crate::resource::ObjectRef;
use crate::resource::{Membership, Scope, Storage};
use crate::storage::deletion::Dismiss;
use crate::storage::key_pages::{KeyPages, name_of, namespace_of};
use crate::storage::object_store::{Change, Changed, Decision};
use async_trait::async_trait;
use restow_apimachinery::object::Object;
use restow_store::{Content, RangeRequest};
use serde_json::Value;

/// Goes on with the removal of a definition. Some of its objects may be held by their finalizers; then it has to be
/// called again.
pub(crate) async fn remove(
    core: &Core,
    place: ObjectRef<'_>,
    definition: &Definition,
    handler: Option<&Handler>,
) -> Result<(), ApiError> {
    if !definition.metadata.finalizers.iter().any(|finalizer| finalizer == CLEANUP) {
        return Ok(());
    }
    let Some(handler) = handler else {
        // The handler that takes no new objects is about to be made.
        if definition.holds("Established") {
            return Ok(());
        }
        if is_stored(core, definition).await? {
            // It was established once, whatever its status says by now; so that its objects can be removed, it is again.
            tracing::warn!(definition = definition.metadata.name, "objects lie there, so it was established");
            core.objects().change(place, &mut Reestablish { uid: &definition.metadata.uid }).await?;
            return Ok(());
        }
        return release(core, place, definition, "NeverEstablished", "resource was never established").await;
    };
    if handler.storage.write_gate().takes_new() {
        return Ok(());
    }
    // Whoever calls this reports the storage version too; to wait for that here would hold up everything it follows.
    if handler.storage.encoding().membership == Membership::Pending {
        return Ok(());
    }
    if dismiss_all(core, handler).await? == 0 {
        return release(core, place, definition, "InstanceDeletionCompleted", "removed all instances").await;
    }
    core.objects().change(place, &mut Waiting { uid: &definition.metadata.uid }).await?;
    Ok(())
}

/// Whether any object of this definition lies in the store. It is to go, so no server can make one from now on.
async fn is_stored(core: &Core, definition: &Definition) -> Result<bool, ApiError> {
    let location = resources::group_resource(definition).map_err(|error| ApiError::Internal(error.to_string()))?;
    let version = definition.storage_version().and_then(|version| definition.group_version(version));
    // Without a storage version nothing can have been stored.
    let Some(version) = version else { return Ok(false) };
    let range = Storage::new(location, version, Vec::new()).range("");
    let first = RangeRequest::new(range).content(Content::KeysOnly).limit(1);
    Ok(!core.objects().store().range(first).await?.entries.is_empty())
}

/// Says of a definition that it is established, with the names that it asks for.
struct Reestablish<'a> {
    uid: &'a str,
}

#[async_trait]
impl Decision for Reestablish<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let Some(object) = before.filter(|object| object.is_being_deleted() && object.uid() == self.uid) else {
            return Ok(Change::Keep);
        };
        let Some(definition) = Definition::of(object) else { return Ok(Change::Keep) };
        let mut status = definition.status.clone();
        status.accepted_names = definition.spec.names.clone();
        let mut established = object.clone();
        set_status(&mut established, &status);
        let message = "the initial names have been accepted";
        set_condition(&mut established, condition("Established", "True", "InitialNamesAccepted", message));
        Ok(Change::Write(established))
    }
}

/// Says of a definition that its objects are about to go, and that some are still there.
struct Waiting<'a> {
    uid: &'a str,
}

#[async_trait]
impl Decision for Waiting<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let Some(object) = before.filter(|object| object.is_being_deleted() && object.uid() == self.uid) else {
            return Ok(Change::Keep);
        };
        let mut waiting = object.clone();
        let message = "CustomResource deletion is in progress";
        set_condition(&mut waiting, condition("Terminating", "True", "InstanceDeletionInProgress", message));
        Ok(Change::Write(waiting))
    }
}

/// Removes all objects, and counts those that something holds. The definition may serve no version at all, so they are
/// removed by the resource that stands for all versions.
async fn dismiss_all(core: &Core, handler: &Handler) -> Result<usize, ApiError> {
    let storage = &handler.storage;
    let resource = &handler.whole;
    let version = &storage.encoding().version;
    let (mut left, mut failure) = (0, None);
    let mut pages = KeyPages::new(storage.range(""));
    while let Some(keys) = pages.next(core.objects().store().as_ref()).await? {
        for key in keys {
            let namespace = if resource.scope == Scope::Namespaced { namespace_of(&key) } else { "" };
            let place = ObjectRef { resource, version, namespace, name: name_of(&key) };
            match core.objects().change(place, &mut Dismiss).await {
                Ok(Changed::Removed(_) | Changed::Absent) => {}
                Ok(Changed::Created(_) | Changed::Updated(_)) => left += 1,
                // One that cannot go must not keep the others.
                Err(error) => failure = Some(error),
            }
        }
    }
    failure.map_or(Ok(left), Err)
}

/// Takes the server's finalizer off a definition; without any left, the definition is gone.
async fn release(
    core: &Core,
    place: ObjectRef<'_>,
    definition: &Definition,
    reason: &'static str,
    message: &'static str,
) -> Result<(), ApiError> {
    let mut decision = Release { uid: &definition.metadata.uid, reason, message };
    core.objects().change(place, &mut decision).await?;
    Ok(())
}

struct Release<'a> {
    uid: &'a str,
    reason: &'static str,
    message: &'static str,
}

#[async_trait]
impl Decision for Release<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let Some(object) = before.filter(|object| object.is_being_deleted() && object.uid() == self.uid) else {
            return Ok(Change::Keep);
        };
        let others: Vec<Value> =
            object.finalizers().into_iter().filter(|name| *name != CLEANUP).map(Value::from).collect();
        if others.is_empty() {
            return Ok(Change::Remove);
        }
        let mut released = object.clone();
        released.metadata_mut().insert("finalizers".into(), others.into());
        set_condition(&mut released, condition("Terminating", "False", self.reason, self.message));
        Ok(Change::Write(released))
    }
}
