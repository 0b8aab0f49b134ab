//! Server-side apply: a client sends the fields that it wants to manage, and the server records the manager of each
//! field.

use crate::error::ApiError;
use crate::field_manager::{Application, FieldConflict};
use crate::handlers::pipeline::{self, DesiredObject};
use crate::handlers::{Call, HandlerResponse, patch, update};
use crate::request::body;
use crate::request::negotiation::Media;
use crate::resource::object_meta;
use async_trait::async_trait;
use restow_apimachinery::field::{FieldError, FieldProblem};
use restow_apimachinery::managed_fields::{FieldWriter, Given};
use restow_apimachinery::object::Object;
use restow_apimachinery::types;
use serde_json::{Value, json};

/// The media type of an apply patch.
pub(super) const MEDIA_TYPE: &str = "application/apply-patch+yaml";

pub(super) async fn apply(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    check_manager(call)?;
    let configuration = read(call)?;
    let (manager, now, version) = (call.manager(), object_meta::now(), call.version.to_string());
    let subresource = &call.target.subresource;
    let writer = FieldWriter { manager: &manager, subresource, api_version: &version, now: &now };
    let application = Application::new(&call.resource, writer, configuration);
    let applied = AppliedObject { call, application, force: call.query.is_on("force") };
    let (code, written) = pipeline::write(call, &applied).await?;
    Ok(call.written_response(code, written).await)
}

/// Refuses an apply patch without a field manager.
pub(super) fn check_manager(call: &Call<'_>) -> Result<(), ApiError> {
    match call.query.text("fieldManager") {
        "" => Err(patch::invalid_options(FieldError::required("fieldManager", "is required for apply patch"))),
        _ => Ok(()),
    }
}

/// The object of a call, with an apply patch merged into it.
struct AppliedObject<'a> {
    call: &'a Call<'a>,
    application: Application<'a>,
    force: bool,
}

#[async_trait]
impl DesiredObject for AppliedObject<'_> {
    async fn replace(&self, live: &Object) -> Result<(Object, Given), ApiError> {
        update::check_preconditions(self.call, &self.application.configuration, live)?;
        let merged = self.application.merged(live).await?;
        let object = body::normalized(self.call, merged.into_value())?;
        let (entries, conflicts) = self.application.entries(live, &object).await?;
        if !conflicts.is_empty() && !self.force {
            return Err(conflict(&conflicts));
        }
        Ok((object, Given::Applied(entries)))
    }

    /// Apply creates a missing object, but never a subresource.
    fn create(&self) -> Result<Option<(Object, Given)>, ApiError> {
        let call = self.call;
        if !call.target.subresource.is_empty() {
            return Ok(None);
        }
        let uid = self.application.configuration.uid();
        if !uid.is_empty() {
            let message =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(call.conflict(&call.target.name, message));
        }
        let object = body::normalized(call, self.application.configuration.clone().into_value())?;
        Ok(Some((object, Given::Applied(self.application.first_entries()))))
    }
}

/// The apply patch in the body.
fn read(call: &Call<'_>) -> Result<Object, ApiError> {
    let (value, problems) = parse(call)?;
    let mut object = Object::from_value(value)
        .map_err(|_| ApiError::bad_request("error decoding patch: a configuration must be an object"))?;
    let (version, kind) = (call.version.to_string(), &call.resource.names.kind);
    if object.api_version() != version || object.kind() != kind {
        let (group, version) = object.api_version().split_once('/').unwrap_or(("", object.api_version()));
        return Err(ApiError::BadRequest(format!("invalid object type: {group}/{version}, Kind={}", object.kind())));
    }
    if object.at(&["metadata", "managedFields"]).is_some_and(|entries| !entries.is_null()) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    if object.name().is_empty() {
        object.set_meta("name", &call.target.name);
    }
    if object.name() != call.target.name {
        return Err(update::name_mismatch(object.name(), &call.target.name));
    }
    check_fields(call, &object)?;
    match call.query.text("fieldValidation") {
        "Ignore" => {}
        "Strict" => {
            if let Some(problem) = problems.first() {
                return Err(ApiError::BadRequest(format!("error strict decoding patch: {problem}")));
            }
        }
        _ => problems.iter().for_each(|problem| call.warn(problem.to_string())),
    }
    Ok(object)
}

/// Parses the body as YAML; JSON is YAML too.
pub(super) fn parse(call: &Call<'_>) -> Result<(Value, Vec<FieldProblem>), ApiError> {
    body::read(&call.body, Media::Json)
        .or_else(|_| body::read(&call.body, Media::Yaml))
        .map_err(|error| ApiError::BadRequest(format!("error decoding patch: {error}")))
}

/// Refuses fields that the type does not have.
fn check_fields(call: &Call<'_>, object: &Object) -> Result<(), ApiError> {
    let problems = match call.resource.type_id(&call.version) {
        Some(kind) => match types::normalize(kind, object.clone().into_value()) {
            Ok(decoded) => decoded.problems,
            Err(error) => return Err(untyped(object, &error.to_string())),
        },
        None => {
            let mut read = object.clone();
            let unknown = call.resource.strategy.read(&mut read);
            let metadata = body::read_metadata(&mut read).map_err(|error| untyped(object, &error.to_string()))?;
            [metadata, unknown].concat()
        }
    };
    let unknown = problems.iter().filter_map(|problem| match problem {
        FieldProblem::Unknown(path) => Some(path),
        _ => None,
    });
    // Kubernetes checks the fields in order, and reports the first unknown one.
    match unknown.min() {
        Some(path) => Err(untyped(object, &format!(".{path}: field not declared in schema"))),
        None => Ok(()),
    }
}

/// Kubernetes sends the same message, but with code 500.
fn untyped(object: &Object, problem: &str) -> ApiError {
    let (namespace, name, kind) = (object.namespace(), object.name(), object.kind());
    let (group, version) = object.api_version().split_once('/').unwrap_or(("", object.api_version()));
    ApiError::BadRequest(format!(
        "failed to create typed patch object ({namespace}/{name}; {group}/{version}, Kind={kind}): {problem}"
    ))
}

/// The conflict with the managers of other fields.
pub(super) fn conflict(conflicts: &[FieldConflict]) -> ApiError {
    let message = match conflicts {
        [one] => format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.path),
        many => {
            let mut lines = Vec::new();
            let mut manager = "";
            for conflict in many {
                if conflict.manager != manager {
                    manager = &conflict.manager;
                    lines.push(format!("conflicts with {manager}:"));
                }
                lines.push(format!("- {}", conflict.path));
            }
            format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n"))
        }
    };
    let cause = |conflict: &FieldConflict| -> Value {
        let words = format!("conflict with {}", conflict.manager);
        json!({"reason": "FieldManagerConflict", "message": words, "field": conflict.path})
    };
    let causes: Vec<Value> = conflicts.iter().map(cause).collect();
    ApiError::Denied { code: 409, reason: "Conflict".into(), message, details: Some(json!({"causes": causes})) }
}
