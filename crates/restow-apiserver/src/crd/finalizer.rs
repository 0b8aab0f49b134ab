//! The CRD finalizer: deletes all objects of a deleted CRD, then lets the CRD go.

use crate::apiextensions::custom_resource_definition::{CLEANUP, CustomResourceDefinition};
use crate::core::Core;
use crate::crd::handler::Handler;
use crate::crd::resources;
use crate::crd::status::condition;
use crate::crd::strategy::{set_condition, set_status};
use crate::error::ApiError;
use crate::resource::ObjectRef;
use crate::resource::{Membership, Scope, Storage};
use crate::storage::deletion::DeleteOrMark;
use crate::storage::key_pages::{KeyPages, name_of, namespace_of};
use crate::storage::object_store::{Changed, ObjectChange, ObjectDecision};
use async_trait::async_trait;
use restow_apimachinery::object::Object;
use restow_store::{Content, RangeRequest};
use serde_json::Value;

/// Continues the deletion of a CRD. If finalizers hold some of its objects, it has to be called again.
pub(crate) async fn remove(
    core: &Core,
    object_ref: ObjectRef<'_>,
    crd: &CustomResourceDefinition,
    handler: Option<&Handler>,
) -> Result<(), ApiError> {
    if !crd.metadata.finalizers.iter().any(|finalizer| finalizer == CLEANUP) {
        return Ok(());
    }
    let Some(handler) = handler else {
        // The handler that refuses new objects is about to be built.
        if crd.holds("Established") {
            return Ok(());
        }
        if is_stored(core, crd).await? {
            // It was established before, whatever its status says now. It is established again, so that its objects can be deleted.
            tracing::warn!(
                crd = crd.metadata.name,
                "a CRD that is not established has objects; it is established again so that they can be deleted"
            );
            core.objects().change(object_ref, &mut Reestablish { uid: &crd.metadata.uid }).await?;
            return Ok(());
        }
        return release(core, object_ref, crd, "NeverEstablished", "resource was never established").await;
    };
    if handler.storage.write_gate().allows_create() {
        return Ok(());
    }
    // The reconciler reports the storage version too; waiting for that here would block it.
    if handler.storage.encoding().membership == Membership::Pending {
        return Ok(());
    }
    if delete_all(core, handler).await? == 0 {
        return release(core, object_ref, crd, "InstanceDeletionCompleted", "removed all instances").await;
    }
    core.objects().change(object_ref, &mut Waiting { uid: &crd.metadata.uid }).await?;
    Ok(())
}

/// Whether any object of this CRD is stored. The CRD is being deleted, so no server can create one any more.
async fn is_stored(core: &Core, crd: &CustomResourceDefinition) -> Result<bool, ApiError> {
    let location = resources::group_resource(crd).map_err(|error| ApiError::Internal(error.to_string()))?;
    let version = crd.storage_version().and_then(|version| crd.group_version(version));
    // Without a storage version nothing can have been stored.
    let Some(version) = version else { return Ok(false) };
    let range = Storage::new(location, version, Vec::new()).range("");
    let first = RangeRequest::new(range).content(Content::KeysOnly).limit(1);
    Ok(!core.objects().store().range(first).await?.entries.is_empty())
}

/// Marks a CRD as established, with the names of its spec.
struct Reestablish<'a> {
    uid: &'a str,
}

#[async_trait]
impl ObjectDecision for Reestablish<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(object) = before.filter(|object| object.is_being_deleted() && object.uid() == self.uid) else {
            return Ok(ObjectChange::Keep);
        };
        let Some(crd) = CustomResourceDefinition::of(object) else { return Ok(ObjectChange::Keep) };
        let mut status = crd.status.clone();
        status.accepted_names = crd.spec.names.clone();
        let mut established = object.clone();
        set_status(&mut established, &status);
        let message = "the initial names have been accepted";
        set_condition(&mut established, condition("Established", "True", "InitialNamesAccepted", message));
        Ok(ObjectChange::Write(established))
    }
}

/// Sets the condition that the objects of a CRD are being deleted.
struct Waiting<'a> {
    uid: &'a str,
}

#[async_trait]
impl ObjectDecision for Waiting<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(object) = before.filter(|object| object.is_being_deleted() && object.uid() == self.uid) else {
            return Ok(ObjectChange::Keep);
        };
        let mut waiting = object.clone();
        let message = "CustomResource deletion is in progress";
        set_condition(&mut waiting, condition("Terminating", "True", "InstanceDeletionInProgress", message));
        Ok(ObjectChange::Write(waiting))
    }
}

/// Deletes all objects, and counts those that finalizers hold. The CRD may serve no version, so they are deleted through the
/// resource with all versions.
async fn delete_all(core: &Core, handler: &Handler) -> Result<usize, ApiError> {
    let storage = &handler.storage;
    let resource = &handler.all_versions;
    let version = &storage.encoding().version;
    let (mut left, mut failure) = (0, None);
    let mut pages = KeyPages::new(storage.range(""));
    while let Some(keys) = pages.next(core.objects().store().as_ref()).await? {
        for key in keys {
            let namespace = if resource.scope == Scope::Namespaced { namespace_of(&key) } else { "" };
            let object_ref = ObjectRef { resource, version, namespace, name: name_of(&key) };
            match core.objects().change(object_ref, &mut DeleteOrMark).await {
                Ok(Changed::Removed(_) | Changed::Absent) => {}
                Ok(Changed::Created(_) | Changed::Updated(_)) => left += 1,
                // One failure must not stop the others.
                Err(error) => failure = Some(error),
            }
        }
    }
    failure.map_or(Ok(left), Err)
}

/// Removes the server's finalizer from a CRD; the CRD is deleted if it was the last one.
async fn release(
    core: &Core,
    object_ref: ObjectRef<'_>,
    crd: &CustomResourceDefinition,
    reason: &'static str,
    message: &'static str,
) -> Result<(), ApiError> {
    let mut decision = Release { uid: &crd.metadata.uid, reason, message };
    core.objects().change(object_ref, &mut decision).await?;
    Ok(())
}

struct Release<'a> {
    uid: &'a str,
    reason: &'static str,
    message: &'static str,
}

#[async_trait]
impl ObjectDecision for Release<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(object) = before.filter(|object| object.is_being_deleted() && object.uid() == self.uid) else {
            return Ok(ObjectChange::Keep);
        };
        let others: Vec<Value> =
            object.finalizers().into_iter().filter(|name| *name != CLEANUP).map(Value::from).collect();
        if others.is_empty() {
            return Ok(ObjectChange::Remove);
        }
        let mut released = object.clone();
        released.metadata_mut().insert("finalizers".into(), others.into());
        set_condition(&mut released, condition("Terminating", "False", self.reason, self.message));
        Ok(ObjectChange::Write(released))
    }
}
