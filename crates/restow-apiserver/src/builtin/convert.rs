//! Conversion of built-in kinds whose versions differ in more than their name.
//!
//! | kinds | what differs |
//! |---|---|
//! | HorizontalPodAutoscaler | v1 has one CPU target; v2's metrics, behavior and conditions travel in annotations |
//! | Event | events.k8s.io has other names for the fields of the core group's events |
//! | EndpointSlice | v1beta1 keeps zone and host in `topology` |
//! | PriorityLevelConfiguration | `assuredConcurrencyShares` before v1beta3; zero shares need an annotation in v1beta3 |
//! | CustomResourceDefinition | v1beta1 has what all versions share at the top, and a flat webhook |
//! | Ingress | v1beta1's backends are flat, and the default one is called `backend` |
//! | ResourceClaim, ResourceClaimTemplate | requests are flat up to v1beta1 and nested in `exactly` after it |
//! | ResourceSlice | devices are nested in `basic` up to v1beta1; capacities are bare quantities in v1alpha3 |
//! | RuntimeClass | v1alpha1 has everything in a `spec` |
//! | PodDisruptionBudget | an empty selector selects nothing in v1beta1 and everything in v1 |
//! | RoleBinding, ClusterRoleBinding | v1alpha1's subjects have an `apiVersion` instead of a group |
//! | CertificateSigningRequest | v1beta1 may lack signer and status of conditions |
//! | Deployment | v1beta1 has `rollbackTo`, later an annotation |
//! | LeaseCandidate | v1alpha1 has a list of strategies, later ones have one |
//! | StorageVersionMigration | v1alpha1 names a version, and its conditions an update instead of a transition |
//! | PodGroup, Workload, resource claims of v1alpha2 | these alphas were dropped without a conversion, so there is none |
//!
//! The functions of kinds with other rules are in `kinds/`, the rest in `convert/`. All other kinds differ in name only. Every function here is pure; the result is then written as its type writes
//! itself, which drops what the target version does not have.

mod custom_resource_definition;
mod devices;
mod small;
#[cfg(test)]
mod tests;

use crate::builtin::kinds::{
    certificate_signing_request, deployment, endpoint_slice, event, flow_control, horizontal_pod_autoscaler, ingress,
    rbac,
};
use crate::resource::conversion::{ConversionError, Converter, RenameVersion};
use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::{self, TypeTable};
use serde_json::{Value, json};
use std::mem::replace;
use std::sync::Arc;

/// Converts the fields of an object from one version to another, both given as in `apps/v1`.
type Reshape = fn(&mut Object, &str, &str) -> Result<(), String>;

/// The parts of an object, in a fixed order, that are the same in all versions of its kind.
type SameParts = fn(&mut Object) -> Vec<&mut Value>;

/// The converter of this kind.
pub(super) fn converter(group: &str, kind: &str) -> Arc<dyn Converter> {
    match reshaping(group, kind) {
        Some(reshaping) => Arc::new(reshaping),
        None => Arc::new(RenameVersion),
    }
}

/// How objects of this kind are converted; `None` if their versions differ in nothing but the name.
fn reshaping(group: &str, kind: &str) -> Option<Reshaping> {
    Some(Reshaping { reshape: reshape(group, kind)?, same_parts: same_parts(group, kind) })
}

/// Most of a CRD are its schemas. Parts of other kinds are small.
fn same_parts(group: &str, kind: &str) -> SameParts {
    match (group, kind) {
        ("apiextensions.k8s.io", "CustomResourceDefinition") => custom_resource_definition::schemas,
        _ => |_| Vec::new(),
    }
}

fn reshape(group: &str, kind: &str) -> Option<Reshape> {
    Some(match (group, kind) {
        ("autoscaling", "HorizontalPodAutoscaler") => horizontal_pod_autoscaler::conversion::convert,
        ("" | "events.k8s.io", "Event") => event::convert,
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice::convert,
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => flow_control::convert_priority_level,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => custom_resource_definition::convert,
        ("networking.k8s.io", "Ingress") => ingress::convert,
        ("resource.k8s.io", "ResourceClaim" | "ResourceClaimTemplate") => devices::claim,
        ("resource.k8s.io", "ResourceSlice") => devices::slice,
        ("node.k8s.io", "RuntimeClass") => small::runtime_class,
        ("policy", "PodDisruptionBudget") => small::pod_disruption_budget,
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => rbac::convert_binding,
        ("certificates.k8s.io", "CertificateSigningRequest") => certificate_signing_request::convert,
        ("apps", "Deployment") => deployment::convert,
        ("coordination.k8s.io", "LeaseCandidate") => small::lease_candidate,
        ("storagemigration.k8s.io", "StorageVersionMigration") => small::storage_version_migration,
        ("scheduling.k8s.io", "PodGroup" | "Workload") => small::dropped_alphas,
        _ => return None,
    })
}

/// Converts with a function, and normalizes the result by its type, but for the parts that are the same in all versions.
#[derive(Clone, Copy)]
struct Reshaping {
    reshape: Reshape,
    same_parts: SameParts,
}

#[async_trait]
impl Converter for Reshaping {
    async fn convert(&self, objects: Vec<Object>, target: &GroupVersion) -> Result<Vec<Object>, ConversionError> {
        let target = target.to_string();
        objects.into_iter().map(|object| reshaped(*self, object, &target)).collect()
    }
}

fn reshaped(
    Reshaping { reshape, same_parts }: Reshaping,
    mut object: Object,
    target: &str,
) -> Result<Object, ConversionError> {
    let source = object.api_version().to_string();
    if source == target {
        return Ok(object);
    }
    let name = format!("{}/{}", object.namespace(), object.name());
    let failed = |reason: String| ConversionError { object: name.clone(), target: target.to_string(), reason };
    reshape(&mut object, &source, target).map_err(failed)?;
    object.set("apiVersion", Some(target.into()));
    let Some(kind) = TypeTable::shared().kind(target, object.kind()) else { return Ok(object) };
    let revision = object.resource_version().to_string();
    let parts: Vec<Value> = same_parts(&mut object).into_iter().map(|part| replace(part, json!({}))).collect();
    let written = types::normalize(kind, object.into_value()).map_err(|error| failed(error.to_string()))?;
    let mut written = Object::from_value(written.value).unwrap_or_default();
    let places = same_parts(&mut written);
    if places.len() != parts.len() {
        return Err(failed("the conversion lost a part of the object".to_owned()));
    }
    places.into_iter().zip(parts).for_each(|(place, part)| *place = part);
    written.set_meta("resourceVersion", &revision);
    Ok(written)
}

/// The version without its group.
pub(super) fn version_of(api_version: &str) -> &str {
    api_version.rsplit('/').next().unwrap_or(api_version)
}
