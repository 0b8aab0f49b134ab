//! The verbs of resources (create, get, list, watch, …), one file for each.

mod apply;
mod create;
mod delete;
mod delete_collection;
mod eviction;
mod get;
pub(crate) mod list;
pub(crate) mod metadata;
mod pages;
pub(crate) mod patch;
mod pipeline;
mod review;
mod scale;
mod subresource;
mod update;
pub(crate) mod watch;

use crate::admission::{Admission, AdmissionCall};
use crate::aggregator::Aggregator;
use crate::auth::Access;
use crate::core::{Core, WriteHook};
use crate::error::ApiError;
use crate::flow_control::fair_queue;
use crate::namespaces::{Freshness, Namespaces};
use crate::request::Request;
use crate::request::negotiation::{Media, Representation};
use crate::resource::codec::Typed;
use crate::resource::registry::Registry;
use crate::resource::{Origin, Resource, Scope, Verb};
use crate::storage::object_store::{ObjectStore, Written};
use crate::storage::watch_cache::WatchCache;
use crate::storage_version::Agreement;
use bytes::Bytes;
use restow_api::GroupResource;
use restow_apimachinery::object::Object;
use restow_apimachinery::types;
use restow_auth::ResourceAttributes;
use restow_store::{Compare, Revision};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use thiserror::Error;

/// Dependencies of all handlers.
pub(crate) struct Handlers {
    pub(crate) core: Arc<Core>,
    pub(crate) access: Arc<Access>,
    pub(crate) namespaces: Arc<Namespaces>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) agreement: Arc<Agreement>,
    /// The API servers behind this one.
    pub(crate) aggregator: Arc<Aggregator>,
    /// Write hooks by resource.
    pub(crate) write_hooks: HashMap<GroupResource, Arc<dyn WriteHook>>,
    /// Whether clients may delete objects that cannot be decoded (`ignoreStoreReadErrorWithClusterBreakingPotential`).
    pub(crate) deletes_unreadable: bool,
}

impl Handlers {
    pub(crate) fn objects(&self) -> &ObjectStore {
        self.core.objects()
    }

    pub(crate) fn watch_cache(&self) -> &WatchCache {
        self.core.watch_cache()
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.core.registry()
    }

    /// The write hook of a built-in resource.
    pub(crate) fn write_hook(&self, resource: &Resource) -> Option<&Arc<dyn WriteHook>> {
        self.write_hooks.get(&resource.group_resource).filter(|_| resource.origin == Origin::Builtin)
    }

    /// Decides whether an object of a resource may be deleted.
    pub(crate) async fn check_deletion(&self, resource: &Resource, object: &Object) -> Result<(), ApiError> {
        match self.write_hook(resource) {
            Some(hook) => hook.check_deletion(object).await,
            None => Ok(()),
        }
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }
}

/// A request that is being handled.
pub(crate) struct Call<'a> {
    pub(crate) handlers: &'a Handlers,
    pub(crate) request: Request,
}

impl Deref for Call<'_> {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.request
    }
}

/// A response that was cut off. The client notices that it is incomplete.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the response was cut off")]
pub(crate) struct Interrupted;

/// The response of a handler, before `http` renders it.
pub(crate) enum HandlerResponse {
    /// An object, or a `Status`, in the call's version.
    Object { code: u16, object: Object },
    /// A body that is encoded already.
    Bytes { code: u16, body: Bytes, media: Media },
    /// An empty body.
    Empty,
    /// A list of objects with the list's metadata.
    List { objects: Vec<Object>, metadata: serde_json::Value },
    /// A list that is sent while it is read.
    Stream(Box<list::ListStream>),
    /// A stream of watch events.
    Watch(Box<watch::WatchStream>),
}

impl HandlerResponse {
    /// A body that is encoded as JSON.
    fn json(code: u16, body: Vec<u8>) -> Self {
        HandlerResponse::Bytes { code, body: body.into(), media: Media::Json }
    }
}

/// Calls the handler of the verb.
pub(crate) async fn handle(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    if !call.target.subresource.is_empty() {
        call.check_scope()?;
        if let Some(response) = subresource::handle(call).await? {
            return Ok(response);
        }
    } else if !call.resource.verbs.contains(&call.target.verb) {
        return Err(ApiError::MethodNotAllowed);
    }
    call.check_scope()?;
    if let Some(warning) = call.resource.custom.as_ref().and_then(|custom| custom.warning.as_ref()) {
        call.warn(warning.clone());
    }
    let writes = matches!(call.target.verb, Verb::Create | Verb::Update | Verb::Patch);
    if let Some(custom) = call.resource.custom.as_ref().filter(|_| writes)
        && custom.schemas.load().is_costly(&call.version.to_string())
    {
        fair_queue::wait_for_turn(usize::MAX).await;
    }
    if call.resource.storage.is_none() {
        return match call.target.verb {
            Verb::Create => subresource::create_unstored(call).await,
            Verb::List => Ok(HandlerResponse::List { objects: Vec::new(), metadata: serde_json::json!({}) }),
            Verb::Get => Err(call.not_found(&call.target.name)),
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
    /// The request as an input of admission.
    pub(crate) fn admission(&self) -> AdmissionCall<'_> {
        AdmissionCall { admission: &self.handlers.admission, request: &self.request }
    }

    /// Checks that the user may create the object that an update or apply would create.
    fn authorize_creation(&self) -> Result<(), ApiError> {
        let creation = ResourceAttributes {
            verb: Verb::Create.to_string(),
            group: self.version.group().into(),
            version: self.version.version().into(),
            resource: self.resource.group_resource.resource().into(),
            subresource: self.target.subresource.clone(),
            namespace: self.target.namespace.clone(),
            name: self.target.name.clone(),
        };
        self.handlers.access().authorize(&self.user, &creation.into())
    }

    /// Refuses to create an object in a namespace that does not exist or is being deleted.
    async fn check_namespace(&self, name: &str, freshness: Freshness) -> Result<Option<Compare>, ApiError> {
        match self.resource.scope {
            Scope::Cluster => Ok(None),
            Scope::Namespaced => {
                self.handlers.namespaces.check_namespace(&self.resource, &self.target.namespace, name, freshness).await
            }
        }
    }

    /// The response with an object in the stored encoding, without decoding it; `None` if the client requested another
    /// version or format.
    fn response_as_stored(&self, code: u16, stored: &[u8], revision: Revision) -> Option<HandlerResponse> {
        let opening = self.resource.opening(&self.version);
        if self.accepted.media == Media::Yaml || !opening.opens(stored) {
            return None;
        }
        let mut body = Vec::with_capacity(stored.len() + 64);
        match self.accepted.shape {
            Representation::Whole => opening.splice(stored, revision, Typed::Yes, &mut body),
            Representation::MetadataOnly => opening.splice_metadata(stored, revision, &mut body),
            Representation::Table(_) => return None,
        }
        if self.accepted.media == Media::Protobuf {
            body = types::transcode_protobuf(&body).ok()?;
        }
        Some(HandlerResponse::Bytes { code, body: body.into(), media: self.accepted.media })
    }

    /// The response with an object that was written.
    async fn written_response(&self, code: u16, written: Written) -> HandlerResponse {
        let stored = written.stored.as_ref();
        fair_queue::wait_for_turn(stored.map_or(self.body.len(), Bytes::len)).await;
        let as_stored = stored.and_then(|stored| self.response_as_stored(code, stored, written.revision));
        as_stored.unwrap_or_else(|| HandlerResponse::Object { code, object: written.into_object() })
    }
}
