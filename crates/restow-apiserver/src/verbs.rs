//! What can be done with resources, one file for each verb.

mod body;
mod create;
mod delete;
mod delete_collection;
mod get;
mod list;
pub(crate) mod metadata;
mod patch;
mod review;
mod update;
pub(crate) mod watch;

use crate::auth::User;
use crate::error::{ApiError, GroupKind};
use crate::field::FieldError;
use crate::http::negotiate::{Accepted, Media};
use crate::http::query::Query;
use crate::http::request_info::ResourceTarget;
use crate::object::Object;
use crate::object_store::Place;
use crate::resource::{Resource, Scope, Verb};
use crate::server::ApiServer;
use bytes::Bytes;
use restow_api::GroupVersion;
use std::sync::{Arc, Mutex, PoisonError};

/// A request about a resource, with everything that its verb needs.
pub(crate) struct Call<'a> {
    pub(crate) server: &'a ApiServer,
    pub(crate) user: User,
    pub(crate) resource: Arc<Resource>,
    pub(crate) version: GroupVersion,
    pub(crate) target: Arc<ResourceTarget>,
    pub(crate) query: Query,
    pub(crate) accepted: Accepted,
    pub(crate) content: Option<Media>,
    pub(crate) patch_type: String,
    pub(crate) body: Bytes,
    pub(crate) warnings: Mutex<Vec<String>>,
}

/// What a verb answers.
pub(crate) enum Answer {
    /// An object, or a `Status`, in the call's version.
    Object { code: u16, object: Object },
    /// JSON that is ready to be sent.
    Json(Vec<u8>),
    /// A list of objects with the list's metadata.
    List { objects: Vec<Object>, metadata: serde_json::Value },
    /// A stream of changes.
    Watch(Box<watch::Changes>),
}

/// Does what the call asks for.
pub(crate) async fn perform(call: &Call<'_>) -> Result<Answer, ApiError> {
    if !call.target.subresource.is_empty() {
        let subresource = call.resource.subresource(&call.target.subresource).ok_or(ApiError::NoSuchResource)?;
        if !subresource.verbs.contains(&call.target.verb) {
            return Err(ApiError::MethodNotAllowed);
        }
        match (call.resource.group_resource.resource(), call.target.subresource.as_str()) {
            (_, "status") => {}
            ("serviceaccounts", "token") => return review::token(call).await,
            // Other subresources have answers of their own, which this server does not give.
            _ => return Err(ApiError::NoSuchResource),
        }
    } else if !call.resource.verbs.contains(&call.target.verb) {
        return Err(ApiError::MethodNotAllowed);
    }
    call.check_scope()?;
    if call.resource.storage.is_none() {
        return match call.target.verb {
            Verb::Create => review::review(call).await,
            _ => Err(ApiError::MethodNotAllowed),
        };
    }
    match call.target.verb {
        Verb::Get => get::get(call).await,
        Verb::List => list::list(call).await,
        Verb::Watch => watch::watch(call).await,
        Verb::Create => create::create(call).await,
        Verb::Update => update::update(call).await,
        Verb::Patch => patch::patch(call).await,
        Verb::Delete => delete::delete(call).await,
        Verb::DeleteCollection => delete_collection::delete_collection(call).await,
    }
}

impl Call<'_> {
    fn check_scope(&self) -> Result<(), ApiError> {
        let in_namespace = !self.target.namespace.is_empty();
        match (self.resource.scope, self.target.verb) {
            (Scope::Cluster, _) if in_namespace => Err(ApiError::NoSuchResource),
            // Collections can be read across namespaces; nothing else can be done there.
            (Scope::Namespaced, Verb::List | Verb::Watch | Verb::DeleteCollection) => Ok(()),
            (Scope::Namespaced, _) if !in_namespace => Err(ApiError::NoSuchResource),
            _ => Ok(()),
        }
    }

    /// Refuses to create an object in a namespace that is not there, or not for long.
    async fn check_namespace(&self, name: &str) -> Result<(), ApiError> {
        match self.resource.scope {
            Scope::Cluster => Ok(()),
            Scope::Namespaced => self.server.check_namespace(&self.resource, &self.target.namespace, name).await,
        }
    }

    pub(crate) fn place<'b>(&'b self, name: &'b str) -> Place<'b> {
        Place { resource: &self.resource, version: &self.version, namespace: &self.target.namespace, name }
    }

    /// Tells the client something beside the answer.
    pub(crate) fn warn(&self, warning: String) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning);
    }

    /// What is to be told beside the answer.
    pub(crate) fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn not_found(&self, name: &str) -> ApiError {
        ApiError::NotFound { resource: self.resource.group_resource.clone(), name: name.to_string() }
    }

    pub(crate) fn conflict(&self, name: &str, message: impl Into<String>) -> ApiError {
        let resource = self.resource.group_resource.clone();
        ApiError::Conflict { resource, name: name.to_string(), message: message.into() }
    }

    pub(crate) fn invalid(&self, name: &str, causes: Vec<FieldError>) -> ApiError {
        let kind = GroupKind { group: self.version.group().to_string(), kind: self.resource.names.kind.clone() };
        ApiError::Invalid { kind, name: name.to_string(), causes }
    }
}
