//! Reads which groups aggregated API servers serve, and how many servers are behind their services.
//! `restow_rules::migrate::aggregation` decides what that means.

use super::Scope;
use crate::cluster::{Cluster, generation, readable};
use crate::request::path_part;
use crate::request::{RequestError, request_json};
use http::Request;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use restow_rules::migrate::aggregation::{AggregatedGroup, Aggregation};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

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

async fn list(cluster: &Cluster) -> Result<BTreeMap<String, AggregatedGroup>, RequestError> {
    let (mut found, mut token) = (BTreeMap::<String, AggregatedGroup>::new(), String::new());
    loop {
        let token_part = path_part(&token);
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices?limit={AT_ONCE}&continue={token_part}");
        let request = Request::get(path).body(Vec::new());
        let request =
            request.map_err(|error| RequestError { message: error.to_string(), ..RequestError::default() })?;
        let page: ApiServices = request_json(cluster.client(), request).await?;
        for ApiService { metadata, spec } in page.items {
            if let Some(Service { namespace, name }) = spec.service {
                let group = found.entry(spec.group).or_insert_with(|| AggregatedGroup {
                    services: BTreeMap::new(),
                    addresses: Ok(BTreeSet::new()),
                    marks: BTreeMap::new(),
                });
                group.services.insert(metadata.name, format!("{namespace}/{name}"));
            }
        }
        token = page.metadata.token;
        if token.is_empty() {
            return Ok(found);
        }
    }
}

/// Reads which servers are behind the services of those groups of which somebody reports what is stored. Of the others nothing
/// can be proven, whatever their number is.
pub(super) async fn count_servers(
    cluster: &Cluster,
    aggregation: &mut Aggregation,
    reported: &BTreeSet<&str>,
    scope: Scope<'_>,
) -> Result<(), RequestError> {
    let Ok(groups) = &mut aggregation.0 else { return Ok(()) };
    let is_needed = |name: &str| {
        let is_observed = match scope {
            Scope::All => true,
            Scope::Resources(resources) => resources.iter().any(|resource| resource.group() == name),
        };
        is_observed && reported.contains(name)
    };
    for (_, group) in groups.iter_mut().filter(|(name, _)| is_needed(name)) {
        let services: BTreeSet<&String> = group.services.values().collect();
        let (mut slices, mut unreadable) = (Vec::new(), None);
        for service in services {
            match slices_of(cluster, service).await? {
                Ok(found) => slices.extend(found),
                Err(why) => {
                    unreadable = Some(format!("the EndpointSlices of the service {service} cannot be read: {why}"));
                }
            }
        }
        group.marks = slices.iter().map(mark).collect();
        group.addresses = unreadable.map_or_else(|| Ok(slices.iter().flat_map(servers_of).collect()), Err);
    }
    Ok(())
}

/// The EndpointSlices of a service, as in `namespace/name`; or why they cannot be read.
async fn slices_of(cluster: &Cluster, service: &str) -> Result<Result<Vec<EndpointSlice>, String>, RequestError> {
    let (namespace, name) = service.split_once('/').unwrap_or(("default", service));
    let slices: Api<EndpointSlice> = Api::namespaced(cluster.client().clone(), namespace);
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
    readable(slices.list(&of_service).await.map(|list| list.items))
}

/// What changes on a slice when a server is added or removed, by its name.
fn mark(slice: &EndpointSlice) -> (String, String) {
    let namespace = slice.namespace().unwrap_or_default();
    let uid = slice.uid().unwrap_or_default();
    (format!("EndpointSlice {namespace}/{}", slice.name_any()), format!("{uid} {}", generation(slice)))
}

/// The servers in a slice. One that is not ready, or that shuts down, counts too: it may still write. A Pod with an IPv4 and an
/// IPv6 address is in two slices, and one server. Anything else, such as a Node, may run several.
fn servers_of(slice: &EndpointSlice) -> Vec<String> {
    let ports: Vec<String> = slice.ports.iter().flatten().filter_map(|port| Some(port.port?.to_string())).collect();
    let ports = ports.join(",");
    let pod = |endpoint: &Endpoint| {
        let target = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"))?;
        target.uid.clone()
    };
    let servers = |endpoint: &Endpoint| match pod(endpoint) {
        Some(uid) => vec![format!("uid {uid}")],
        None => endpoint.addresses.iter().map(|address| format!("{address} port {ports}")).collect(),
    };
    slice.endpoints.iter().flatten().flat_map(servers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_endpoint_counts_ready_or_not_and_a_pod_counts_once() {
        let slice = |kind: &str, endpoints: serde_json::Value| -> EndpointSlice {
            let ports = json!([{"name": "https", "port": 443}]);
            let object =
                json!({"addressType": kind, "metadata": {"name": kind}, "ports": ports, "endpoints": endpoints});
            serde_json::from_value(object).unwrap()
        };
        let pod =
            |address: &str| json!({"addresses": [address], "targetRef": {"kind": "Pod", "name": "p", "uid": "7"}});
        let on_node = |address: &str| json!({"addresses": [address], "targetRef": {"kind": "Node", "uid": "8"}});
        let both = [
            slice("IPv4", json!([pod("10.0.0.1"), {"addresses": ["10.0.0.2"], "conditions": {"ready": false}}])),
            slice("IPv4", json!([on_node("10.0.0.3"), on_node("10.0.0.4")])),
            slice("IPv6", json!([pod("fd00::1")])),
        ];
        let servers: BTreeSet<String> = both.iter().flat_map(servers_of).collect();
        assert_eq!(
            servers,
            ["10.0.0.2 port 443", "10.0.0.3 port 443", "10.0.0.4 port 443", "uid 7"].map(str::to_owned).into()
        );
    }
}
