//! Small built-in admission plugins: defaults of pods, the requester of a CertificateSigningRequest, and
//! OwnerReferencesPermissionEnforcement.

use crate::admission::AdmissionCall;
use crate::admission::pods;
use crate::admission::rule::Operation;
use crate::error::ApiError;
use crate::resource::{Origin, Scope};
use futures::FutureExt;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_auth::{Attributes, ResourceAttributes};
use restow_store::RangeRequest;
use serde_json::{Value, json};
use std::collections::HashSet;

/// Sets fields that clients may omit, or must not set themselves.
pub(super) async fn complete(
    call: &AdmissionCall<'_>,
    operation: Operation,
    object: &mut Object,
) -> Result<(), ApiError> {
    if call.resource.origin != Origin::Builtin || !call.target.subresource.is_empty() {
        return Ok(());
    }
    match (operation, call.resource.names.kind.as_str()) {
        (Operation::Create, "Pod") => pods::complete(call, object).boxed().await,
        _ => {
            set_certificate_requester(call, operation, object);
            Ok(())
        }
    }
}

/// Sets the requester of a CertificateSigningRequest. Neither clients nor mutating admission can change it.
pub(super) fn set_certificate_requester(call: &AdmissionCall<'_>, operation: Operation, object: &mut Object) {
    let request = call.resource.origin == Origin::Builtin && call.resource.names.kind == "CertificateSigningRequest";
    if !request || operation != Operation::Create || !call.target.subresource.is_empty() {
        return;
    }
    let mut spec = object.get("spec").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    let Some(fields) = spec.as_object_mut() else { return };
    for field in ["username", "uid", "groups", "extra"] {
        fields.remove(field);
    }
    fields.insert("username".into(), call.user.name.as_str().into());
    fields.insert("groups".into(), json!(call.user.groups));
    if !call.user.uid.is_empty() {
        fields.insert("uid".into(), call.user.uid.as_str().into());
    }
    if !call.user.extra.is_empty() {
        fields.insert("extra".into(), json!(call.user.extra));
    }
    object.set("spec", Some(spec));
}

/// OwnerReferencesPermissionEnforcement: refuses `blockOwnerDeletion` if the user may not set finalizers of the owner.
pub(super) fn check(
    call: &AdmissionCall<'_>,
    operation: Operation,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let Some(object) = object.filter(|_| operation != Operation::Delete) else { return Ok(()) };
    let before: HashSet<&Value> = old.into_iter().flat_map(blocking_owners).collect();
    for owner in blocking_owners(object).filter(|owner| !before.contains(owner)) {
        let attributes = finalizers_of(call, owner);
        let allowed =
            attributes.is_some_and(|attributes| call.admission.access.authorize(&call.user, &attributes).is_ok());
        if !allowed {
            let why =
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: ";
            return Err(forbidden(call, object.name(), format!("{why}{}", owner["name"].as_str().unwrap_or_default())));
        }
    }
    Ok(())
}

fn blocking_owners(object: &Object) -> impl Iterator<Item = &Value> {
    let owners = object.at(&["metadata", "ownerReferences"]).and_then(Value::as_array);
    owners.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true)
}

/// The permission that is needed to block the deletion of this owner; `None` if the kind is unknown.
fn finalizers_of(call: &AdmissionCall<'_>, owner: &Value) -> Option<Attributes> {
    let version: GroupVersion = owner["apiVersion"].as_str()?.parse().ok()?;
    let registry = call.admission.core.registry();
    let mut resources = registry.in_version(&version)?.values();
    let resource = resources.find(|resource| owner["kind"] == resource.names.kind.as_str())?;
    Some(Attributes::Resource(ResourceAttributes {
        verb: "update".into(),
        group: version.group().into(),
        version: version.version().into(),
        resource: resource.group_resource.resource().into(),
        subresource: "finalizers".into(),
        namespace: match resource.scope {
            Scope::Namespaced => call.target.namespace.clone(),
            Scope::Cluster => String::new(),
        },
        name: owner["name"].as_str().unwrap_or_default().into(),
    }))
}

/// All stored objects of a resource in a namespace, or in all namespaces.
pub(super) async fn stored(
    call: &AdmissionCall<'_>,
    version: &GroupVersion,
    plural: &str,
    namespace: &str,
) -> Result<Vec<Object>, ApiError> {
    let registry = call.admission.core.registry();
    let Some(resource) = registry.find(version, plural) else { return Ok(Vec::new()) };
    let Some(storage) = &resource.storage else { return Ok(Vec::new()) };
    let entries =
        call.admission.core.objects().store().range(RangeRequest::new(storage.range(namespace))).await?.entries;
    resource.decode_all(&entries, version).await
}

pub(super) fn forbidden(call: &AdmissionCall<'_>, name: &str, message: String) -> ApiError {
    ApiError::Forbidden { resource: call.resource.group_resource.clone(), name: name.to_string(), message }
}
