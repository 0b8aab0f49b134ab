//! Everything that is known about the storage versions of a cluster, for people to look at.
//!
//! It only reads. `restow status` prints it, `restow verify` takes from it what the API servers write now.

use crate::agreement::{Scope, observe};
use crate::cluster::Cluster;
use crate::definition::Definition;
use crate::discovery::equivalents;
use crate::exchange::{Failure, exchange_json};
use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use restow_api::migration::{StorageState, StorageVersionMigration};
use restow_api::{GroupResource, StorageVersionHash, storage_version_hash};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Versions that a built-in resource may be stored in though nobody serves them any more.
const FORMER_VERSIONS: [&str; 10] =
    ["v1", "v2", "v1beta1", "v1beta2", "v1beta3", "v2beta1", "v2beta2", "v1alpha1", "v1alpha2", "v1alpha3"];

/// The storage versions of a cluster.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Every stored resource, by name.
    pub resources: Vec<ResourceOverview>,
}

/// What is known about one resource.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOverview {
    /// The resource, as in `widgets.example.com`.
    pub resource: String,
    /// Its group.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// The version that all servers write; `None` when they do not agree, or do not tell.
    pub storage_version: Option<String>,
    /// The hash of that version.
    pub hash: Option<StorageVersionHash>,
    /// The versions that objects may be stored in; `None` when nobody has kept record of it.
    pub stored_versions: Option<Vec<String>>,
    /// What each server writes.
    pub servers: BTreeMap<String, String>,
    /// Why the servers do not agree.
    pub disagreement: Option<String>,
    /// The running or latest migration.
    pub migration: Option<MigrationOverview>,
    /// The versions that a hash of this resource may stand for.
    #[serde(skip)]
    pub candidates: Vec<String>,
}

/// What is known about a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationOverview {
    /// The name of the object.
    pub name: String,
    /// `Pending`, `Running`, `Succeeded` or `Failed`.
    pub state: String,
    /// How far it is, or what it waits for.
    pub message: String,
}

/// Part of a list.
#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

/// Looks at a cluster.
pub async fn look(cluster: &Cluster) -> Result<Overview, Failure> {
    let observation = observe(cluster, Scope::All).await?;
    let groups: APIGroupList = exchange_json(cluster.client(), get("/apis")?).await?;
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for group in groups.groups {
        versions.insert(group.name, group.versions.into_iter().map(|version| version.version).collect());
    }
    let definitions: Vec<Definition> = list(cluster, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions").await?;
    let states: Vec<StorageState> = list(cluster, "/apis/migration.k8s.io/v1alpha1/storagestates").await?;
    let migrations: Vec<StorageVersionMigration> =
        list(cluster, "/apis/migration.k8s.io/v1alpha1/storageversionmigrations").await?;
    let same = equivalents();
    let mut resources = Vec::new();
    for name in observation.resources().into_iter().filter(|name| !same.contains(name)) {
        let Some(seen) = observation.resource(&name) else { continue };
        let full_name = name.to_string();
        let definition = definitions.iter().find(|one| one.metadata.name.as_deref() == Some(full_name.as_str()));
        let candidates = candidates(versions.get(name.group()), definition);
        let version_of = |hash: &StorageVersionHash| version_of(hash, &name, &seen.resource.kind, &candidates);
        let hash = seen.agreed().cloned();
        resources.push(ResourceOverview {
            resource: full_name.clone(),
            group: name.group().to_string(),
            kind: seen.resource.kind.clone(),
            storage_version: hash.as_ref().map(&version_of),
            stored_versions: stored_versions(definition, &states, &name, &version_of),
            servers: seen.by_server.iter().map(|(server, words)| (server.clone(), shown(words, &version_of))).collect(),
            disagreement: seen.disagreement(),
            migration: latest(&migrations, &name),
            hash,
            candidates,
        });
    }
    Ok(Overview { resources })
}

fn candidates(served: Option<&Vec<String>>, definition: Option<&Definition>) -> Vec<String> {
    let defined =
        definition.iter().flat_map(|definition| &definition.spec.versions).map(|version| version.name.clone());
    let mut all: Vec<String> = served.into_iter().flatten().cloned().chain(defined).collect();
    if definition.is_none() {
        all.extend(FORMER_VERSIONS.map(String::from));
    }
    all.sort();
    all.dedup();
    all
}

/// The version that a hash stands for, or the hash itself where that cannot be told.
fn version_of(hash: &StorageVersionHash, name: &GroupResource, kind: &str, candidates: &[String]) -> String {
    let is_it = |version: &&String| storage_version_hash(name.group(), version, kind) == hash.as_str();
    candidates.iter().find(is_it).cloned().unwrap_or_else(|| hash.to_string())
}

/// What a server is said to write: an encoding version such as `apps/v1`, a hash, or words.
fn shown(words: &str, version_of: &dyn Fn(&StorageVersionHash) -> String) -> String {
    match words.rsplit_once('/') {
        Some((_, version)) => version.to_string(),
        None => version_of(&StorageVersionHash::new(words)),
    }
}

/// What may be stored. The definition of a custom resource says it; of others, the record of the migrations does.
fn stored_versions(
    definition: Option<&Definition>,
    states: &[StorageState],
    name: &GroupResource,
    version_of: &dyn Fn(&StorageVersionHash) -> String,
) -> Option<Vec<String>> {
    if let Some(definition) = definition {
        return definition.status.as_ref().map(|status| status.stored_versions.clone());
    }
    let state = states.iter().find(|state| state.metadata.name == StorageState::name_for(name))?;
    Some(state.status.persisted_storage_version_hashes.iter().map(version_of).collect())
}

fn latest(migrations: &[StorageVersionMigration], name: &GroupResource) -> Option<MigrationOverview> {
    let of_resource = |migration: &&StorageVersionMigration| {
        let wanted = &migration.spec.resource;
        wanted.group == name.group() && wanted.resource == name.resource()
    };
    let all = migrations.iter().filter(of_resource);
    let newest = all.max_by_key(|migration| migration.metadata.creation_timestamp.as_ref().map(ToString::to_string))?;
    let state = ["Succeeded", "Failed", "Running"].into_iter().find(|state| newest.true_condition(state).is_some());
    let message = state.and_then(|state| newest.true_condition(state)).map(|condition| condition.message.clone());
    let counts = newest.status.counts.as_ref().map(|counts| {
        let left = counts.remaining.map(|left| format!(", {left} left")).unwrap_or_default();
        format!("{} rewritten, {} current, {} failed{left}", counts.rewritten, counts.skipped, counts.failed)
    });
    let words = [counts, message.filter(|message| !message.is_empty())].into_iter().flatten().collect::<Vec<_>>();
    Some(MigrationOverview {
        name: newest.metadata.name.clone(),
        state: state.unwrap_or("Pending").to_string(),
        message: words.join("; "),
    })
}

/// All objects of a collection; none where it is not served.
async fn list<T: DeserializeOwned>(cluster: &Cluster, path: &str) -> Result<Vec<T>, Failure> {
    match exchange_json::<Items<T>>(cluster.client(), get(path)?).await {
        Ok(list) => Ok(list.items),
        Err(failure) if failure.code == 404 => Ok(Vec::new()),
        Err(failure) => Err(failure),
    }
}

fn get(path: &str) -> Result<Request<Vec<u8>>, Failure> {
    Request::get(path).body(Vec::new()).map_err(|error| Failure { message: error.to_string(), ..Failure::default() })
}
