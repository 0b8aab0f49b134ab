//! A request for a resource: its user, target, options and body, and the warnings and audit annotations that handlers
//! add.

use crate::error::{ApiError, GroupKind};
use crate::request::negotiation::{Accepted, Media, Representation};
use crate::request::options::{DryRun, MAX_MANAGER_BYTES, is_printable};
use crate::request::query::Query;
use crate::request::request_info::ResourceTarget;
use crate::resource::{ObjectRef, Origin, Resource, Scope, Verb};
use bytes::Bytes;
use restow_api::GroupVersion;
use restow_apimachinery::field::FieldError;
use restow_auth::User;
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum number of validation errors in a response. Every item of a long list may be invalid.
const MAX_CAUSES: usize = 1000;

/// A request for a resource, after it was parsed and authorized.
pub(crate) struct Request {
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
    /// Annotations for the audit log.
    pub(crate) annotations: Mutex<Vec<(String, String)>>,
}

impl Request {
    /// The deletion of an object by a controller of this server, as the user that Kubernetes has for that controller.
    pub(crate) fn by_controller(controller: &str, resource: Arc<Resource>, object_ref: ObjectRef<'_>) -> Self {
        let target = ResourceTarget {
            group: object_ref.version.group().to_string(),
            version: object_ref.version.version().to_string(),
            namespace: object_ref.namespace.to_string(),
            resource: resource.group_resource.resource().to_string(),
            name: object_ref.name.to_string(),
            subresource: String::new(),
            verb: Verb::Delete,
        };
        Request {
            user: User::service_account("kube-system", controller, "").authenticated(),
            resource,
            version: object_ref.version.clone(),
            target: target.into(),
            query: Query::default(),
            accepted: Accepted { media: Media::Json, shape: Representation::Whole },
            content: None,
            patch_type: String::new(),
            user_agent: controller.to_string(),
            body: Bytes::new(),
            warnings: Mutex::default(),
            annotations: Mutex::default(),
        }
    }
}

impl Request {
    pub(crate) fn check_scope(&self) -> Result<(), ApiError> {
        let in_namespace = !self.target.namespace.is_empty();
        match (self.resource.scope, self.target.verb) {
            (Scope::Cluster, _) if in_namespace => Err(ApiError::NoSuchResource),
            // Only list and watch work across namespaces.
            (Scope::Namespaced, Verb::List | Verb::Watch) => Ok(()),
            (Scope::Namespaced, _) if in_namespace => Ok(()),
            // The path exists, but only for list and watch.
            (Scope::Namespaced, _) if self.target.name.is_empty() && self.resource.origin == Origin::Builtin => {
                Err(ApiError::MethodNotAllowed)
            }
            (Scope::Namespaced, _) => Err(ApiError::NoSuchResource),
            (Scope::Cluster, _) => Ok(()),
        }
    }

    /// An object of the request's resource, version and namespace.
    pub(crate) fn object_ref<'b>(&'b self, name: &'b str) -> ObjectRef<'b> {
        ObjectRef { resource: &self.resource, version: &self.version, namespace: &self.target.namespace, name }
    }

    /// Whether the request is a dry run.
    pub(crate) fn dry_run(&self) -> Result<DryRun, ApiError> {
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

    /// The field manager of this request.
    pub(crate) fn manager(&self) -> String {
        let named = self.query.text("fieldManager");
        let name = match named {
            "" => self.user_agent.split('/').next().unwrap_or_default(),
            named => named,
        };
        // A `fieldManager` option was validated with the other options. A name from the user agent is truncated to fit.
        let mut manager: String = name.chars().filter(|letter| is_printable(*letter)).collect();
        while manager.len() > MAX_MANAGER_BYTES {
            manager.pop();
        }
        manager
    }

    /// Adds a warning to the response.
    pub(crate) fn warn(&self, warning: String) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning);
    }

    /// Adds an annotation to the audit log.
    pub(crate) fn annotate(&self, key: String, value: String) {
        self.annotations.lock().unwrap_or_else(PoisonError::into_inner).push((key, value));
    }

    /// The annotations for the audit log.
    pub(crate) fn annotations(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.annotations.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The warnings for the response.
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

    pub(crate) fn invalid(&self, name: &str, mut causes: Vec<FieldError>) -> ApiError {
        causes.truncate(MAX_CAUSES);
        let kind = GroupKind { group: self.version.group().to_string(), kind: self.resource.names.kind.clone() };
        ApiError::Invalid { kind, name: name.to_string(), causes }
    }
}
