//! A request as webhooks and policies see it: matching, conversion, namespace, authorizer.

use crate::admission::AdmissionCall;
use crate::admission::rule::{AdmissionSubject, Operation};
use crate::error::ApiError;
use crate::request::body;
use crate::request::options::DryRun;
use crate::resource::ObjectRef;
use crate::resource::Scope;
use restow_api::GroupVersion;
use restow_apimachinery::meta_v1::LabelSelector;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::{self, TypeTable};
use restow_auth::{Attributes, ResourceAttributes, User};
use restow_schema::cel::{AuthorizationCheck, AuthorizationDecision, Authorizer};
use std::collections::BTreeMap;
use tokio::sync::OnceCell;

/// The CEL `authorizer` of a request.
pub(super) struct RequestAuthorizer<'a> {
    call: &'a AdmissionCall<'a>,
    /// The attributes of the request itself (`authorizer.requestResource`).
    pub(super) question: AuthorizationCheck,
}

impl Authorizer for RequestAuthorizer<'_> {
    fn decide(&self, question: &AuthorizationCheck) -> AuthorizationDecision {
        let user = match &question.service_account {
            Some((namespace, name)) => User::service_account(namespace, name, "").authenticated(),
            None => self.call.user.clone(),
        };
        let attributes = match &question.path {
            Some(path) => Attributes::path(question.verb.as_str(), path.as_str()),
            None => Attributes::Resource(ResourceAttributes {
                verb: question.verb.clone(),
                group: question.group.clone(),
                version: "*".into(),
                resource: question.resource.clone(),
                subresource: question.subresource.clone(),
                namespace: question.namespace.clone(),
                name: question.name.clone(),
            }),
        };
        match self.call.admission.access.authorize(&user, &attributes) {
            Ok(()) => AuthorizationDecision { allowed: true, reason: String::new() },
            Err(error) => AuthorizationDecision { allowed: false, reason: error.to_string() },
        }
    }
}

/// A request that webhooks and policies review.
pub(super) struct Request<'a> {
    pub(super) call: &'a AdmissionCall<'a>,
    pub(super) operation: Operation,
    pub(super) old: Option<&'a Object>,
    pub(super) dry_run: DryRun,
    /// The namespace, read on first use.
    namespace: OnceCell<Option<Object>>,
}

impl<'a> Request<'a> {
    pub(super) fn new(
        call: &'a AdmissionCall<'a>,
        operation: Operation,
        old: Option<&'a Object>,
    ) -> Result<Self, ApiError> {
        Ok(Self::with_dry_run(call, operation, old, call.dry_run()?))
    }

    pub(super) fn with_dry_run(
        call: &'a AdmissionCall<'a>,
        operation: Operation,
        old: Option<&'a Object>,
        dry_run: DryRun,
    ) -> Self {
        Request { call, operation, old, dry_run, namespace: OnceCell::new() }
    }

    pub(super) fn subject<'b>(&'b self, object: Option<&'b Object>) -> AdmissionSubject<'b> {
        let named = self.call.target.name.as_str();
        AdmissionSubject {
            operation: self.operation,
            resource: &self.call.resource,
            version: &self.call.version,
            subresource: &self.call.target.subresource,
            name: if named.is_empty() { object.or(self.old).map_or("", Object::name) } else { named },
        }
    }

    /// The CEL authorizer for the user.
    pub(super) fn authorizer(&self, object: Option<&Object>) -> RequestAuthorizer<'_> {
        let subject = self.subject(object);
        let resource = &self.call.resource.group_resource;
        let question = AuthorizationCheck {
            group: resource.group().into(),
            resource: resource.resource().into(),
            subresource: subject.subresource.into(),
            namespace: self.call.target.namespace.clone(),
            name: subject.name.into(),
            ..AuthorizationCheck::default()
        };
        RequestAuthorizer { call: self.call, question }
    }

    /// The object in another version. A subresource with a kind of its own is not converted.
    pub(super) async fn converted(
        &self,
        object: Option<&Object>,
        version: &GroupVersion,
    ) -> Result<Option<Object>, ApiError> {
        match object {
            Some(object) if self.subject(None).foreign_kind().is_some() => Ok(Some(object.clone())),
            Some(object) => self.call.resource.convert(object.clone(), version).await.map(Some),
            None => Ok(None),
        }
    }

    /// A changed object, normalized and converted back to the version of the request.
    pub(super) async fn restored(&self, changed: Object) -> Result<Object, ApiError> {
        let Some((version, kind)) = self.subject(None).foreign_kind() else {
            let changed = self.call.resource.convert(changed, &self.call.version).await?;
            return body::normalized(self.call, changed.into_value());
        };
        let Some(known) = TypeTable::shared().kind(&version.to_string(), kind) else { return Ok(changed) };
        let read =
            types::normalize(known, changed.into_value()).map_err(|error| ApiError::Internal(error.to_string()))?;
        Object::from_value(read.value).map_err(|_| ApiError::Internal(format!("a {kind} is no longer an object")))
    }

    /// Whether the selectors match this request. The object matches by its old or new labels.
    pub(super) async fn is_selected(
        &self,
        namespaces: &LabelSelector,
        objects: &LabelSelector,
        object: Option<&Object>,
    ) -> Result<bool, ApiError> {
        let mut selected = false;
        for object in [object, self.old].into_iter().flatten() {
            selected |= objects.matches(&labels(object)).map_err(bad_selector)?;
        }
        if !selected || namespaces.is_everything() {
            return Ok(selected);
        }
        if self.call.resource.names.kind == "Namespace" && self.call.version.group().is_empty() {
            let labels = object.or(self.old).map(labels).unwrap_or_default();
            return namespaces.matches(&labels).map_err(bad_selector);
        }
        if self.call.resource.scope == Scope::Cluster {
            return Ok(true);
        }
        let labels = self.namespace().await?.map(labels).unwrap_or_default();
        namespaces.matches(&labels).map_err(bad_selector)
    }

    /// The namespace of the object, if it has one.
    pub(super) async fn namespace(&self) -> Result<Option<&Object>, ApiError> {
        let namespace = self.namespace.get_or_try_init(|| self.read_namespace()).await?;
        Ok(namespace.as_ref())
    }

    async fn read_namespace(&self) -> Result<Option<Object>, ApiError> {
        let name = &self.call.target.namespace;
        let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let registry = self.call.admission.core.registry();
        let Some(resource) = registry.find(&version, "namespaces").filter(|_| !name.is_empty()) else {
            return Ok(None);
        };
        let reference = ObjectRef { resource, version: &version, namespace: "", name };
        match self.call.admission.core.objects().get(reference).await? {
            Some(entry) => resource.decode(&entry, &version).await.map(Some),
            None => Ok(None),
        }
    }
}

fn bad_selector(reason: String) -> ApiError {
    ApiError::Internal(format!("invalid selector in the admission configuration: {reason}"))
}

/// The labels of an object.
pub(super) fn labels(object: &Object) -> BTreeMap<String, String> {
    let labels = object.at(&["metadata", "labels"]).and_then(serde_json::Value::as_object);
    let texts =
        labels.into_iter().flatten().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_string())));
    texts.collect()
}
