//! What can be done with resources, one file for each verb.

mod apply;
pub(crate) mod body;
mod create;
mod delete;
mod delete_collection;
mod eviction;
mod get;
pub(crate) mod list;
pub(crate) mod metadata;
mod pages;
pub(crate) mod patch;
mod review;
mod scale;
mod subresource;
mod update;
pub(crate) mod watch;

use crate::error::{ApiError, GroupKind};
use crate::flow_control::fair_queue;
use crate::namespaces::Freshness;
use crate::request::negotiation::{Accepted, Media, Shape};
use crate::request::options::{MOST_MANAGER_BYTES, is_printable};
use crate::request::query::Query;
use crate::request::request_info::ResourceTarget;
use crate::resource::codec::Typed;
use crate::resource::{Origin, Resource, Scope, Verb};
use crate::server::ApiServer;
use crate::storage::object_store::{ObjectRef, Written};
use bytes::Bytes;
use restow_api::GroupVersion;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use restow_apimachinery::types;
use restow_auth::{ResourceAttributes, User};
use restow_store::{Compare, Revision};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// The most reasons that are given why an object is invalid. A long list may be wrong in each of its items.
const MOST_CAUSES: usize = 1000;

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
    pub(crate) user_agent: String,
    pub(crate) body: Bytes,
    pub(crate) warnings: Mutex<Vec<String>>,
    /// What the audit log is told beside the rest.
    pub(crate) annotations: Mutex<Vec<(String, String)>>,
}

/// An answer that could not be sent to its end. The client sees that it is not whole.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the answer was interrupted")]
pub(crate) struct Interrupted;

/// What a verb answers.
pub(crate) enum Answer {
    /// An object, or a `Status`, in the call's version.
    Object { code: u16, object: Object },
    /// What is ready to be sent.
    Bytes { code: u16, body: Bytes, media: Media },
    /// Nothing to say.
    Nothing,
    /// A list of objects with the list's metadata.
    List { objects: Vec<Object>, metadata: serde_json::Value },
    /// A list that is written while it is read.
    Stream(Box<list::ListStream>),
    /// A stream of changes.
    Watch(Box<watch::Changes>),
}

impl Answer {
    /// JSON that is ready to be sent.
    fn json(code: u16, body: Vec<u8>) -> Self {
        Answer::Bytes { code, body: body.into(), media: Media::Json }
    }
}

