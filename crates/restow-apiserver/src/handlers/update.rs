//! Update: a PUT of an object, or of one of its subresources.

use crate::error::{ApiError, GroupKind};
use crate::field_manager;
use crate::handlers::pipeline::{self, DesiredObject};
use crate::handlers::{Answer, Call, list, metadata, subresource};
use crate::request::body;
use crate::resource::{Verb, object_meta};
use crate::storage::deletion;
use async_trait::async_trait;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::managed_fields::{Given, Writer};
use restow_apimachinery::object::Object;

pub(super) async fn update(call: &Call<'_>) -> Result<Answer, ApiError> {
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
    let (code, written) = pipeline::write(call, &Sent { call, object: given, entries }).await?;
    Ok(call.written(code, written).await)
}

/// An object as it was sent, to replace the stored one.
struct Sent<'a> {
    call: &'a Call<'a>,
    object: Object,
    entries: Given,
}

#[async_trait]
impl DesiredObject for Sent<'_> {
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

/// The object in the body has another name than the path.
pub(super) fn name_mismatch(given: &str, name: &str) -> ApiError {
    ApiError::BadRequest(format!("the name of the object ({given}) does not match the name on the URL ({name})"))
}

/// The validate stage of an object that replaces `old`: what the client may change, what the kind sets, everything that is wrong
/// with it, and its managed fields.
pub(super) async fn validated(
    call: &Call<'_>,
    mut object: Object,
    old: &Object,
    entries: Given,
) -> Result<Object, ApiError> {
    check_expectations(call, &object, old)?;
    check_condition(call, &object)?;
    subresource::keep_part(call, &mut object, old);
    metadata::prepare_replacement(call, &mut object, old)?;
    call.resource.strategy.default(&mut object);
    call.resource.strategy.prepare_update(&mut object, old);
    metadata::count_change(call, &mut object, old);
    let problems = problems(call, &object, old);
    if !problems.is_empty() {
        return Err(call.invalid(&call.target.name, problems));
    }
    record(call, old, &mut object, entries).await?;
    Ok(object)
}

/// Everything that is wrong with an object that is to take the place of `old`.
fn problems(call: &Call<'_>, object: &Object, old: &Object) -> Vec<FieldError> {
    let mut problems = metadata::problems(call, object);
    problems.extend(metadata::change_problems(object, old));
    problems.extend(call.resource.strategy.validate_update(object, old));
    let granted = subresource::granted(call, object, old);
    problems.extend(call.resource.strategy.validate_change(object, &granted));
    problems
}

/// Whether nothing holds a deleted object any more: its last finalizer takes the object with it.
pub(super) fn ends(call: &Call<'_>, object: &Object, old: &Object) -> bool {
    let held = deletion::grace_left(object) > 0 || call.resource.strategy.is_occupied(object);
    old.is_being_deleted() && object.finalizers().is_empty() && !held
}

/// Notes who set what.
async fn record(call: &Call<'_>, old: &Object, object: &mut Object, entries: Given) -> Result<(), ApiError> {
    let (manager, now, version) = (call.manager(), object_meta::now(), call.version.to_string());
    let subresource = &call.target.subresource;
    let writer = Writer { manager: &manager, subresource, api_version: &version, now: &now };
    field_manager::record_change(&call.resource, &writer, old, object, entries).await
}

/// Refuses to change another object, or another state of it, than the client speaks of.
pub(super) fn check_expectations(call: &Call<'_>, object: &Object, old: &Object) -> Result<(), ApiError> {
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
        // Kubernetes says this too, but calls it a fault of its own.
        list::revision(expected)
            .map_err(|problem| ApiError::BadRequest(format!("metadata.resourceVersion: {problem}")))?;
        return Err(call.conflict(
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        ));
    }
    Ok(())
}

/// Refuses to replace whatever there is by now, where the kind does not allow that: two who replace an object at the same
/// time would not notice each other.
fn check_condition(call: &Call<'_>, object: &Object) -> Result<(), ApiError> {
    if call.resource.strategy.unconditional_update() || !matches!(object.resource_version(), "" | "0") {
        return Ok(());
    }
    let cause = FieldError {
        field: "metadata.resourceVersion".into(),
        rule: FieldRule::Invalid("0x0".into()),
        detail: "must be specified for an update".into(),
    };
    // Kubernetes names the resource here where it names the kind elsewhere.
    let resource = &call.resource.group_resource;
    let kind = GroupKind { group: resource.group().to_string(), kind: resource.resource().to_string() };
    Err(ApiError::Invalid { kind, name: call.target.name.clone(), causes: vec![cause] })
}
