//! The objects that the demo creates.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

/// The built-in resource whose storage version the upgrade changes.
pub(super) const SLICES: &str = "endpointslices.discovery.k8s.io";
/// Another one that it changes.
pub(super) const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
/// The custom resource.
pub(super) const WIDGETS: &str = "widgets.demo.restow.dev";

pub(super) fn slice(name: &str) -> anyhow::Result<EndpointSlice> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default"},
        "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}],
    }))?)
}

pub(super) fn widget(number: u32) -> anyhow::Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "demo.restow.dev/v1", "kind": "Widget",
        "metadata": {"name": format!("widget-{number}")}, "spec": {"size": number},
    }))?)
}

pub(super) fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// The versions of widgets, one of which is the storage version.
pub(super) fn versions(storage: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!(["v1", "v2"].map(|name| json!({"name": name, "served": true, "storage": name == storage, "schema": schema})))
}

/// The CRD of widgets.
pub(super) fn crd(storage: &str) -> anyhow::Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGETS},
        "spec": {
            "group": "demo.restow.dev", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": versions(storage),
        },
    }))?)
}
