//! The service `kubernetes` in `default`: the Service, its Endpoints and its EndpointSlices, with one endpoint for each API server.
//!
//! The endpoints are the addresses in the identity leases. Every server reconciles all of it; the second one finds nothing to
//! do. A server at a loopback address cannot be reached by others: it is not listed, because Kubernetes does not allow such
//! endpoints, and publishes nothing.

use crate::builtin::kinds::service::allocation;
use crate::core::Core;
use crate::error::ApiError;
use crate::resource::ObjectRef;
use crate::resource::Resource;
use crate::resource::object_meta;
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use crate::storage_version::Agreement;
use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_store::{Compare, Key, RangeRequest, Txn};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How often everything is reconciled although the list of servers is unchanged.
const RESYNC_PERIOD: Duration = Duration::from_secs(10);
/// How long to wait after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// The name of the service, its endpoints, and the first of its slices.
const NAME: &str = "kubernetes";
/// The address of the service: the first of the range from which services have theirs.
const CLUSTER_ADDRESS: &str = "10.96.0.1";
/// The label with the service of a slice.
const OF_SERVICE: &str = "kubernetes.io/service-name";

/// Publishes the addresses of the API servers.
pub(crate) struct KubernetesService {
    pub(crate) core: Arc<Core>,
    pub(crate) agreement: Arc<Agreement>,
    /// Where clients reach this server.
    pub(crate) address: SocketAddr,
}

/// Publishes the addresses of the servers until this one stops or leaves.
pub(crate) async fn publish_servers(service: Arc<KubernetesService>) {
    while !service.core.is_stopping() && !service.agreement.has_left() {
        let server_list_changed = service.agreement.server_list_changed(service.core.watch_cache());
        let wait = match publish(&service, None).await {
            Ok(()) => RESYNC_PERIOD,
            Err(error) => {
                tracing::warn!(%error, "the endpoints of the service kubernetes could not be written; trying again");
                PAUSE
            }
        };
        let _ = tokio::time::timeout(wait, server_list_changed).await;
    }
}

/// Removes this server from the endpoints, because it is about to stop. Otherwise that happens when its lease is collected.
pub(crate) async fn withdraw_server(service: &KubernetesService) {
    if !service.core.startup().is_done() {
        return;
    }
    // A store that does not answer must not keep the server from stopping.
    let withdrawal = tokio::time::timeout(PAUSE, publish(service, Some(service.address)));
    if !matches!(withdrawal.await, Ok(Ok(()))) {
        tracing::debug!("this server could not be removed from the endpoints of the service kubernetes");
    }
}

async fn publish(service: &KubernetesService, leaving: Option<SocketAddr>) -> Result<(), ApiError> {
    // A server built with the library may not serve services.
    if find(&service.core, "v1", "services").is_none() || service.address.ip().is_loopback() {
        return Ok(());
    }
    let mut addresses = service.agreement.all_addresses().await?;
    addresses.retain(|address| !address.ip().is_loopback());
    match leaving {
        Some(own) => addresses.remove(&own),
        None => addresses.insert(service.address),
    };
    // If another service has the cluster IP, clients can still find the servers by their endpoints.
    let created =
        put(&service.core, "v1", "services", kubernetes_service(service.address.port()), Existing::Keep).await;
    if created.is_ok() {
        claim_address(&service.core).await?;
    }
    put(&service.core, "v1", "endpoints", endpoints(&addresses), Existing::Replace).await?;
    let slices = slices(&addresses);
    for slice in &slices {
        put(&service.core, "discovery.k8s.io/v1", "endpointslices", slice.clone(), Existing::Replace).await?;
    }
    remove_other_slices(&service.core, &slices).await?;
    created
}

/// Reserves the cluster IP, so that no other service gets it.
async fn claim_address(core: &Core) -> Result<(), ApiError> {
    let key = Key::try_from(format!("/restow/addresses/{CLUSTER_ADDRESS}"));
    let key = key.map_err(|error| ApiError::Internal(error.to_string()))?;
    let claim = Txn::new().when(Compare::absent(&key)).put(&key, format!("default/{NAME}"));
    core.objects().store().txn(claim).await?;
    Ok(())
}

/// The servers by address family and port, since these are the same for all endpoints of a slice.
fn by_port(addresses: &BTreeSet<SocketAddr>) -> BTreeMap<(bool, u16), Vec<IpAddr>> {
    let mut groups: BTreeMap<(bool, u16), Vec<IpAddr>> = BTreeMap::new();
    for address in addresses {
        groups.entry((address.is_ipv6(), address.port())).or_default().push(address.ip());
    }
    groups
}

fn kubernetes_service(port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": NAME, "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": CLUSTER_ADDRESS, "clusterIPs": [CLUSTER_ADDRESS],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
        "status": {"loadBalancer": {}},
    })
}

fn endpoints(addresses: &BTreeSet<SocketAddr>) -> Value {
    let subset = |((_, port), hosts): (&(bool, u16), &Vec<IpAddr>)| {
        let hosts: Vec<Value> = hosts.iter().map(|host| json!({"ip": host})).collect();
        json!({"addresses": hosts, "ports": [{"name": "https", "port": port, "protocol": "TCP"}]})
    };
    let subsets: Vec<Value> = by_port(addresses).iter().map(subset).collect();
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": NAME, "namespace": "default", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": subsets,
    })
}

