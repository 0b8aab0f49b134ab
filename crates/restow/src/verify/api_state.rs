//! What the API shows: the versions that the API servers write now, the identity of the cluster, and which resources have
//! objects.

use anyhow::Context;
use futures::{StreamExt, stream};
use http::Request;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Api;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use restow_api::{GroupResource, GroupVersionResource};
use restow_migrate::api_servers::{Observation, ResourceObservation, Scope, observe};
use restow_migrate::cluster::Cluster;
use restow_migrate::crd::{self, Crd};
use restow_migrate::discovery::equivalents;
use restow_rules::census::{DefinedVersions, KindTarget, in_force};
use restow_rules::trigger::EncodingAgreement;
use std::collections::{BTreeMap, BTreeSet};

/// How many collections are listed concurrently.
const AT_ONCE: usize = 8;

/// What the API servers write now.
pub(super) struct ApiState {
    pub(super) targets: Vec<KindTarget>,
    /// How each served resource is read.
    pub(super) served: BTreeMap<String, GroupVersionResource>,
    /// The resources that aggregated API servers keep in stores of their own, with the reason.
    pub(super) aggregated: BTreeMap<String, String>,
}

/// Queries the API servers for the versions that they write.
pub(super) async fn read_api_state(cluster: &Cluster) -> anyhow::Result<ApiState> {
    let without =
        "cannot query the API servers for the versions that they write now, which are needed to tell what is old";
    let observation = observe(cluster, Scope::All).await.context(without)?;
    let crds = crds(cluster).await.context(without)?;
    let same = equivalents();
    let mut api_state = ApiState { targets: Vec::new(), served: BTreeMap::new(), aggregated: BTreeMap::new() };
    for name in observation.resources().into_iter().filter(|name| !same.contains(name)) {
        let full_name = name.to_string();
        let crd = crds.get(&full_name);
        let Some(seen) = observation.resource(&name, crd) else { continue };
        api_state.served.insert(full_name.clone(), seen.resource.resource.clone());
        api_state.aggregated.extend(elsewhere(&observation, &name).map(|why| (full_name.clone(), why)));
        api_state.targets.push(KindTarget {
            group: name.group().to_string(),
            kind: seen.resource.kind.clone(),
            in_force: in_force(told(&observation, &seen), is_silent(&observation, &seen), crd.and_then(versions)),
            candidates: candidates(crd),
            defined: crd.map(names),
            resource: full_name,
        });
    }
    // A resource without a served version, or one that is being deleted, cannot be rewritten, but may still be stored.
    for (name, crd) in &crds {
        if !api_state.served.contains_key(name) {
            api_state.targets.push(unserved(&observation, name, crd));
        }
    }
    Ok(api_state)
}

/// Why the objects of a resource are in another store; `None` if they are not.
fn elsewhere(observation: &Observation, name: &GroupResource) -> Option<String> {
    let described = observation.aggregated(name)?;
    Some(format!("{described}, and the API servers behind it have a store of their own; use --through-api"))
}

/// The version that the API servers write into this store.
fn told(observation: &Observation, seen: &ResourceObservation) -> Result<restow_api::StorageVersionHash, String> {
    if let Some(words) = elsewhere(observation, &seen.resource.resource.group_resource()) {
        return Err(words);
    }
    let disagreement = || seen.disagreement().unwrap_or_else(|| "the API servers do not agree".into());
    seen.agreed().cloned().ok_or_else(disagreement)
}

/// Whether every server was queried and none named a version.
fn is_silent(observation: &Observation, seen: &ResourceObservation) -> bool {
    let EncodingAgreement::Disagreed(hashes) = &seen.agreement else { return false };
    observation.is_complete_for(seen.resource.resource.group())
        && hashes.iter().all(restow_api::StorageVersionHash::is_unknown)
}

