//! Discovery of a server at release 1.37, compared with that of a real kube-apiserver 1.37.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use restow_api::GroupVersion;
use restow_apiserver::builtin::{self, RuntimeConfig};
use restow_apiserver::discovery::openapi;
use restow_apiserver::discovery::{self, ShowHashes};
use restow_apiserver::release::Release;
use restow_apiserver::resource::registry::Registry;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Kubernetes serves the StorageVersion API only where its gate is on, as it was when this was recorded.
fn config() -> RuntimeConfig {
    let internal = GroupVersion::new("internal.apiserver.k8s.io", "v1alpha1").unwrap();
    RuntimeConfig { versions: vec![(internal, true)], ..RuntimeConfig::default() }
}

fn registry(release: Release) -> Registry {
    Registry::new(builtin::resources(release, &config()).into_iter().map(Arc::new))
}

fn recorded() -> BTreeMap<String, Value> {
    serde_json::from_str(include_str!("recorded/discovery-1.37.json")).unwrap()
}

fn by_name(list: &Value) -> BTreeMap<&str, &Value> {
    list["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|resource| (resource["name"].as_str().unwrap(), resource))
        .collect()
}

#[test]
fn discovery_of_resources_equals_kubernetes() {
    let registry = registry(Release::NEWEST);
    let mut differences = Vec::new();
    for (path, theirs) in recorded() {
        let Some(version) = theirs["groupVersion"].as_str() else { continue };
        let Some(ours) = discovery::resources(&registry, &version.parse().unwrap(), ShowHashes::Yes) else {
            differences.push(format!("{path} is missing"));
            continue;
        };
        let (ours, theirs) = (by_name(&ours), by_name(&theirs));
        for (name, resource) in &theirs {
            match ours.get(name) {
                None => differences.push(format!("{path}: {name} is missing")),
                Some(found) if found != resource => {
                    differences.push(format!("{path}: {name}\n  ours   {found}\n  theirs {resource}"));
                }
                Some(_) => {}
            }
        }
        let more = ours.keys().filter(|name| !theirs.contains_key(*name));
        differences.extend(more.map(|name| format!("{path}: {name} is not in Kubernetes")));
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn discovery_of_groups_equals_kubernetes() {
    let sorted = |list: &Value| {
        let groups = list["groups"].as_array().unwrap().iter();
        groups.map(|group| (group["name"].to_string(), group.clone())).collect::<BTreeMap<_, _>>()
    };
    let ours = discovery::groups(&registry(Release::NEWEST));
    assert_eq!(sorted(&ours), sorted(&recorded()["/apis"]));
}

#[test]
fn discovery_shows_the_hash_of_a_storage_version_that_is_not_served() {
    let registry = registry("1.30".parse().unwrap());
    let version = GroupVersion::new("discovery.k8s.io", "v1").unwrap();
    let slices = registry.find(&version, "endpointslices").unwrap();
    let expected = restow_api::storage_version_hash("discovery.k8s.io", "v1beta1", "EndpointSlice");
    assert_eq!(slices.storage_version_hash(), Some(expected));
}

#[test]
fn discovery_shows_no_hash_without_the_feature_gate() {
    let list = discovery::resources(&registry(Release::NEWEST), &"v1".parse().unwrap(), ShowHashes::No).unwrap();
    assert!(!list.to_string().contains("storageVersionHash"));
}

#[test]
fn each_release_serves_its_own_versions() {
    let check = |release: &str, version: &str, plural: &str, stored: Option<&str>| {
        let registry = registry(release.parse().unwrap());
        let found = registry.find(&version.parse().unwrap(), plural);
        let stored_in = found.map(|resource| resource.storage.as_ref().unwrap().encoding().version.to_string());
        assert_eq!(stored_in.as_deref(), stored, "{release} {version} {plural}");
    };
    check("1.29", "flowcontrol.apiserver.k8s.io/v1", "flowschemas", Some("flowcontrol.apiserver.k8s.io/v1beta3"));
    check("1.30", "flowcontrol.apiserver.k8s.io/v1", "flowschemas", Some("flowcontrol.apiserver.k8s.io/v1"));
    check("1.31", "flowcontrol.apiserver.k8s.io/v1beta3", "flowschemas", Some("flowcontrol.apiserver.k8s.io/v1"));
    check("1.32", "flowcontrol.apiserver.k8s.io/v1beta3", "flowschemas", None);
    check("1.29", "admissionregistration.k8s.io/v1", "validatingadmissionpolicies", None);
    check(
        "1.30",
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicies",
        Some("admissionregistration.k8s.io/v1beta1"),
    );
    check("1.37", "events.k8s.io/v1", "events", Some("v1"));
}

/// Go's clients read OpenAPI into types that write an empty list as none, and compare.
#[test]
fn clients_can_decode_and_encode_openapi_documents() {
    fn empty_lists(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::Array(items) if items.is_empty() => found.push(path.to_string()),
            Value::Array(items) => items.iter().for_each(|item| empty_lists(item, path, found)),
            // The default of a field is data, and may be anything.
            Value::Object(fields) => fields
                .iter()
                .filter(|(name, _)| *name != "default")
                .for_each(|(name, value)| empty_lists(value, &format!("{path}/{name}"), found)),
            _ => {}
        }
    }
    let (registry, mut found, mut documents) = (registry(Release::NEWEST), Vec::new(), 0);
    for theirs in recorded().values() {
        let Some(version) = theirs["groupVersion"].as_str() else { continue };
        let document = openapi::document(&registry, &version.parse().unwrap(), Release::NEWEST).unwrap();
        assert!(document["paths"].as_object().is_some_and(|paths| !paths.is_empty()), "{version} has no paths");
        empty_lists(&document, version, &mut found);
        documents += 1;
    }
    assert!(found.is_empty(), "{found:#?}");
    assert!(documents > 20, "{documents}");
}
