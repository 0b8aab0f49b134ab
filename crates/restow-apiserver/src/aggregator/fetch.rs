//! Fetches what a server behind an APIService says about its group-version: its resources, and where its OpenAPI document is.

use crate::aggregator::backend::{Backend, BackendError, Fetched};
use crate::aggregator::worker::aggregator_user;
use crate::discovery::aggregation::{AggregatedVersion, Freshness};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use restow_api::GroupVersion;
use serde_json::{Map, Value, json};

/// The media type of aggregated discovery.
const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// What a server says about its group-version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FetchedDiscovery {
    pub(super) shown: AggregatedVersion,
    /// The ETag of the document of which this is a part.
    etag: Option<HeaderValue>,
}

impl FetchedDiscovery {
    /// Whether the last attempt to fetch it succeeded.
    pub(super) fn is_current(&self) -> bool {
        self.shown.freshness == Freshness::Current
    }

    /// The same, after an attempt to fetch it failed.
    pub(super) fn stale(&self) -> Self {
        let mut stale = self.clone();
        stale.shown.freshness = Freshness::Stale;
        stale
    }
}

/// Fetches it. What was known before stays if that fails, and is marked as stale.
pub(super) async fn fetch(backend: &Backend, before: &FetchedDiscovery) -> FetchedDiscovery {
    let mut next = match fetch_resources(backend, before).await {
        Ok(next) => next,
        Err(error) => {
            tracing::debug!(%error, version = %backend.version, "discovery of an aggregated API server failed");
            return before.stale();
        }
    };
    // Many servers have no OpenAPI document; what they serve is shown anyway.
    next.shown.openapi = fetch_openapi(backend).await;
    next
}

async fn fetch_resources(backend: &Backend, before: &FetchedDiscovery) -> Result<FetchedDiscovery, BackendError> {
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, HeaderValue::from_static(ACCEPT));
    if let Some(etag) = &before.etag {
        headers.insert(header::IF_NONE_MATCH, etag.clone());
    }
    let fetched = backend.fetch("/apis", &aggregator_user(), headers).await?;
    match fetched.code {
        StatusCode::NOT_MODIFIED => {
            let mut same = before.clone();
            same.shown.freshness = Freshness::Current;
            Ok(same)
        }
        StatusCode::SERVICE_UNAVAILABLE => Err(BackendError::Unavailable),
        StatusCode::OK if is_aggregated(&fetched) => {
            let resources = resources_in(&json_of(&fetched)?, &backend.version);
            Ok(current(resources, fetched.headers.get(header::ETAG).cloned()))
        }
        _ => fetch_resource_list(backend).await,
    }
}

/// The older form, for servers that have no aggregated discovery.
async fn fetch_resource_list(backend: &Backend) -> Result<FetchedDiscovery, BackendError> {
    let path = format!("/apis/{}", backend.version);
    let fetched = backend.fetch(&path, &aggregator_user(), HeaderMap::new()).await?;
    match fetched.code {
        StatusCode::OK => Ok(current(resources_of_list(&json_of(&fetched)?, &backend.version), None)),
        code => Err(BackendError::Exchange(format!("failed to download legacy discovery for {path}: {code}"))),
    }
}

async fn fetch_openapi(backend: &Backend) -> Option<String> {
    let fetched = backend.fetch("/openapi/v3", &aggregator_user(), HeaderMap::new()).await.ok()?;
    let index = json_of(&fetched).ok().filter(|_| fetched.code == StatusCode::OK)?;
    let path = format!("apis/{}", backend.version);
    index["paths"][&path]["serverRelativeURL"].as_str().map(str::to_string)
}

fn current(resources: Vec<Value>, etag: Option<HeaderValue>) -> FetchedDiscovery {
    FetchedDiscovery { shown: AggregatedVersion { resources, freshness: Freshness::Current, openapi: None }, etag }
}

fn is_aggregated(fetched: &Fetched) -> bool {
    let kind = fetched.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = String::from_utf8_lossy(kind);
    let has = |wanted: &str| kind.split(';').any(|parameter| parameter.trim() == wanted);
    has("g=apidiscovery.k8s.io") && has("v=v2") && has("as=APIGroupDiscoveryList")
}

fn json_of(fetched: &Fetched) -> Result<Value, BackendError> {
    serde_json::from_slice(&fetched.body).map_err(|error| BackendError::Exchange(error.to_string()))
}