/// The slices. The first one has the name of the service, and exists even without servers.
fn slices(addresses: &BTreeSet<SocketAddr>) -> Vec<Value> {
    let mut groups = by_port(addresses);
    if groups.is_empty() {
        groups.insert((false, 443), Vec::new());
    }
    let slice = |(number, ((is_ipv6, port), hosts)): (usize, (&(bool, u16), &Vec<IpAddr>))| {
        let name = match (number, is_ipv6) {
            (0, _) => NAME.to_string(),
            (_, false) => format!("{NAME}-{port}"),
            (_, true) => format!("{NAME}-ipv6-{port}"),
        };
        let endpoints: Vec<Value> =
            hosts.iter().map(|host| json!({"addresses": [host], "conditions": {"ready": true}})).collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "default", "labels": {OF_SERVICE: NAME}},
            "addressType": if *is_ipv6 { "IPv6" } else { "IPv4" },
            "endpoints": endpoints,
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        })
    };
    groups.iter().enumerate().map(slice).collect()
}

/// Deletes the slices of ports without servers.
async fn remove_other_slices(core: &Core, wanted: &[Value]) -> Result<(), ApiError> {
    let Some((resource, version)) = find(core, "discovery.k8s.io/v1", "endpointslices") else { return Ok(()) };
    let Some(storage) = &resource.storage else { return Ok(()) };
    let listed = core.objects().store().range(RangeRequest::new(storage.range("default"))).await?;
    for entry in listed.entries {
        let slice = match resource.decode(&entry, &version).await {
            Ok(slice) => slice,
            Err(error) => {
                // An operator has to repair it. The other slices do not wait for that.
                tracing::warn!(%error, key = %entry.key, "an EndpointSlice cannot be decoded and is skipped");
                continue;
            }
        };
        let ours = slice.text(&["metadata", "labels", OF_SERVICE]) == NAME && slice.name().starts_with(NAME);
        if ours && wanted.iter().all(|other| other["metadata"]["name"] != slice.name()) {
            let object_ref =
                ObjectRef { resource: &resource, version: &version, namespace: "default", name: slice.name() };
            core.objects().change(object_ref, &mut Remove).await?;
        }
    }
    Ok(())
}

fn find(core: &Core, version: &str, plural: &str) -> Option<(Arc<Resource>, GroupVersion)> {
    let version: GroupVersion = version.parse().ok()?;
    let resource = core.registry().find(&version, plural)?.clone();
    Some((resource, version))
}

/// What to do with an existing object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    Keep,
    Replace,
}

async fn put(core: &Core, version: &str, plural: &str, wanted: Value, existing: Existing) -> Result<(), ApiError> {
    let Some((resource, version)) = find(core, version, plural) else { return Ok(()) };
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default().to_string();
    let object_ref = ObjectRef { resource: &resource, version: &version, namespace: "default", name: &name };
    core.objects().change(object_ref, &mut Put { core, wanted, existing, claims: Vec::new() }).await.map(|_| ())
}

struct Put<'a> {
    core: &'a Core,
    wanted: Value,
    existing: Existing,
    /// The comparisons that reserve the cluster IP of a service.
    claims: Vec<Compare>,
}

#[async_trait]
impl ObjectDecision for Put<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let mut object = Object::from_value(self.wanted.clone()).unwrap_or_default();
        match before {
            Some(_) if self.existing == Existing::Keep => return Ok(ObjectChange::Keep),
            Some(before) => {
                let content = ["subsets", "addressType", "endpoints", "ports"];
                if content.iter().all(|field| before.get(field) == object.get(field)) {
                    return Ok(ObjectChange::Keep);
                }
                // Clients cannot change the address type of a slice, but this server may.
                let mut replaced = before.clone();
                content.iter().for_each(|field| replaced.set(field, object.get(field).cloned()));
                object = replaced;
            }
            None => {
                let fields = object.metadata_mut();
                fields.insert("uid".into(), restow_host::uuid().to_string().into());
                fields.insert("creationTimestamp".into(), object_meta::now().into());
                if object.kind() == "Service" {
                    self.claims = allocation::claim(self.core, &object).await?;
                }
            }
        }
        Ok(ObjectChange::Write(object))
    }

    fn conditions(&self) -> Vec<Compare> {
        self.claims.clone()
    }
}

struct Remove;

#[async_trait]
impl ObjectDecision for Remove {
    async fn decide(&mut self, _before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        Ok(ObjectChange::Remove)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(all: &[&str]) -> BTreeSet<SocketAddr> {
        all.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn servers_at_one_port_share_a_slice_and_others_have_their_own() {
        let found = slices(&addresses(&["10.0.0.2:6443", "10.0.0.1:6443", "10.0.0.1:7443", "[fd00::1]:6443"]));
        let summary: Vec<(&str, &str, usize)> = found
            .iter()
            .map(|slice| {
                let name = slice["metadata"]["name"].as_str().unwrap();
                (name, slice["addressType"].as_str().unwrap(), slice["endpoints"].as_array().unwrap().len())
            })
            .collect();
        assert_eq!(
            summary,
            [("kubernetes", "IPv4", 2), ("kubernetes-7443", "IPv4", 1), ("kubernetes-ipv6-6443", "IPv6", 1)]
        );
        assert_eq!(found[0]["endpoints"][0]["addresses"], json!(["10.0.0.1"]));
        assert_eq!(found[0]["ports"][0]["port"], 6443);
    }

    #[test]
    fn without_servers_there_is_an_empty_slice() {
        let found = slices(&BTreeSet::new());
        assert_eq!((found.len(), &found[0]["endpoints"]), (1, &json!([])));
        assert_eq!(endpoints(&BTreeSet::new())["subsets"], json!([]));
    }
}
