//! A request as webhooks and policies look at it.

use crate::admission::rule::{Operation, Subject};
use crate::auth::rbac::LabelSelector;
use crate::error::ApiError;
use crate::object::Object;
use crate::object_store::Place;
use crate::resource::Scope;
use crate::verbs::Call;
use restow_api::GroupVersion;
use std::collections::BTreeMap;
use tokio::sync::OnceCell;

/// A request that webhooks and policies are asked about.
pub(super) struct Request<'a> {
    pub(super) call: &'a Call<'a>,
    pub(super) operation: Operation,
    pub(super) old: Option<&'a Object>,
    /// The namespace, read when it is needed first.
    namespace: OnceCell<Option<Object>>,
}

impl<'a> Request<'a> {
    pub(super) fn new(call: &'a Call<'a>, operation: Operation, old: Option<&'a Object>) -> Self {
        Request { call, operation, old, namespace: OnceCell::new() }
    }

    pub(super) fn subject<'b>(&'b self, object: Option<&'b Object>) -> Subject<'b> {
        let named = self.call.target.name.as_str();
        Subject {
            operation: self.operation,
            resource: &self.call.resource,
            version: &self.call.version,
            subresource: &self.call.target.subresource,
            name: if named.is_empty() { object.or(self.old).map_or("", Object::name) } else { named },
        }
    }

    /// The object in another version.
    pub(super) async fn converted(
        &self,
        object: Option<&Object>,
        version: &GroupVersion,
    ) -> Result<Option<Object>, ApiError> {
        match object {
            Some(object) => self.call.resource.convert(object.clone(), version).await.map(Some),
            None => Ok(None),
        }
    }

    /// Whether the selectors mean this request. An object counts by its labels before and after.
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

    /// The namespace that the object is in, if it is in any.
    pub(super) async fn namespace(&self) -> Result<Option<&Object>, ApiError> {
        let namespace = self.namespace.get_or_try_init(|| self.read_namespace()).await?;
        Ok(namespace.as_ref())
    }

    async fn read_namespace(&self) -> Result<Option<Object>, ApiError> {
        let name = &self.call.target.namespace;
        let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
        let registry = self.call.server.registry();
        let Some(resource) = registry.find(&version, "namespaces").filter(|_| !name.is_empty()) else {
            return Ok(None);
        };
        let place = Place { resource, version: &version, namespace: "", name };
        match self.call.server.objects().get(place).await? {
            Some(entry) => resource.decode(&entry, &version).await.map(Some),
            None => Ok(None),
        }
    }
}

fn bad_selector(reason: String) -> ApiError {
    ApiError::Internal(format!("a selector of the admission configuration is wrong: {reason}"))
}

/// The labels of an object.
pub(super) fn labels(object: &Object) -> BTreeMap<String, String> {
    let labels = object.at(&["metadata", "labels"]).and_then(serde_json::Value::as_object);
    let texts =
        labels.into_iter().flatten().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_string())));
    texts.collect()
}