/// The resources of a group-version in a document of aggregated discovery.
fn resources_in(document: &Value, version: &GroupVersion) -> Vec<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let groups = list(&document["items"]);
    let group = groups.iter().find(|group| group["metadata"]["name"] == version.group());
    let versions = group.map(|group| list(&group["versions"])).unwrap_or_default();
    let found = versions.iter().find(|found| found["version"] == version.version());
    let mut resources = found.map(|found| list(&found["resources"])).unwrap_or_default();
    // Some clients cannot read a resource without a kind.
    for resource in &mut resources {
        complete(resource);
        let subresources = resource.get_mut("subresources").and_then(Value::as_array_mut);
        for subresource in subresources.into_iter().flatten() {
            complete(subresource);
        }
    }
    resources
}

fn complete(resource: &mut Value) {
    if let Some(fields) = resource.as_object_mut()
        && fields.get("responseKind").is_none_or(Value::is_null)
    {
        fields.insert("responseKind".into(), json!({"group": "", "version": "", "kind": ""}));
    }
}

/// The resources in an APIResourceList, in the form of aggregated discovery.
fn resources_of_list(list: &Value, version: &GroupVersion) -> Vec<Value> {
    let entries = list["resources"].as_array().cloned().unwrap_or_default();
    let mut found: Vec<Value> = Vec::new();
    let mut subresources: Vec<(String, Value)> = Vec::new();
    for entry in &entries {
        let name = entry["name"].as_str().unwrap_or_default();
        let or = |field: &str, default: &str| {
            let text = entry[field].as_str().filter(|text| !text.is_empty());
            text.unwrap_or(default).to_string()
        };
        let (group, own) = (or("group", version.group()), or("version", version.version()));
        let kind = json!({"group": group, "version": own, "kind": entry["kind"]});
        if let Some((resource, subresource)) = name.split_once('/') {
            let shown = json!({"subresource": subresource, "responseKind": kind, "verbs": entry["verbs"]});
            subresources.push((resource.to_string(), shown));
            continue;
        }
        let scope = if entry["namespaced"] == true { "Namespaced" } else { "Cluster" };
        let mut shown = Map::new();
        shown.insert("resource".into(), name.into());
        shown.insert("responseKind".into(), kind);
        shown.insert("scope".into(), scope.into());
        shown.insert("singularResource".into(), or("singularName", "").into());
        shown.insert("verbs".into(), entry["verbs"].clone());
        for field in ["shortNames", "categories"] {
            if let Some(names) = entry.get(field).filter(|names| names.is_array()) {
                shown.insert(field.into(), names.clone());
            }
        }
        found.push(shown.into());
    }
    for (resource, subresource) in subresources {
        let Some(parent) = found.iter_mut().find(|shown| shown["resource"] == resource.as_str()) else { continue };
        match parent.get_mut("subresources").and_then(Value::as_array_mut) {
            Some(others) => others.push(subresource),
            None => parent["subresources"] = vec![subresource].into(),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_form_of_discovery_is_converted() {
        let version: GroupVersion = "garden.example/v1".parse().unwrap();
        let list = json!({"kind": "APIResourceList", "groupVersion": "garden.example/v1", "resources": [
            {"name": "plants", "singularName": "plant", "namespaced": true, "kind": "Plant", "verbs": ["get"],
             "shortNames": ["pl"], "storageVersionHash": "x"},
            {"name": "plants/scale", "namespaced": true, "kind": "Scale", "group": "autoscaling", "version": "v1",
             "verbs": ["get", "update"]},
        ]});
        let expected = json!([{
            "resource": "plants", "scope": "Namespaced", "singularResource": "plant", "verbs": ["get"], "shortNames": ["pl"],
            "responseKind": {"group": "garden.example", "version": "v1", "kind": "Plant"},
            "subresources": [{
                "subresource": "scale", "verbs": ["get", "update"],
                "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
            }],
        }]);
        assert_eq!(Value::from(resources_of_list(&list, &version)), expected);
    }

    #[test]
    fn only_the_group_version_of_the_api_service_is_taken_from_a_server() {
        let document = json!({"items": [
            {"metadata": {"name": "other.example"}, "versions": [{"version": "v1", "resources": [{"resource": "stones"}]}]},
            {"metadata": {"name": "garden.example"}, "versions": [
                {"version": "v2", "resources": [{"resource": "trees"}]},
                {"version": "v1", "resources": [{"resource": "plants"}]},
            ]},
        ]});
        let found = resources_in(&document, &"garden.example/v1".parse().unwrap());
        assert_eq!(
            Value::from(found),
            json!([{"resource": "plants", "responseKind": {"group": "", "version": "", "kind": ""}}])
        );
        assert!(resources_in(&document, &"garden.example/v3".parse().unwrap()).is_empty());
    }
}
