//! Subresources: the fields that each of them writes, and those that are actions.
//!
//! What is special about a kind's subresources is in its strategy.

mod binding;

use crate::admission::{self, Operation};
use crate::error::ApiError;
use crate::handlers::{Call, HandlerResponse, eviction, review, scale};
use crate::resource::strategy::{Connection, SubresourceAction};
use restow_apimachinery::object::Object;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::time::Duration;

/// Handles a request for a subresource; `None` when the subresource is written like its object.
pub(super) async fn handle(call: &Call<'_>) -> Result<Option<HandlerResponse>, ApiError> {
    let subresource = call.target.subresource.as_str();
    let (first, _) = subresource.split_once('/').unwrap_or((subresource, ""));
    let known = call.resource.subresource(subresource).or_else(|| match first {
        // A path may follow `proxy`.
        "proxy" => call.resource.subresource(first),
        _ => None,
    });
    let known = known.ok_or(ApiError::NoSuchResource)?;
    if !known.verbs.contains(&call.target.verb) {
        return Err(ApiError::MethodNotAllowed);
    }
    if first == "scale" {
        return scale::scale(call).await.map(Some);
    }
    let strategy = &call.resource.strategy;
    match strategy.subresource_action(first) {
        Some(action) => run(call, action).await.map(Some),
        None if strategy.subresource_fields(first).is_some() => Ok(None),
        None => Err(ApiError::NoSuchResource),
    }
}

/// Handles a create of a kind that is not stored.
pub(super) async fn create_unstored(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    match call.resource.strategy.subresource_action("") {
        Some(action) => run(call, action).await,
        None => Err(ApiError::MethodNotAllowed),
    }
}

async fn run(call: &Call<'_>, action: SubresourceAction) -> Result<HandlerResponse, ApiError> {
    match action {
        SubresourceAction::Bind => binding::bind(call, &call.target.name).await,
        SubresourceAction::Evict => eviction::evict(call).await,
        SubresourceAction::IssueToken => review::token(call).await,
        SubresourceAction::Connect => connect(call).await,
        SubresourceAction::Review(kind) => review::review(call, kind).await,
    }
}

/// Restores all fields that this subresource does not write from the stored object. A write of the object itself does
/// not change its status.
pub(super) fn restrict_to_writable_fields(call: &Call<'_>, object: &mut Object, old: &Object) {
    let (strategy, name) = (&call.resource.strategy, call.target.subresource.as_str());
    let Some(fields) = strategy.subresource_fields(name) else {
        if call.resource.subresource("status").is_some() {
            object.set("status", old.get("status").cloned());
        }
        return strategy.restore_on_update(object, old);
    };
    let sent = std::mem::replace(object, old.clone());
    if name == "status" && strategy.status_update_keeps_metadata() {
        return object.set("status", sent.get("status").cloned());
    }
    for path in fields {
        object.set_at(path, sent.at(path).cloned());
    }
    strategy.prepare_subresource(name, object, &sent, old);
}

/// The stored object with the changes that only this subresource may make.
pub(super) fn with_permitted_changes<'a>(call: &Call<'_>, object: &Object, old: &'a Object) -> Cow<'a, Object> {
    match call.resource.strategy.with_permitted_changes(&call.target.subresource, object, old) {
        Some(baseline) => Cow::Owned(baseline),
        None => Cow::Borrowed(old),
    }
}

/// Runs admission for an object that was sent to a subresource with an action. Returns the object after mutation.
pub(super) async fn admit(call: &Call<'_>, sent: Value) -> Result<Object, ApiError> {
    let sent = if sent.is_null() { json!({}) } else { sent };
    let mut sent = Object::from_value(sent)
        .map_err(|_| ApiError::bad_request("the object provided is unrecognized (must be of type object)"))?;
    let own = (&call.version, call.resource.names.kind.as_str());
    let (version, kind) = call.resource.foreign_kind(&call.target.subresource, &call.version).unwrap_or(own);
    sent.set_type(&version.to_string(), kind);
    let object = admission::mutate(&call.admission(), Operation::Create, sent, None).await?;
    admission::validate(&call.admission(), Operation::Create, Some(&object), None).await?;
    Ok(object)
}

/// The `Status` that confirms an action.
pub(super) fn success(code: u16) -> Object {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code});
    Object::from_value(status).unwrap_or_default()
}

/// The response to a request that needs a connection to a node. This server does not connect to nodes.
async fn connect(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let name = &call.target.name;
    let entry = call.handlers.objects().get(call.object_ref(name)).await?.ok_or_else(|| call.not_found(name))?;
    let object = call.resource.decode(&entry, &call.version).await?;
    match call.resource.strategy.connection(&call.target.subresource, call.target.verb, &object) {
        Connection::Empty => Ok(HandlerResponse::Empty),
        Connection::BadRequest(message) => Err(ApiError::BadRequest(message)),
        Connection::Unavailable(message) => Err(ApiError::Unavailable { message, retry_after: Duration::from_secs(1) }),
    }
}
