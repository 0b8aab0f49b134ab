//! The storage versions and migrations of a cluster, for display.
//!
//! This only reads. `restow status` prints it; `restow verify --through-api` uses it.

mod migrations;
mod waiting;

pub use migrations::MigrationStatus;
pub use waiting::{ResourceWait, WaitingFor};

use crate::api_servers::{CANNOT_BE_QUERIED, Observation, Scope, observe};
use crate::cluster::Cluster;
use crate::crd::Crd;
use crate::discovery::equivalents;
use crate::mark::{mark_of, refusals_of};
use crate::request::{RequestError, request_json};
use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use restow_api::migration::StorageState;
use restow_api::{GroupResource, StorageVersionHash, storage_version_hash};
use restow_rules::migrate::marks::{Holder, HolderKind, MigrationMark};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Versions that a built-in resource may be stored in although no server serves them any more.
const FORMER_VERSIONS: [&str; 10] =
    ["v1", "v2", "v1beta1", "v1beta2", "v1beta3", "v2beta1", "v2beta2", "v1alpha1", "v1alpha2", "v1alpha3"];

/// The value in [`ResourceStatus::servers`] for a server that did not answer.
pub const NO_ANSWER: &str = "no answer";

/// The storage versions of a cluster.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Every known API server.
    pub servers: Vec<ServerStatus>,
    /// Where their storage versions come from.
    pub source: VersionSource,
    /// Every stored resource, by name.
    pub resources: Vec<ResourceStatus>,
    /// What could not be read, and why; everything that depends on it is unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
}

/// An API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// Its identity, or its address.
    pub name: String,
    /// Why it could not be queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_because: Option<String>,
}

/// Where the storage versions of the API servers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum VersionSource {
    /// From StorageVersions. Resources without one come from discovery.
    Reports,
    /// From the discovery document of each server.
    Discovery,
}

/// What is known about one resource.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// The resource, as in `widgets.example.com`.
    pub resource: String,
    /// Its group.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// The version that all servers write; `None` if they do not agree or do not publish it.
    pub storage_version: Option<String>,
    /// The hash of that version.
    pub hash: Option<StorageVersionHash>,
    /// The versions that objects may be stored in; `None` if that is not recorded.
    pub stored_versions: Option<Vec<String>>,
    /// Whether the storage version is published. Most aggregated API servers do not publish or report it, and their objects
    /// are not managed.
    pub is_managed: bool,
    /// Why it is not managed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_managed_because: Option<String>,
    /// Which aggregated API servers serve it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregated: Option<String>,
    /// What each server writes, or [`NO_ANSWER`].
    pub servers: BTreeMap<String, String>,
    /// Why the servers do not agree.
    pub disagreement: Option<String>,
    /// The running or latest migration.
    pub migration: Option<MigrationStatus>,
    /// Who migrates it manually, according to the mark on its CRD.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrated_by_hand: Option<String>,
    /// What the last manual migration could not rewrite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_by_hand: Option<String>,
    /// What has to happen before everything is stored in the storage version.
    pub waits_for: Option<ResourceWait>,
    /// When a controller last updated its StorageState.
    pub recorded_at: Option<String>,
    /// The versions that a hash of this resource may stand for.
    #[serde(skip)]
    pub candidates: Vec<String>,
}

/// Part of a list.
#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