/// Does what the call asks for.
pub(crate) async fn perform(call: &Call<'_>) -> Result<Answer, ApiError> {
    if !call.target.subresource.is_empty() {
        call.check_scope()?;
        if let Some(answer) = subresource::answer(call).await? {
            return Ok(answer);
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
        && custom.kind.load().is_costly(&call.version.to_string())
    {
        fair_queue::expect(usize::MAX).await;
    }
    if call.resource.storage.is_none() {
        return match call.target.verb {
            Verb::Create if call.resource.names.kind == "Binding" => subresource::bind(call, "").await,
            Verb::Create => review::review(call).await,
            Verb::List => Ok(Answer::List { objects: Vec::new(), metadata: serde_json::json!({}) }),
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

impl<'a> Call<'a> {
    /// The removal of one object by a controller of this server, in the name that Kubernetes gives to that controller.
    pub(crate) fn by_controller(
        server: &'a ApiServer,
        controller: &str,
        resource: Arc<Resource>,
        place: ObjectRef<'_>,
    ) -> Self {
        let target = ResourceTarget {
            group: place.version.group().to_string(),
            version: place.version.version().to_string(),
            namespace: place.namespace.to_string(),
            resource: resource.group_resource.resource().to_string(),
            name: place.name.to_string(),
            subresource: String::new(),
            verb: Verb::Delete,
        };
        Call {
            server,
            user: User::service_account("kube-system", controller, "").authenticated(),
            resource,
            version: place.version.clone(),
            target: target.into(),
            query: Query::default(),
            accepted: Accepted { media: Media::Json, shape: Shape::Whole },
            content: None,
            patch_type: String::new(),
            user_agent: controller.to_string(),
            body: Bytes::new(),
            warnings: Mutex::default(),
            annotations: Mutex::default(),
        }
    }
}

impl Call<'_> {
    fn check_scope(&self) -> Result<(), ApiError> {
        let in_namespace = !self.target.namespace.is_empty();
        match (self.resource.scope, self.target.verb) {
            (Scope::Cluster, _) if in_namespace => Err(ApiError::NoSuchResource),
            // Collections can be read across namespaces; nothing else can be done there.
            (Scope::Namespaced, Verb::List | Verb::Watch) => Ok(()),
            (Scope::Namespaced, _) if in_namespace => Ok(()),
            // The path is there, for those who read.
            (Scope::Namespaced, _) if self.target.name.is_empty() && self.resource.origin == Origin::Builtin => {
                Err(ApiError::MethodNotAllowed)
            }
            (Scope::Namespaced, _) => Err(ApiError::NoSuchResource),
            (Scope::Cluster, _) => Ok(()),
        }
    }

    /// Refuses to make an object by changing it, where the user may not create it.
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
        self.server.access().authorize(&self.user, &creation.into())
    }

    /// Refuses to create an object in a namespace that is not there, or not for long.
    async fn check_namespace(&self, name: &str, freshness: Freshness) -> Result<Option<Compare>, ApiError> {
        match self.resource.scope {
            Scope::Cluster => Ok(None),
            Scope::Namespaced => {
                self.server.check_namespace(&self.resource, &self.target.namespace, name, freshness).await
            }
        }
    }

    pub(crate) fn place<'b>(&'b self, name: &'b str) -> ObjectRef<'b> {
        ObjectRef { resource: &self.resource, version: &self.version, namespace: &self.target.namespace, name }
    }

    /// Whether nothing is to be written.
    pub(crate) fn dry_run(&self) -> Result<bool, ApiError> {
        let options = match self.target.verb {
            Verb::Create => "CreateOptions",
            Verb::Patch => "PatchOptions",
            Verb::Delete | Verb::DeleteCollection => "DeleteOptions",
            _ => "UpdateOptions",
        };
        let kind = GroupKind { group: "meta.k8s.io".into(), kind: options.into() };
        let asked = self.query.dry_run();
        asked.map_err(|problem| ApiError::Invalid { kind, name: String::new(), causes: vec![problem] })
    }

    /// Who manages the fields that this call sets.
    pub(crate) fn manager(&self) -> String {
        let named = self.query.text("fieldManager");
        let name = match named {
            "" => self.user_agent.split('/').next().unwrap_or_default(),
            named => named,
        };
        // What is named was checked with the other options; what is only guessed from the client is made to fit.
        let mut manager: String = name.chars().filter(|letter| is_printable(*letter)).collect();
        while manager.len() > MOST_MANAGER_BYTES {
            manager.pop();
        }
        manager
    }

    /// Tells the client something beside the answer.
    pub(crate) fn warn(&self, warning: String) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning);
    }

    /// Tells the audit log something beside the rest.
    pub(crate) fn annotate(&self, key: String, value: String) {
        self.annotations.lock().unwrap_or_else(PoisonError::into_inner).push((key, value));
    }

    /// What the audit log is to be told.
    pub(crate) fn annotations(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.annotations.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is to be told beside the answer.
    pub(crate) fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The answer with an object that lies in the store as `stored`, written without reading it; `None` where the client
    /// wants another version or form.
    fn spliced(&self, code: u16, stored: &[u8], revision: Revision) -> Option<Answer> {
        let opening = self.resource.opening(&self.version);
        if self.accepted.media == Media::Yaml || !opening.opens(stored) {
            return None;
        }
        let mut body = Vec::with_capacity(stored.len() + 64);
        match self.accepted.shape {
            Shape::Whole => opening.splice(stored, revision, Typed::Yes, &mut body),
            Shape::MetadataOnly => opening.splice_metadata(stored, revision, &mut body),
            Shape::Table(_) => return None,
        }
        if self.accepted.media == Media::Protobuf {
            body = types::transcode_protobuf(&body).ok()?;
        }
        Some(Answer::Bytes { code, body: body.into(), media: self.accepted.media })
    }

    /// The answer with an object that was written.
    async fn written(&self, code: u16, written: Written) -> Answer {
        let stored = written.stored.as_ref();
        fair_queue::expect(stored.map_or(self.body.len(), Bytes::len)).await;
        let spliced = stored.and_then(|stored| self.spliced(code, stored, written.revision));
        spliced.unwrap_or_else(|| Answer::Object { code, object: written.into_object() })
    }

    pub(crate) fn not_found(&self, name: &str) -> ApiError {
        ApiError::NotFound { resource: self.resource.group_resource.clone(), name: name.to_string() }
    }

    pub(crate) fn conflict(&self, name: &str, message: impl Into<String>) -> ApiError {
        let resource = self.resource.group_resource.clone();
        ApiError::Conflict { resource, name: name.to_string(), message: message.into() }
    }

    pub(crate) fn invalid(&self, name: &str, mut causes: Vec<FieldError>) -> ApiError {
        causes.truncate(MOST_CAUSES);
        let kind = GroupKind { group: self.version.group().to_string(), kind: self.resource.names.kind.clone() };
        ApiError::Invalid { kind, name: name.to_string(), causes }
    }
}