fn unserved(observation: &Observation, name: &str, crd: &Crd) -> KindTarget {
    let words = "no API server serves it with all of get, list and patch".to_string();
    KindTarget {
        group: crd.spec.group.clone(),
        kind: crd.spec.names.kind.clone(),
        resource: name.to_string(),
        in_force: in_force(Err(words), observation.is_complete_for(&crd.spec.group), versions(crd)),
        candidates: candidates(Some(crd)),
        defined: Some(names(crd)),
    }
}

fn versions(crd: &Crd) -> Option<DefinedVersions<'_>> {
    let storage = crd.spec.versions.iter().find(|version| version.storage)?;
    Some(DefinedVersions {
        group: &crd.spec.group,
        kind: &crd.spec.names.kind,
        storage: &storage.name,
        is_served: storage.served,
    })
}

fn names(crd: &Crd) -> Vec<String> {
    crd.spec.versions.iter().map(|version| version.name.clone()).collect()
}

/// The versions that a hash may stand for. Built-in kinds have never had others.
fn candidates(crd: Option<&Crd>) -> Vec<String> {
    let usual = || {
        let stages = ["", "beta1", "beta2", "beta3", "alpha1", "alpha2", "alpha3"];
        (1..=2).flat_map(move |major| stages.map(|stage| format!("v{major}{stage}"))).collect()
    };
    crd.map(names).unwrap_or_else(usual)
}

/// All CRDs by name; none if the API is not served.
async fn crds(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, Crd>> {
    match crd::list(cluster.client()).await {
        Err(failure) if failure.code == 404 => Ok(BTreeMap::new()),
        found => found.context("cannot list CRDs"),
    }
}

/// The uid of the namespace kube-system, or why it is unknown.
pub(super) async fn uid(cluster: &Cluster) -> Result<String, String> {
    let namespaces: Api<Namespace> = Api::all(cluster.client().clone());
    let found = namespaces.get_metadata("kube-system").await.map_err(|error| error.to_string())?;
    found.metadata.uid.ok_or_else(|| "it has no uid".to_string())
}

/// The latest resource version of the API servers, or why it is unknown.
pub(super) async fn revision(cluster: &Cluster) -> Result<String, String> {
    let namespaces: Api<Namespace> = Api::all(cluster.client().clone());
    let list = namespaces.list_metadata(&ListParams::default().limit(1)).await.map_err(|error| error.to_string())?;
    Ok(list.metadata.resource_version.unwrap_or_default())
}

/// Which of these resources have objects in the API, or may have, each with the reason.
pub(super) async fn have_objects(
    cluster: &Cluster,
    resources: Vec<(String, GroupVersionResource)>,
) -> BTreeMap<String, String> {
    let read_api_state = |(name, resource): (String, GroupVersionResource)| async move {
        let root = match resource.group() {
            "" => format!("/api/{}", resource.version()),
            group => format!("/apis/{group}/{}", resource.version()),
        };
        let request = Request::get(format!("{root}/{}?limit=1", resource.resource()))
            .header(http::header::ACCEPT, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
            .body(Vec::new())
            .map_err(|error| error.to_string());
        let list = match request {
            Ok(request) => cluster
                .client()
                .request::<kube::core::ObjectList<PartialObjectMeta>>(request)
                .await
                .map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        match list {
            Ok(list) if list.items.is_empty() => None,
            Ok(_) => Some((name, "the API has objects of it, and none is stored under this prefix".to_string())),
            Err(error) => {
                Some((name, format!("none is stored under this prefix, and the API does not list it: {error}")))
            }
        }
    };
    let found: Vec<_> = stream::iter(resources).map(read_api_state).buffer_unordered(AT_ONCE).collect().await;
    found.into_iter().flatten().collect()
}

/// The groups of aggregated API servers, which may keep their objects in other stores.
pub(super) async fn aggregated_groups(cluster: &Cluster) -> BTreeSet<String> {
    let services: Api<APIService> = Api::all(cluster.client().clone());
    // If they cannot be listed, no group counts as aggregated.
    let list = services.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    let specs = list.into_iter().filter_map(|one| one.spec);
    specs.filter(|spec| spec.service.is_some()).filter_map(|spec| spec.group).collect()
}
