//! Removing what a deleted definition has defined: all its objects first, then the definition itself.

use crate::custom::definition::{CLEANUP, Definition};
use crate::custom::handler::Handler;
use crate::custom::status::condition;
use crate::custom::strategy::set_condition;
use crate::error::ApiError;
use crate::following::{name_of, namespace_of};
use crate::namespaces::Dismiss;
use crate::object::Object;
use crate::object_store::{Change, Changed, Decision, Place};
use crate::resource::{Membership, Scope};
use crate::server::ApiServer;
use async_trait::async_trait;
use restow_store::RangeRequest;
use serde_json::Value;

/// Goes on with the removal of a definition. Some of its objects may be held by their finalizers; then it has to be
/// called again.
pub(crate) async fn remove(
    server: &ApiServer,
    place: Place<'_>,
    definition: &Definition,
    handler: Option<&Handler>,
) -> Result<(), ApiError> {
    if !definition.metadata.finalizers.iter().any(|finalizer| finalizer == CLEANUP) {
        return Ok(());
    }
    let Some(handler) = handler else {
        return match definition.holds("Established") {
            // The handler that takes no new objects is about to be made.
            true => Ok(()),
            false => release(server, place, definition, "NeverEstablished", "resource was never established").await,
        };
    };
    if handler.storage.passage().takes_new() {
        return Ok(());
    }
    // Whoever calls this reports the storage version too; to wait for that here would hold up everything it follows.
    if handler.storage.encoding().membership == Membership::Pending {
        return Ok(());
    }
    if dismiss_all(server, handler).await? == 0 {
        return release(server, place, definition, "InstanceDeletionCompleted", "removed all instances").await;
    }
    server.objects().change(place, &mut Waiting { uid: &definition.metadata.uid }).await?;
    Ok(())
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
async fn dismiss_all(server: &ApiServer, handler: &Handler) -> Result<usize, ApiError> {
    let storage = &handler.storage;
    let resource = &handler.whole;
    let version = &storage.encoding().version;
    let mut left = 0;
    for entry in server.objects().store().range(RangeRequest::new(storage.range(""))).await?.entries {
        let namespace = if resource.scope == Scope::Namespaced { namespace_of(&entry.key) } else { "" };
        let place = Place { resource, version, namespace, name: name_of(&entry.key) };
        match server.objects().change(place, &mut Dismiss).await? {
            Changed::Removed(_) | Changed::Absent => {}
            Changed::Created(_) | Changed::Updated(_) => left += 1,
        }
    }
    Ok(left)
}

/// Takes the server's finalizer off a definition; without any left, the definition is gone.
async fn release(
    server: &ApiServer,
    place: Place<'_>,
    definition: &Definition,
    reason: &'static str,
    message: &'static str,
) -> Result<(), ApiError> {
    let mut decision = Release { uid: &definition.metadata.uid, reason, message };
    server.objects().change(place, &mut decision).await?;
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
