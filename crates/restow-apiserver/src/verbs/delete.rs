//! Removing an object.

use crate::error::ApiError;
use crate::object::Object;
use crate::object_store::{Change, Changed, Decision};
use crate::verbs::{Answer, Call, body, metadata};
use async_trait::async_trait;
use serde_json::{Value, json};

/// How to delete, from the body and the query.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    dry_run: bool,
    uid: String,
    resource_version: String,
}

pub(super) async fn delete(call: &Call<'_>) -> Result<Answer, ApiError> {
    let options = DeleteOptions::of(call)?;
    let name = &call.target.name;
    let answer = delete_one(call, name, &options).await?.ok_or_else(|| call.not_found(name))?;
    Ok(answer)
}

/// Deletes one object; `None` when there is none.
pub(super) async fn delete_one(
    call: &Call<'_>,
    name: &str,
    options: &DeleteOptions,
) -> Result<Option<Answer>, ApiError> {
    let mut decision = Removal { call, name, options, rehearsed: false };
    let changed = call.server.objects().change(call.place(name), &mut decision).await?;
    let changed = match changed {
        Changed::Updated(old) if decision.rehearsed => Changed::Removed(old),
        changed => changed,
    };
    Ok(match changed {
        Changed::Absent => None,
        Changed::Removed(object) => Some(Answer::Object { code: 200, object: success(call, &object) }),
        Changed::Created(object) | Changed::Updated(object) => Some(Answer::Object { code: 200, object }),
    })
}

/// Removes an object, or marks it.
struct Removal<'a> {
    call: &'a Call<'a>,
    name: &'a str,
    options: &'a DeleteOptions,
    /// A dry run would have removed it.
    rehearsed: bool,
}

#[async_trait]
impl Decision for Removal<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let Some(old) = before else { return Ok(Change::Keep) };
        self.options.check(self.call, self.name, old)?;
        let change = removal(self.call, old);
        if self.options.dry_run {
            self.rehearsed = change == Change::Remove;
            return Ok(Change::Keep);
        }
        Ok(change)
    }
}

impl DeleteOptions {
    pub(super) fn of(call: &Call<'_>) -> Result<Self, ApiError> {
        let body = body::value(call)?;
        if !body.is_null() && body["kind"].as_str().is_some_and(|kind| kind != "DeleteOptions") {
            return Err(ApiError::bad_request("the body of a deletion must be DeleteOptions"));
        }
        let in_body = body["dryRun"].as_array().is_some_and(|list| list.iter().any(|item| item == "All"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        Ok(DeleteOptions {
            dry_run: call.query.dry_run()? || in_body,
            uid: text(&body["preconditions"]["uid"]),
            resource_version: text(&body["preconditions"]["resourceVersion"]),
        })
    }

    fn check(&self, call: &Call<'_>, name: &str, object: &Object) -> Result<(), ApiError> {
        let checks =
            [("UID", &self.uid, object.uid()), ("ResourceVersion", &self.resource_version, object.resource_version())];
        for (what, wanted, found) in checks {
            if !wanted.is_empty() && wanted != found {
                return Err(call.conflict(
                    name,
                    format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"),
                ));
            }
        }
        Ok(())
    }
}

/// Removes the object at once, or marks it while something still holds on to it.
fn removal(call: &Call<'_>, old: &Object) -> Change {
    let namespace = call.resource.names.kind == "Namespace" && call.version.group().is_empty();
    let occupied = namespace
        && old.at(&["spec", "finalizers"]).and_then(Value::as_array).is_some_and(|finalizers| !finalizers.is_empty());
    if old.finalizers().is_empty() && !occupied {
        return Change::Remove;
    }
    if old.is_being_deleted() {
        return Change::Keep;
    }
    let mut marked = old.clone();
    metadata::mark_deleted(&mut marked);
    if namespace {
        marked.set("status", Some(json!({"phase": "Terminating"})));
    }
    Change::Write(marked)
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