/// Reads the status of a cluster.
pub async fn read_cluster_status(cluster: &Cluster) -> Result<ClusterStatus, RequestError> {
    let observation = observe(cluster, Scope::All).await?;
    let mut hidden = Vec::new();
    let groups: APIGroupList = request_json(cluster.client(), get("/apis")?).await?;
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for group in groups.groups {
        versions.insert(group.name, group.versions.into_iter().map(|version| version.version).collect());
    }
    let crds: Vec<Crd> =
        readable(list(cluster, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions").await, &mut hidden)?;
    let states: Vec<StorageState> =
        readable(list(cluster, "/apis/migration.k8s.io/v1alpha1/storagestates").await, &mut hidden)?;
    let migrations = readable(migrations::all(cluster).await.map(Some), &mut hidden)?;
    let same = equivalents();
    let mut resources = Vec::new();
    for name in observation.resources().into_iter().filter(|name| !same.contains(name)) {
        let full_name = name.to_string();
        let crd = crds.iter().find(|one| one.metadata.name.as_deref() == Some(full_name.as_str()));
        let Some(seen) = observation.resource(&name, crd) else { continue };
        // The settling time of a later migration counts from here.
        observation.agreed_since(cluster, &seen, crd);
        let candidates = candidates(versions.get(name.group()), crd);
        let version_of = |hash: &StorageVersionHash| version_of(hash, &name, &seen.resource.kind, &candidates);
        let hash = seen.agreed().cloned();
        // If CRDs cannot be read, it may have one.
        let has_crd = crd.is_some() || (!hidden.is_empty() && observation.aggregated(&name).is_none());
        let not_managed_because = observation.not_managed_because(&name, has_crd);
        let is_managed = not_managed_because.is_none();
        let mut resource = ResourceStatus {
            resource: full_name.clone(),
            group: name.group().to_string(),
            kind: seen.resource.kind.clone(),
            storage_version: hash.as_ref().map(&version_of),
            stored_versions: stored_versions(crd, &states, &name, &version_of),
            servers: seen.by_server.iter().map(|(server, words)| (server.clone(), shown(words, &version_of))).collect(),
            is_managed,
            not_managed_because,
            aggregated: observation.aggregated(&name),
            disagreement: seen.disagreement().filter(|_| is_managed),
            migration: migrations::latest(&migrations, &name, &version_of),
            migrated_by_hand: crd.and_then(by_hand),
            refused_by_hand: crd.and_then(refusals_of).map(str::to_owned),
            waits_for: None,
            recorded_at: recorded_at(&states, &name),
            hash,
            candidates,
        };
        resource.waits_for = waiting::waits_for(&resource);
        resources.push(resource);
    }
    hidden.extend(observation.undetermined());
    let source = if observation.reporting().is_empty() { VersionSource::Discovery } else { VersionSource::Reports };
    Ok(ClusterStatus { servers: servers(&observation, source), source, resources, hidden })
}

/// Every server that reports, or that was queried.
fn servers(observation: &Observation, source: VersionSource) -> Vec<ServerStatus> {
    let server = |name: &str, failure: Option<&RequestError>| ServerStatus {
        name: name.to_owned(),
        silent_because: failure.map(ToString::to_string),
    };
    match source {
        VersionSource::Reports => observation.reporting().into_iter().map(|name| server(name, None)).collect(),
        VersionSource::Discovery => observation.asked().map(|(name, failure)| server(name, failure)).collect(),
    }
}

fn candidates(served: Option<&Vec<String>>, crd: Option<&Crd>) -> Vec<String> {
    let defined = crd.iter().flat_map(|crd| &crd.spec.versions).map(|version| version.name.clone());
    let mut all: Vec<String> = served.into_iter().flatten().cloned().chain(defined).collect();
    if crd.is_none() {
        all.extend(FORMER_VERSIONS.map(String::from));
    }
    all.sort();
    all.dedup();
    all
}

/// The version of a hash, or the hash itself if it is unknown.
fn version_of(hash: &StorageVersionHash, name: &GroupResource, kind: &str, candidates: &[String]) -> String {
    let is_it = |version: &&String| storage_version_hash(name.group(), version, kind) == hash.as_str();
    candidates.iter().find(is_it).cloned().unwrap_or_else(|| hash.to_string())
}

/// The version that a server writes, for display: from an encoding version such as `apps/v1`, a hash, or a message.
fn shown(words: &str, version_of: &dyn Fn(&StorageVersionHash) -> String) -> String {
    match words {
        words if words.starts_with(CANNOT_BE_QUERIED) => NO_ANSWER.to_owned(),
        words if words.contains(' ') => words.to_owned(),
        // A hash ends like this, and may contain a slash.
        words if words.ends_with('=') => version_of(&StorageVersionHash::new(words)),
        words => words.rsplit('/').next().unwrap_or(words).to_owned(),
    }
}

/// When a controller last updated the StorageState of a resource.
fn recorded_at(states: &[StorageState], name: &GroupResource) -> Option<String> {
    let state = states.iter().find(|state| state.metadata.name == StorageState::name_for(name))?;
    state.status.last_heartbeat_time.as_ref().map(ToString::to_string)
}

/// The versions that may be stored: from the CRD, or from the StorageState.
fn stored_versions(
    crd: Option<&Crd>,
    states: &[StorageState],
    name: &GroupResource,
    version_of: &dyn Fn(&StorageVersionHash) -> String,
) -> Option<Vec<String>> {
    if let Some(crd) = crd {
        return crd.status.as_ref().map(|status| status.stored_versions.clone());
    }
    let state = states.iter().find(|state| state.metadata.name == StorageState::name_for(name))?;
    Some(state.status.persisted_storage_version_hashes.iter().map(version_of).collect())
}

/// Who migrates a resource manually, according to its mark.
fn by_hand(crd: &Crd) -> Option<String> {
    let MigrationMark::By(text) = mark_of(crd) else { return None };
    match text.parse::<Holder>() {
        Ok(holder) if holder.kind == HolderKind::Command => Some(holder.name),
        _ => None,
    }
}

/// The objects of a list. If reading is forbidden, the error is added to `hidden`.
fn readable<T>(listed: Result<Option<Vec<T>>, RequestError>, hidden: &mut Vec<String>) -> Result<Vec<T>, RequestError> {
    match listed {
        Ok(found) => Ok(found.unwrap_or_default()),
        Err(failure) if matches!(failure.code, 401 | 403) => {
            hidden.push(failure.to_string());
            Ok(Vec::new())
        }
        Err(failure) => Err(failure),
    }
}

/// All objects of a collection; `None` where it is not served.
async fn list<T: DeserializeOwned>(cluster: &Cluster, path: &str) -> Result<Option<Vec<T>>, RequestError> {
    match request_json::<Items<T>>(cluster.client(), get(path)?).await {
        Ok(list) => Ok(Some(list.items)),
        Err(failure) if failure.code == 404 => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn get(path: &str) -> Result<Request<Vec<u8>>, RequestError> {
    Request::get(path)
        .body(Vec::new())
        .map_err(|error| RequestError { message: error.to_string(), ..RequestError::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_is_said_to_write_is_shown_as_a_version() {
        let version_of = |hash: &StorageVersionHash| format!("of {hash}");
        for (words, expected) in [
            ("apps/v1", "v1"),
            ("v1", "v1"),
            ("ab/de+ghijk=", "of ab/de+ghijk="),
            ("does not serve it", "does not serve it"),
            ("cannot be queried: https://10.0.0.1/ is silent", NO_ANSWER),
        ] {
            assert_eq!(shown(words, &version_of), expected, "{words}");
        }
    }
}
