//! Patch: JSON patch, merge patch, strategic merge patch, and server-side apply, which has its own file.

use crate::error::{ApiError, GroupKind};
use crate::handlers::pipeline::{self, DesiredObject};
use crate::handlers::{Call, HandlerResponse, apply, update};
use crate::request::body;
use async_trait::async_trait;
use restow_apimachinery::bounded_patch::{self, BoundedPatchError, json_size};
use restow_apimachinery::field::FieldError;
use restow_apimachinery::managed_fields::Given;
use restow_apimachinery::object::Object;
use restow_apimachinery::types;
use serde_json::Value;

/// The maximum size of a patched object in bytes of JSON; the same as for an object in a request body.
const MAX_PATCHED_BYTES: usize = 3 << 20;

/// A parsed patch.
pub(crate) enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

pub(super) async fn patch(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    if call.patch_type == apply::MEDIA_TYPE {
        return apply::apply(call).await;
    }
    refuse_force(call)?;
    let patch = read(call)?;
    let (code, written) = pipeline::write(call, &PatchedObject { call, patch }).await?;
    Ok(call.written_response(code, written).await)
}

/// Refuses `force` on patches other than apply.
pub(super) fn refuse_force(call: &Call<'_>) -> Result<(), ApiError> {
    match call.query.has("force") {
        true => Err(invalid_options(FieldError::forbidden("force", "may not be specified for non-apply patch"))),
        false => Ok(()),
    }
}

/// The error for invalid patch options.
pub(super) fn invalid_options(cause: FieldError) -> ApiError {
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: "PatchOptions".into() };
    ApiError::Invalid { kind, name: String::new(), causes: vec![cause] }
}

/// A patch of the object of a call.
struct PatchedObject<'a> {
    call: &'a Call<'a>,
    patch: Patch,
}

#[async_trait]
impl DesiredObject for PatchedObject<'_> {
    fn create(&self) -> Result<Option<(Object, Given)>, ApiError> {
        Ok(None)
    }

    async fn replace(&self, old: &Object) -> Result<(Object, Given), ApiError> {
        patched_object(self.call, &self.patch, old)
    }
}

pub(super) fn read(call: &Call<'_>) -> Result<Patch, ApiError> {
    let unreadable = |error: &dyn std::fmt::Display| ApiError::BadRequest(format!("error decoding patch: {error}"));
    match call.patch_type.as_str() {
        "application/json-patch+json" => {
            let operations = match json(call)? {
                Value::Array(operations) => operations,
                other => return Err(unreadable(&not_a(&other, "[]handlers.jsonPatchOp"))),
            };
            if let Some(odd) = operations.iter().find(|operation| !operation.is_object()) {
                return Err(unreadable(&not_a(odd, "handlers.jsonPatchOp")));
            }
            let patch = serde_json::from_value(operations.into()).map_err(|_| ApiError::Unprocessable)?;
            Ok(Patch::Json(patch))
        }
        "application/merge-patch+json" => {
            let value = json(call)?;
            match value.is_object() {
                true => Ok(Patch::Merge(value)),
                false => Err(unreadable(&not_a(&value, MAP))),
            }
        }
        "application/strategic-merge-patch+json" if call.resource.type_id(&call.version).is_some() => {
            let value = json(call)?;
            match value.is_object() {
                true => Ok(Patch::Strategic(value)),
                false => Err(ApiError::BadRequest(not_a(&value, MAP))),
            }
        }
        "application/strategic-merge-patch+json" => Err(ApiError::UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include: \
             application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
                .into(),
        )),
        _ => Err(ApiError::UnsupportedMediaType("415: Unsupported Media Type".into())),
    }
}

fn json(call: &Call<'_>) -> Result<Value, ApiError> {
    let valid = serde_json::from_slice::<serde::de::IgnoredAny>(&call.body).is_ok();
    match valid {
        true => body::parse(&call.body, crate::request::negotiation::Media::Json),
        false => Err(ApiError::bad_request("invalid JSON patch")),
    }
}

/// Go's name for the type of an untyped object.
const MAP: &str = "map[string]interface {}";

/// Go's message for a value of the wrong type.
fn not_a(value: &Value, wanted: &str) -> String {
    let found = match value {
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Object(_) => "object",
        Value::Null => "null",
    };
    format!("json: cannot unmarshal {found} into Go value of type {wanted}")
}

/// Applies a patch to a value.
pub(crate) fn patched(patch: &Patch, mut value: Value, kind: Option<types::TypeId>) -> Result<Value, ApiError> {
    match patch {
        Patch::Merge(merge) => json_patch::merge(&mut value, merge),
        Patch::Strategic(patch) => {
            let kind = kind.ok_or(ApiError::MethodNotAllowed)?;
            value = types::strategic_merge_patch(kind, &value, patch)
                .map_err(|error| ApiError::BadRequest(error.to_string()))?;
        }
        Patch::Json(operations) => {
            bounded_patch::apply(&mut value, operations).map_err(refused)?;
        }
    }
    // Check the size before the validation of the result, which takes time. The store would refuse the object anyway.
    match json_size(&value) > MAX_PATCHED_BYTES {
        true => Err(ApiError::TooLarge(format!("Request entity too large: limit is {MAX_PATCHED_BYTES}"))),
        false => Ok(value),
    }
}

/// The error for a JSON patch that cannot be applied.
fn refused(error: BoundedPatchError) -> ApiError {
    match error {
        BoundedPatchError::Operations(_) => ApiError::TooLarge(error.to_string()),
        BoundedPatchError::Deep | BoundedPatchError::Shifted => ApiError::BadRequest(error.to_string()),
        BoundedPatchError::Unfit(_) | BoundedPatchError::Copied(_) => ApiError::Unprocessable,
    }
}

fn patched_object(call: &Call<'_>, patch: &Patch, old: &Object) -> Result<(Object, Given), ApiError> {
    let kind = call.resource.type_id(&call.version);
    let value = patched(patch, old.clone().into_value(), kind)?;
    let entries = Given::of(&value);
    let object = body::normalized(call, value).map_err(|error| invalid_result(call, patch, old, error))?;
    if object.api_version() != old.api_version() || object.kind() != old.kind() {
        let error = ApiError::BadRequest(format!(
            "a patch cannot make a {} of {} of a {} of {}",
            object.kind(),
            object.api_version(),
            old.kind(),
            old.api_version()
        ));
        return Err(invalid_result(call, patch, old, error));
    }
    if object.name() != old.name() {
        return Err(update::name_mismatch(object.name(), old.name()));
    }
    if object.namespace() != old.namespace() {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok((object, entries))
}

/// The error for a patch whose result is not an object of the kind. Kubernetes shows the result, or the patch itself if
/// it is a strategic merge patch.
pub(super) fn invalid_result(call: &Call<'_>, patch: &Patch, old: &Object, error: ApiError) -> ApiError {
    let ApiError::BadRequest(message) = error else { return error };
    let shown = match patch {
        Patch::Strategic(patch) => patch.clone(),
        _ => patched(patch, old.clone().into_value(), None).unwrap_or_default(),
    };
    let detail = message.strip_prefix(&body::unhandled(call)).unwrap_or(&message);
    let cause = FieldError::invalid("patch", &shown.to_string().into(), detail);
    let kind = GroupKind { group: String::new(), kind: String::new() };
    ApiError::Invalid { kind, name: String::new(), causes: vec![cause] }
}
