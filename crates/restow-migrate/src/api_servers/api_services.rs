//! Reads which groups aggregated API servers serve. `restow_rules::migrate::aggregation` decides what that means.

use crate::cluster::Cluster;
use crate::request::path_part;
use crate::request::{RequestError, request_json};
use http::Request;
use restow_rules::migrate::aggregation::{AggregatedService, Aggregation};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The page size.
const AT_ONCE: usize = 500;

#[derive(Deserialize)]
struct ApiServices {
    metadata: ListMetadata,
    items: Vec<ApiService>,
}

#[derive(Deserialize)]
struct ListMetadata {
    #[serde(default, rename = "continue")]
    token: String,
}

#[derive(Deserialize)]
struct ApiService {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// An APIService without a Service is served by the API servers themselves.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    group: String,
    service: Option<Service>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Service {
    namespace: String,
    name: String,
}

/// The APIServices that name a Service. Empty if the API is not served; if reading is forbidden, the result says so.
pub(super) async fn aggregation(cluster: &Cluster) -> Result<Aggregation, RequestError> {
    match list(cluster).await {
        Ok(found) => Ok(Aggregation(Ok(found))),
        Err(failure) if failure.code == 404 => Ok(Aggregation::default()),
        Err(failure) if failure.code == 0 => Err(failure),
        Err(failure) => Ok(Aggregation(Err(failure.to_string()))),
    }
}

async fn list(cluster: &Cluster) -> Result<BTreeMap<String, AggregatedService>, RequestError> {
    let (mut found, mut token) = (BTreeMap::new(), String::new());
    loop {
        let token_part = path_part(&token);
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices?limit={AT_ONCE}&continue={token_part}");
        let request = Request::get(path).body(Vec::new());
        let request =
            request.map_err(|error| RequestError { message: error.to_string(), ..RequestError::default() })?;
        let page: ApiServices = request_json(cluster.client(), request).await?;
        for ApiService { metadata, spec } in page.items {
            if let Some(Service { namespace, name }) = spec.service {
                let service = format!("{namespace}/{name}");
                found.insert(spec.group, AggregatedService { api_service: metadata.name, service });
            }
        }
        token = page.metadata.token;
        if token.is_empty() {
            return Ok(found);
        }
    }
}
