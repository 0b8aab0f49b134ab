//! Fetches what a server behind an APIService says about its group-version: its resources, and where its OpenAPI document is.

use crate::aggregator::backend::{Backend, BackendError, Fetched};
use crate::aggregator::worker::aggregator_user;
use crate::discovery::aggregation::{AggregatedVersion, Freshness};
use crate::discovery::discovered_resource::{DiscoveredResource, ListedResource, converted};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use restow_api::GroupVersion;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The media type of aggregated discovery.
const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// How much one group-version may add to the document of all groups, which every client reads.
const LARGEST_VERSION: usize = 1 << 20;

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
            let resources = resources_in(&json_of(&fetched)?, &backend.version)?;
            current(resources, fetched.headers.get(header::ETAG).cloned())
        }
        _ => fetch_resource_list(backend).await,
    }
}

/// The older form, for servers that have no aggregated discovery.
async fn fetch_resource_list(backend: &Backend) -> Result<FetchedDiscovery, BackendError> {
    let path = format!("/apis/{}", backend.version);
    let fetched = backend.fetch(&path, &aggregator_user(), HeaderMap::new()).await?;
    match fetched.code {
        StatusCode::OK => current(resources_of_list(&json_of(&fetched)?, &backend.version)?, None),
        code => Err(BackendError::Exchange(format!("failed to download legacy discovery for {path}: {code}"))),
    }
}

async fn fetch_openapi(backend: &Backend) -> Option<String> {
    let fetched = backend.fetch("/openapi/v3", &aggregator_user(), HeaderMap::new()).await.ok()?;
    let index = json_of(&fetched).ok().filter(|_| fetched.code == StatusCode::OK)?;
    let path = format!("apis/{}", backend.version);
    index["paths"][&path]["serverRelativeURL"].as_str().map(str::to_string)
}

fn current(resources: Vec<DiscoveredResource>, etag: Option<HeaderValue>) -> Result<FetchedDiscovery, BackendError> {
    let size = serde_json::to_vec(&resources).map_or(usize::MAX, |encoded| encoded.len());
    if size > LARGEST_VERSION {
        return Err(BackendError::Exchange(format!("discovery is too large: more than {LARGEST_VERSION} bytes")));
    }
    Ok(FetchedDiscovery { shown: AggregatedVersion { resources, freshness: Freshness::Current, openapi: None }, etag })
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
fn resources_in(document: &Value, version: &GroupVersion) -> Result<Vec<DiscoveredResource>, BackendError> {
    let groups: Vec<Value> = list_of(&document["items"])?;
    let Some(group) = groups.iter().find(|group| group["metadata"]["name"] == version.group()) else {
        return Ok(Vec::new());
    };
    let versions: Vec<Value> = list_of(&group["versions"])?;
    let found = versions.iter().find(|found| found["version"] == version.version());
    found.map_or_else(|| Ok(Vec::new()), |found| list_of(&found["resources"]))
}

/// The resources in an APIResourceList, in the form of aggregated discovery.
fn resources_of_list(list: &Value, version: &GroupVersion) -> Result<Vec<DiscoveredResource>, BackendError> {
    Ok(converted(list_of::<ListedResource>(&list["resources"])?, version))
}

/// A list, which Go writes as `null` if it is empty.
fn list_of<T: DeserializeOwned>(value: &Value) -> Result<Vec<T>, BackendError> {
    let read: Result<Option<Vec<T>>, _> = serde_json::from_value(value.clone());
    let read = read.map_err(|error| BackendError::Exchange(format!("malformed discovery: {error}")))?;
    Ok(read.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn garden() -> GroupVersion {
        "garden.example/v1".parse().unwrap()
    }

    #[test]
    fn only_the_group_version_of_the_api_service_is_taken_from_a_server() {
        let document = json!({"items": [
            {"metadata": {"name": "other.example"}, "versions": [{"version": "v1", "resources": "malformed"}]},
            {"metadata": {"name": "garden.example"}, "versions": [
                {"version": "v2", "resources": [{"resource": "trees"}]},
                {"version": "v1", "resources": [{"resource": "plants"}]},
            ]},
        ]});
        let found = resources_in(&document, &garden()).unwrap();
        let expected = json!([{
            "resource": "plants", "responseKind": {"group": "", "version": "", "kind": ""}, "scope": "",
            "singularResource": "", "verbs": [],
        }]);
        assert_eq!(serde_json::to_value(found).unwrap(), expected);
        assert_eq!(resources_in(&document, &"garden.example/v3".parse().unwrap()), Ok(Vec::new()));
    }

    #[test]
    fn malformed_discovery_is_an_error_and_not_a_server_without_resources() {
        for resources in [json!("plants"), json!(["plants"]), json!([{"resource": "plants", "verbs": "get"}])] {
            let versions = json!([{"version": "v1", "resources": resources}]);
            let document = json!({"items": [{"metadata": {"name": "garden.example"}, "versions": versions}]});
            assert!(resources_in(&document, &garden()).is_err(), "{document}");
        }
        for resources in [json!({}), json!([{"name": 1}]), json!([{"name": "plants", "shortNames": 7}])] {
            assert!(resources_of_list(&json!({"resources": resources}), &garden()).is_err(), "{resources}");
        }
        assert_eq!(resources_of_list(&json!({"resources": null}), &garden()), Ok(Vec::new()));
    }

    #[test]
    fn a_group_version_may_add_only_so_much_to_discovery() {
        let resource = |length: usize| DiscoveredResource { resource: "x".repeat(length), ..Default::default() };
        assert!(current(vec![resource(LARGEST_VERSION / 2)], None).is_ok());
        assert!(current(vec![resource(LARGEST_VERSION / 2), resource(LARGEST_VERSION / 2)], None).is_err());
    }
}
