//! What the API says: which versions the API servers write now, which cluster they are, and what they have objects of.

use anyhow::Context;
use futures::{StreamExt, stream};
use http::Request;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Api;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use restow_api::GroupVersionResource;
use restow_migrate::api_servers::{Observation, ResourceObservation, Scope, observe};
use restow_migrate::cluster::Cluster;
use restow_migrate::crd::{self, Crd};
use restow_migrate::discovery::equivalents;
use restow_rules::census::{DefinedVersions, KindTarget, in_force};
use restow_rules::trigger::EncodingAgreement;
use std::collections::{BTreeMap, BTreeSet};

/// How many collections are asked for at once.
const AT_ONCE: usize = 8;

/// What the API servers write now.
pub(super) struct Asked {
    pub(super) targets: Vec<KindTarget>,
    /// How each resource is read, where it is served.
    pub(super) served: BTreeMap<String, GroupVersionResource>,
}

/// Asks the API servers what they write.
pub(super) async fn ask(cluster: &Cluster) -> anyhow::Result<Asked> {
    let without = "cannot ask the API servers which versions they write now, without which nobody can say what is old";
    let observation = observe(cluster, Scope::All).await.context(without)?;
    let crds = crds(cluster).await.context(without)?;
    let same = equivalents();
    let mut asked = Asked { targets: Vec::new(), served: BTreeMap::new() };
    for name in observation.resources().into_iter().filter(|name| !same.contains(name)) {
        let full_name = name.to_string();
        let crd = crds.get(&full_name);
        let Some(seen) = observation.resource(&name, crd) else { continue };
        asked.served.insert(full_name.clone(), seen.resource.resource.clone());
        asked.targets.push(KindTarget {
            group: name.group().to_string(),
            kind: seen.resource.kind.clone(),
            in_force: in_force(told(&seen), is_silent(&observation, &seen), crd.and_then(versions)),
            candidates: candidates(crd),
            defined: crd.map(names),
            resource: full_name,
        });
    }
    // What no version of is served, or what is being deleted, is not among what can be rewritten, and may be stored still.
    for (name, crd) in &crds {
        if !asked.served.contains_key(name) {
            asked.targets.push(unserved(&observation, name, crd));
        }
    }
    Ok(asked)
}

fn told(seen: &ResourceObservation) -> Result<restow_api::StorageVersionHash, String> {
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
    let words = "no API server serves it, or not everything that can be done with it".to_string();
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

/// The versions that a hash may stand for. What is built in has never had others.
fn candidates(crd: Option<&Crd>) -> Vec<String> {
    let usual = || {
        let stages = ["", "beta1", "beta2", "beta3", "alpha1", "alpha2", "alpha3"];
        (1..=2).flat_map(move |major| stages.map(|stage| format!("v{major}{stage}"))).collect()
    };
    crd.map(names).unwrap_or_else(usual)
}

/// All CRDs by name; none where there is no such API.
async fn crds(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, Crd>> {
    match crd::list(cluster.client()).await {
        Err(failure) if failure.code == 404 => Ok(BTreeMap::new()),
        found => found.context("cannot list CRDs"),
    }
}

/// The uid of the namespace kube-system, or why it is not shown.
pub(super) async fn uid(cluster: &Cluster) -> Result<String, String> {
    let namespaces: Api<Namespace> = Api::all(cluster.client().clone());
    let found = namespaces.get_metadata("kube-system").await.map_err(|error| error.to_string())?;
    found.metadata.uid.ok_or_else(|| "it has no uid".to_string())
}

/// The latest revision that the API servers know of, or why they do not say.
pub(super) async fn revision(cluster: &Cluster) -> Result<String, String> {
    let namespaces: Api<Namespace> = Api::all(cluster.client().clone());
    let list = namespaces.list_metadata(&ListParams::default().limit(1)).await.map_err(|error| error.to_string())?;
    Ok(list.metadata.resource_version.unwrap_or_default())
}

/// Of these resources, those that the API has objects of, or may have, each with what is known.
pub(super) async fn have_objects(
    cluster: &Cluster,
    resources: Vec<(String, GroupVersionResource)>,
) -> BTreeMap<String, String> {
    let ask = |(name, resource): (String, GroupVersionResource)| async move {
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
            Ok(_) => Some((name, "the API has objects of it, and none of them lies under this prefix".to_string())),
            Err(error) => {
                Some((name, format!("none is stored under this prefix, and the API does not list it: {error}")))
            }
        }
    };
    let found: Vec<_> = stream::iter(resources).map(ask).buffer_unordered(AT_ONCE).collect().await;
    found.into_iter().flatten().collect()
}

/// The groups that other servers serve behind the API server (aggregation), which may keep their objects elsewhere.
pub(super) async fn aggregated_groups(cluster: &Cluster) -> BTreeSet<String> {
    let services: Api<APIService> = Api::all(cluster.client().clone());
    // Where that is not shown, none is mistaken for such.
    let list = services.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    let specs = list.into_iter().filter_map(|one| one.spec);
    specs.filter(|spec| spec.service.is_some()).filter_map(|spec| spec.group).collect()
}
