//! Removing an object.

use crate::admission::{self, DryRun};
use crate::error::{ApiError, GroupKind};
use crate::handlers::{Answer, Call};
use crate::request::body;
use crate::storage::deletion::{self, DeleteOptions, IGNORE_READ_ERROR};
use crate::storage::object_store::{Change, Changed, Decision, Force};
use async_trait::async_trait;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::{self, TypeTable};
use restow_auth::{Attributes, ResourceAttributes};
use serde_json::json;

pub(super) async fn delete(call: &Call<'_>) -> Result<Answer, ApiError> {
    let options = options(call)?;
    if options.ignore_read_error {
        return delete_unreadable(call, &options).await;
    }
    if options.propagation.is_none() && call.resource.strategy.orphans_dependents() && call.resource.names.kind == "Job"
    {
        call.warn(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or \
             set propagationPolicy=Orphan to suppress this warning"
                .into(),
        );
    }
    let name = &call.target.name;
    delete_one(call, name, &options, Admission::Due).await?.ok_or_else(|| call.not_found(name))
}

/// Deletes an object that cannot be read, for whoever may do even that.
async fn delete_unreadable(call: &Call<'_>, options: &DeleteOptions) -> Result<Answer, ApiError> {
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
    let force = if options.dry_run { Force::DryRun } else { Force::Remove };
    call.handlers.objects().remove_unreadable(call.place(name), force).await?;
    let details = json!({"name": name, "kind": call.resource.names.kind});
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details, "code": 200,
    });
    Ok(Answer::Object { code: 200, object: Object::from_value(status).unwrap_or_default() })
}

/// How to delete, from the body or, where there is none, from the query.
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
    options.dry_run |= call.dry_run()?;
    Ok(options)
}

pub(super) fn invalid_options(causes: Vec<FieldError>) -> ApiError {
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: "DeleteOptions".into() };
    ApiError::Invalid { kind, name: String::new(), causes }
}

/// Whether a removal has yet to be admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Nobody has been asked.
    Due,
    /// What leads to the removal has been admitted instead.
    Settled,
}

/// Deletes one object; `None` when there is none.
pub(super) async fn delete_one(
    call: &Call<'_>,
    name: &str,
    options: &DeleteOptions,
    admission: Admission,
) -> Result<Option<Answer>, ApiError> {
    let mut decision = Removal { call, name, options, admission, rehearsed: None };
    let changed = call.handlers.objects().change(call.place(name), &mut decision).await?;
    let object = match (changed, decision.rehearsed) {
        (Changed::Absent, _) => return Ok(None),
        (Changed::Updated(old), Some(Change::Remove)) => removed(call, old.into_object()),
        (Changed::Updated(_), Some(Change::Write(marked))) => marked,
        (Changed::Removed(object), _) => removed(call, object),
        (Changed::Created(written) | Changed::Updated(written), _) => {
            return Ok(Some(call.written(200, written).await));
        }
    };
    Ok(Some(Answer::Object { code: 200, object }))
}

/// What is answered when an object is gone.
fn removed(call: &Call<'_>, mut object: Object) -> Object {
    if !call.resource.strategy.returns_deleted() {
        return success(call, &object);
    }
    if call.resource.group_resource.to_string() == "pods" {
        deletion::end_grace(&mut object, jiff::Timestamp::now());
    }
    object
}

/// Removes an object, or marks it.
struct Removal<'a> {
    call: &'a Call<'a>,
    name: &'a str,
    options: &'a DeleteOptions,
    admission: Admission,
    /// What a dry run would have done.
    rehearsed: Option<Change>,
}

#[async_trait]
impl Decision for Removal<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let Some(old) = before else { return Ok(Change::Keep) };
        if let Some(unmet) = self.options.unmet(old) {
            // Kubernetes names the kind here, and the resource everywhere else.
            let kind = self.call.resource.names.kind.clone();
            return Err(ApiError::ConflictOn { kind, name: self.name.to_string(), message: unmet });
        }
        let dry_run = if self.options.dry_run { DryRun::Yes } else { DryRun::No };
        if self.admission == Admission::Due {
            admission::admit_removal(&self.call.admission(), old, dry_run).await?;
        }
        let strategy = self.call.resource.strategy.as_ref();
        let change = deletion::decide(strategy, old, self.options, jiff::Timestamp::now());
        if self.options.dry_run {
            self.rehearsed = Some(change);
            return Ok(Change::Keep);
        }
        Ok(change)
    }
}

/// What the server says when an object is gone.
fn success(call: &Call<'_>, object: &Object) -> Object {
    let mut details =
        json!({"name": object.name(), "kind": call.resource.group_resource.resource(), "uid": object.uid()});
    if !call.version.group().is_empty() {
        details["group"] = call.version.group().into();
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Object::from_value(status).unwrap_or_default()
}
