//! Discovery documents: groups, versions, resources and storage version hashes.

pub(crate) mod aggregation;
mod custom_openapi;
pub(crate) mod discovered_resource;
pub(crate) mod documents;
pub mod openapi;

use crate::discovery::aggregation::{AggregatedVersion, Aggregation, TieBreak};
use crate::resource::registry::Registry;
use crate::resource::{Resource, Verb};
use restow_api::GroupVersion;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

/// Whether discovery shows the hash of each resource's storage version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShowHashes {
    /// Yes.
    Yes,
    /// No.
    No,
}

/// `/api`: the versions of the core group.
pub fn core_versions(registry: &Registry, address: &str) -> Value {
    let versions = registry.groups().get("").map(|group| group.versions.clone()).unwrap_or_default();
    json!({
        "kind": "APIVersions", "versions": versions,
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis`: all named groups.
pub fn groups(registry: &Registry) -> Value {
    all_groups(registry, &Aggregation::default())
}

/// `/apis`, with the groups of the servers behind this one.
pub(crate) fn all_groups(registry: &Registry, aggregation: &Aggregation) -> Value {
    let groups = aggregation.ordered_groups(registry, TieBreak::ApiService);
    let named = groups.iter().filter(|(name, _)| !name.is_empty());
    let groups: Vec<Value> = named.map(|(name, versions)| group_body(name, versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`: one group.
pub(crate) fn group(registry: &Registry, aggregation: &Aggregation, name: &str) -> Option<Value> {
    let versions = aggregation.versions_of(registry, name);
    if versions.is_empty() {
        return None;
    }
    let mut body = group_body(name, &versions);
    body["kind"] = "APIGroup".into();
    body["apiVersion"] = "v1".into();
    Some(body)
}

fn group_body(name: &str, versions: &[String]) -> Value {
    let version = |version: &String| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions.first()})
}

/// `/api/v1` and `/apis/GROUP/VERSION`: the resources of one version.
pub fn resources(registry: &Registry, version: &GroupVersion, hashes: ShowHashes) -> Option<Value> {
    let mut list = Vec::new();
    for (name, resource) in registry.in_version(version)? {
        list.push(resource_body(name, resource, hashes));
        for subresource in &resource.subresources {
            let kind = subresource.kind.as_ref();
            let mut body = json!({
                "name": format!("{name}/{}", subresource.name),
                "singularName": "",
                "namespaced": resource.scope == crate::resource::Scope::Namespaced,
                "kind": kind.map_or(&resource.names.kind, |kind| &kind.kind),
                "verbs": verbs(&subresource.verbs),
            });
            if let Some(version) = kind.and_then(|kind| kind.version.as_ref()) {
                body["group"] = version.group().into();
                body["version"] = version.version().into();
            }
            list.push(body);
        }
    }
    list.sort_by(|one, other| one["name"].as_str().cmp(&other["name"].as_str()));
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version.to_string(), "resources": list,
    }))
}

fn resource_body(name: &str, resource: &Resource, hashes: ShowHashes) -> Value {
    let mut body = json!({
        "name": name,
        "singularName": resource.names.singular,
        "namespaced": resource.scope == crate::resource::Scope::Namespaced,
        "kind": resource.names.kind,
        "verbs": verbs(&resource.verbs),
    });
    if !resource.names.short.is_empty() {
        body["shortNames"] = resource.names.short.clone().into();
    }
    if !resource.names.categories.is_empty() {
        body["categories"] = resource.names.categories.clone().into();
    }
    if let (ShowHashes::Yes, Some(hash)) = (hashes, resource.storage_version_hash()) {
        body["storageVersionHash"] = hash.into();
    }
    body
}

fn verbs(verbs: &[Verb]) -> Vec<&'static str> {
    verbs.iter().map(|verb| verb.as_str()).collect()
}

/// One of the two roots of discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiscoveryRoot {
    /// `/api`: the core group.
    Api,
    /// `/apis`: all other groups.
    Apis,
}

/// `/api` or `/apis` in the aggregated form: every group with its versions and resources in one document. This form has
/// no field for the storage version hash.
pub(crate) fn aggregated(registry: &Registry, aggregation: &Aggregation, root: DiscoveryRoot) -> Value {
    let groups = aggregation.ordered_groups(registry, TieBreak::Group);
    let groups = groups.iter().filter(|(name, _)| name.is_empty() == (root == DiscoveryRoot::Api));
    let items: Vec<Value> =
        groups.map(|(name, versions)| aggregated_group(registry, aggregation, name, versions)).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_group(registry: &Registry, aggregation: &Aggregation, name: &str, group: &[String]) -> Value {
    let mut versions = Vec::new();
    for version in group {
        let Ok(group_version) = GroupVersion::new(name, version) else { continue };
        if let Some(AggregatedVersion { resources, freshness, .. }) = aggregation.versions.get(&group_version) {
            versions.push(json!({"version": version, "resources": resources, "freshness": freshness.as_str()}));
            continue;
        }
        let Some(resources) = registry.in_version(&group_version) else { continue };
        let resources: Vec<Value> =
            resources.iter().map(|(plural, resource)| aggregated_resource(plural, resource, &group_version)).collect();
        versions.push(json!({"version": version, "resources": resources, "freshness": "Current"}));
    }
    let metadata = if name.is_empty() { json!({}) } else { json!({"name": name}) };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(plural: &str, resource: &Resource, version: &GroupVersion) -> Value {
    let kind = |version: &GroupVersion, kind: &str| json!({"group": version.group(), "version": version.version(), "kind": kind});
    let mut body = json!({
        "resource": plural,
        "responseKind": kind(version, &resource.names.kind),
        "scope": if resource.scope == crate::resource::Scope::Namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.names.singular,
        "verbs": verbs(&resource.verbs),
    });
    if !resource.names.short.is_empty() {
        body["shortNames"] = resource.names.short.clone().into();
    }
    if !resource.names.categories.is_empty() {
        body["categories"] = resource.names.categories.clone().into();
    }
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(|subresource| {
            let own = subresource.kind.as_ref();
            let own_version = own.and_then(|own| own.version.as_ref()).unwrap_or(version);
            json!({
                "subresource": subresource.name,
                "responseKind": kind(own_version, own.map_or(&resource.names.kind, |own| &own.kind)),
                "verbs": verbs(&subresource.verbs),
            })
        })
        .collect();
    if !subresources.is_empty() {
        body["subresources"] = subresources.into();
    }
    body
}

/// The hash of a document, for ETags and for the index of OpenAPI v3.
pub(crate) fn tag(text: &[u8]) -> String {
    digest(&SHA256, text).as_ref().iter().take(16).map(|byte| format!("{byte:02X}")).collect()
}
