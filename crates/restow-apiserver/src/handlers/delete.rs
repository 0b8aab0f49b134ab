//! Delete: removes an object, or marks it as deleted while finalizers or its grace period keep it.

use crate::admission;
use crate::error::{ApiError, GroupKind};
use crate::handlers::{Call, HandlerResponse};
use crate::request::body;
use crate::storage::deletion::{self, DeleteOptions, IGNORE_READ_ERROR};
use crate::storage::object_store::{Changed, ObjectChange, ObjectDecision};
use async_trait::async_trait;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::{self, TypeTable};
use restow_auth::{Attributes, ResourceAttributes};
use serde_json::json;

pub(super) async fn delete(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let options = options(call)?;
    if options.ignore_read_error {
        return delete_unreadable(call, &options).await;
    }
    if let Some(warning) = call.resource.strategy.deletion_warning().filter(|_| options.propagation.is_none()) {
        call.warn(warning.into());
    }
    let name = &call.target.name;
    delete_one(call, name, &options, DeleteAdmission::Run).await?.ok_or_else(|| call.not_found(name))
}

/// Deletes an object that cannot be decoded. The user needs the permission for this unsafe deletion.
async fn delete_unreadable(call: &Call<'_>, options: &DeleteOptions) -> Result<HandlerResponse, ApiError> {
    const VERB: &str = "unsafe-delete-ignore-read-errors";
    let name = &call.target.name;
    call.annotate("apiserver.k8s.io/unsafe-delete-ignore-read-error".into(), String::new());
    let attributes = Attributes::Resource(ResourceAttributes {
        verb: VERB.into(),
        group: call.version.group().into(),
        version: call.version.version().into(),
        resource: call.resource.group_resource.resource().into(),
        subresource: String::new(),
        namespace: call.target.namespace.clone(),
        name: name.clone(),
    });
    call.handlers.access().authorize(&call.user, &attributes).map_err(|_| ApiError::Forbidden {
        resource: call.resource.group_resource.clone(),
        name: name.clone(),
        message: format!("not permitted to do {VERB:?}, reason: "),
    })?;
    call.handlers.objects().remove_unreadable(call.object_ref(name), options.dry_run).await?;
    let details = json!({"name": name, "kind": call.resource.names.kind});
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details, "code": 200,
    });
    Ok(HandlerResponse::Object { code: 200, object: Object::from_value(status).unwrap_or_default() })
}

/// The delete options from the body or, if it is empty, from the query.
pub(super) fn options(call: &Call<'_>) -> Result<DeleteOptions, ApiError> {
    let mut given = body::value(call)?;
    if given["kind"].as_str().is_some_and(|kind| kind != "DeleteOptions") {
        return Err(ApiError::BadRequest(format!(
            "no kind {:?} is registered for version {:?}: the body of a deletion must be DeleteOptions",
            given["kind"].as_str().unwrap_or_default(),
            given["apiVersion"].as_str().unwrap_or_default()
        )));
    }
    let in_query = |name: &str| Some(call.query.text(name)).filter(|text| !text.is_empty());
    if given.is_null() {
        given = json!({});
        if let Some(policy) = in_query("propagationPolicy") {
            given["propagationPolicy"] = policy.into();
        }
        if in_query(IGNORE_READ_ERROR).is_some() {
            given[IGNORE_READ_ERROR] = call.query.is_on(IGNORE_READ_ERROR).into();
        }
        if in_query("orphanDependents").is_some() {
            given["orphanDependents"] = call.query.is_on("orphanDependents").into();
        }
        if let Some(seconds) = call.query.number("gracePeriodSeconds")? {
            given["gracePeriodSeconds"] = seconds.into();
        }
    } else if let Some(kind) = TypeTable::shared().kind("v1", "DeleteOptions") {
        let decoded = types::normalize(kind, given).map_err(|error| {
            ApiError::BadRequest(format!(
                "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: {error}"
            ))
        })?;
        given = decoded.value;
    }
    if let Some(fields) = given.as_object_mut().filter(|_| !call.handlers.deletes_unreadable) {
        fields.remove(IGNORE_READ_ERROR);
    }
    let mut options = DeleteOptions::from_value(&given).map_err(invalid_options)?;
    options.dry_run = options.dry_run.or(call.dry_run()?);
    Ok(options)
}

pub(super) fn invalid_options(causes: Vec<FieldError>) -> ApiError {
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: "DeleteOptions".into() };
    ApiError::Invalid { kind, name: String::new(), causes }
}

/// Whether admission still has to run for a deletion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DeleteAdmission {
    /// Admission runs before the deletion.
    Run,
    /// Admission has run for the request that leads to the deletion, for example an eviction.
    AlreadyRun,
}

/// Deletes one object; `None` when it does not exist.
pub(super) async fn delete_one(
    call: &Call<'_>,
    name: &str,
    options: &DeleteOptions,
    admission: DeleteAdmission,
) -> Result<Option<HandlerResponse>, ApiError> {
    let mut decision = DeleteDecision { call, name, options, admission };
    let object = match call.handlers.objects().commit(call.object_ref(name), &mut decision, options.dry_run).await? {
        Changed::Absent => return Ok(None),
        Changed::Removed(object) => removed(call, object),
        Changed::Created(written) | Changed::Updated(written) => {
            return Ok(Some(call.written_response(200, written).await));
        }
    };
    Ok(Some(HandlerResponse::Object { code: 200, object }))
}

/// The response after the object was removed.
fn removed(call: &Call<'_>, mut object: Object) -> Object {
    if !call.resource.strategy.returns_deleted() {
        return success(call, &object);
    }
    call.resource.strategy.finish_deletion(&mut object, restow_host::now());
    object
}

/// Decides whether an object is removed, or only marked as deleted.
struct DeleteDecision<'a> {
    call: &'a Call<'a>,
    name: &'a str,
    options: &'a DeleteOptions,
    admission: DeleteAdmission,
}

#[async_trait]
impl ObjectDecision for DeleteDecision<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(old) = before else { return Ok(ObjectChange::Keep) };
        if let Some(unmet) = self.options.unmet(old) {
            // Kubernetes names the kind here, and the resource everywhere else.
            let kind = self.call.resource.names.kind.clone();
            return Err(ApiError::ConflictOn { kind, name: self.name.to_string(), message: unmet });
        }
        self.call.handlers.check_deletion(&self.call.resource, old).await?;
        if self.admission == DeleteAdmission::Run {
            admission::admit_removal(&self.call.admission(), old, self.options.dry_run).await?;
        }
        let strategy = self.call.resource.strategy.as_ref();
        Ok(deletion::decide(strategy, old, self.options, restow_host::now()))
    }
}

/// The `Status` that confirms a deletion.
fn success(call: &Call<'_>, object: &Object) -> Object {
    let mut details =
        json!({"name": object.name(), "kind": call.resource.group_resource.resource(), "uid": object.uid()});
    if !call.version.group().is_empty() {
        details["group"] = call.version.group().into();
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Object::from_value(status).unwrap_or_default()
}
