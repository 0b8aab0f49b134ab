//! Update: a PUT of an object, or of one of its subresources.

use crate::error::{ApiError, GroupKind};
use crate::field_manager;
use crate::handlers::pipeline::{self, DesiredObject};
use crate::handlers::{Call, HandlerResponse, list, metadata, subresource};
use crate::request::body;
use crate::resource::{Verb, object_meta};
use crate::storage::deletion;
use async_trait::async_trait;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::managed_fields::{FieldWriter, Given};
use restow_apimachinery::object::Object;

pub(super) async fn update(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let given = body::object(call)?;
    let name = &call.target.name;
    if given.name().is_empty() {
        return Err(ApiError::BadRequest(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    if given.name() != name {
        return Err(name_mismatch(given.name(), name));
    }
    let entries = body::given_entries(call)?;
    let (code, written) = pipeline::write(call, &SentObject { call, object: given, entries }).await?;
    Ok(call.written_response(code, written).await)
}

/// An object from the body of a PUT.
struct SentObject<'a> {
    call: &'a Call<'a>,
    object: Object,
    entries: Given,
}

#[async_trait]
impl DesiredObject for SentObject<'_> {
    fn create(&self) -> Result<Option<(Object, Given)>, ApiError> {
        if !self.call.resource.strategy.create_on_update() || !self.call.target.subresource.is_empty() {
            return Ok(None);
        }
        match self.object.uid() {
            "" => Ok(Some((self.object.clone(), Given::Object))),
            uid => {
                let message = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
                Err(self.call.conflict(&self.call.target.name, message))
            }
        }
    }

    async fn replace(&self, _old: &Object) -> Result<(Object, Given), ApiError> {
        Ok((self.object.clone(), self.entries.clone()))
    }
}

/// The error when the name in the body differs from the name in the path.
pub(super) fn name_mismatch(given: &str, name: &str) -> ApiError {
    ApiError::BadRequest(format!("the name of the object ({given}) does not match the name on the URL ({name})"))
}

/// The validate stage of an object that replaces `old`: restores fields that the client may not change, sets the fields
/// of its strategy, collects validation errors, and updates the managed fields.
pub(super) async fn validated(
    call: &Call<'_>,
    mut object: Object,
    old: &Object,
    entries: Given,
) -> Result<Object, ApiError> {
    check_preconditions(call, &object, old)?;
    check_unconditional_update(call, &object)?;
    subresource::restrict_to_writable_fields(call, &mut object, old);
    metadata::prepare_replacement(call, &mut object, old)?;
    call.resource.strategy.default(&mut object);
    call.resource.strategy.prepare_update(&mut object, old);
    metadata::increment_generation(call, &mut object, old);
    let problems = problems(call, &object, old);
    if !problems.is_empty() {
        return Err(call.invalid(&call.target.name, problems));
    }
    record(call, old, &mut object, entries).await?;
    Ok(object)
}

/// All validation errors of an object that replaces `old`.
fn problems(call: &Call<'_>, object: &Object, old: &Object) -> Vec<FieldError> {
    let mut problems = metadata::problems(call, object);
    problems.extend(metadata::change_problems(object, old));
    problems.extend(call.resource.strategy.validate_update(object, old));
    let baseline = subresource::with_permitted_changes(call, object, old);
    problems.extend(call.resource.strategy.validate_change(object, &baseline));
    problems
}

/// Whether this update completes a deletion: no finalizer, grace period or condition of the kind keeps the object.
pub(super) fn completes_deletion(call: &Call<'_>, object: &Object, old: &Object) -> bool {
    let held = deletion::grace_left(object) > 0 || call.resource.strategy.is_occupied(object);
    old.is_being_deleted() && object.finalizers().is_empty() && !held
}

/// Updates the managed fields.
async fn record(call: &Call<'_>, old: &Object, object: &mut Object, entries: Given) -> Result<(), ApiError> {
    let (manager, now, version) = (call.manager(), object_meta::now(), call.version.to_string());
    let subresource = &call.target.subresource;
    let writer = FieldWriter { manager: &manager, subresource, api_version: &version, now: &now };
    field_manager::record_change(&call.resource, &writer, old, object, entries).await
}

/// Compares the uid and resource version that the client sent with the stored object.
pub(super) fn check_preconditions(call: &Call<'_>, object: &Object, old: &Object) -> Result<(), ApiError> {
    let name = &call.target.name;
    if !object.uid().is_empty() && object.uid() != old.uid() {
        if call.target.verb == Verb::Patch {
            let problem = restow_apimachinery::field::FieldError::immutable("metadata.uid", &object.uid().into());
            return Err(call.invalid(name, vec![problem]));
        }
        return Err(call.conflict(
            name,
            format!("Precondition failed: UID in precondition: {}, UID in object meta: {}", object.uid(), old.uid()),
        ));
    }
    let expected = object.resource_version();
    if !expected.is_empty() && expected != "0" && expected != old.resource_version() {
        // Kubernetes sends the same message, but with code 500.
        list::parse_resource_version(expected)
            .map_err(|problem| ApiError::BadRequest(format!("metadata.resourceVersion: {problem}")))?;
        return Err(call.conflict(
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        ));
    }
    Ok(())
}

/// Refuses an update without a resource version where the kind does not allow it: two concurrent updates would
/// overwrite each other.
fn check_unconditional_update(call: &Call<'_>, object: &Object) -> Result<(), ApiError> {
    if call.resource.strategy.unconditional_update() || !matches!(object.resource_version(), "" | "0") {
        return Ok(());
    }
    let cause = FieldError {
        field: "metadata.resourceVersion".into(),
        rule: FieldRule::Invalid("0x0".into()),
        detail: "must be specified for an update".into(),
    };
    // Kubernetes names the resource here, and the kind elsewhere.
    let resource = &call.resource.group_resource;
    let kind = GroupKind { group: resource.group().to_string(), kind: resource.resource().to_string() };
    Err(ApiError::Invalid { kind, name: call.target.name.clone(), causes: vec![cause] })
}
