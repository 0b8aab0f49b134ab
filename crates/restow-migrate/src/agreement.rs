//! Whether all API servers store a resource in the same version.
//!
//! Where the servers report their storage versions (the StorageVersion API), that is what counts. Else every server is
//! asked for its own discovery document. A server that cannot be asked is one that may store anything.

mod managed;
mod partial;

pub use partial::observe_what_can_be_seen;

use crate::cluster::{Cluster, Instance};
use crate::discovery::{Discovery, StoredResource, discover, discover_group};
use crate::exchange::{Failure, exchange_json};
use http::Request;
use restow_agreement::trigger::Agreement;
use restow_api::internal_apiserver::{StorageVersion, StorageVersionList};
use restow_api::{GroupResource, GroupVersion, GroupVersionKind, ResourceVersion, StorageVersionHash};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What the servers of a cluster store, at one point in time.
#[derive(Clone)]
pub struct Observation {
    /// Every server that could be asked.
    pub instances: Vec<Instance>,
    discoveries: Vec<(String, Result<Discovery, Failure>)>,
    reported: BTreeMap<String, StorageVersion>,
}

/// What is known about one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceObservation {
    /// The resource, as the first server describes it.
    pub resource: StoredResource,
    /// Whether the servers agree.
    pub agreement: Agreement,
    /// The revision of the StorageVersion that says so; nothing where it comes from discovery.
    pub revision: Option<ResourceVersion>,
    /// Who stores what, for people: the server and its version or why it could not be asked.
    pub by_server: Vec<(String, String)>,
}

/// What to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Everything.
    All,
    /// The resources of one group.
    Group(&'a str),
}

/// How the words about a server begin that did not answer.
pub(crate) const CANNOT_BE_ASKED: &str = "cannot be asked";

/// How long a server has to say what it stores. One that takes longer may be paused, and may still write.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks all servers.
pub async fn observe(cluster: &Cluster, scope: Scope<'_>) -> Result<Observation, Failure> {
    let (reported, instances) = tokio::join!(reported(cluster), cluster.instances());
    let reported = reported.map_err(|failure| about(cluster, failure))?;
    let (found, hidden) = match instances.map_err(|failure| about(cluster, failure)) {
        Ok(found) => (found, None),
        // Where servers report what they store, they need not be asked one by one; what they do not report stays unknown.
        Err(failure) if !reported.is_empty() => (vec![cluster.common()], Some(failure)),
        Err(failure) => return Err(failure),
    };
    let ask = |instance: Instance| async move {
        let discovery = async {
            match scope {
                Scope::Group(group) if !group.is_empty() => discover_group(&instance.client, group).await,
                _ => discover(&instance.client).await,
            }
        };
        let discovery = tokio::time::timeout(PATIENCE, discovery).await.unwrap_or_else(|_| {
            Err(Failure { message: format!("no answer within {} s", PATIENCE.as_secs()), ..Failure::default() })
        });
        (instance, discovery)
    };
    let mut instances = Vec::new();
    let mut discoveries = Vec::new();
    discoveries.extend(hidden.map(|failure| ("the other API servers".to_owned(), Err(failure))));
    for (instance, discovery) in futures::future::join_all(found.into_iter().map(ask)).await {
        discoveries.push((instance.name.clone(), discovery.clone()));
        if discovery.is_ok() {
            instances.push(instance);
        }
    }
    if instances.is_empty() {
        let first = discoveries.into_iter().find_map(|(name, discovery)| Some((name, discovery.err()?)));
        let (name, failure) = first.unwrap_or_default();
        return Err(Failure {
            message: format!("no API server can be asked ({name}): {}", failure.message),
            ..failure
        });
    }
    Ok(Observation { instances, discoveries, reported })
}

/// Says which server does not answer, where none does.
fn about(cluster: &Cluster, failure: Failure) -> Failure {
    match failure.code {
        0 => Failure { message: format!("{}: {}", cluster.common().name, failure.message), ..failure },
        _ => failure,
    }
}

/// The StorageVersions by name; none where the API is not served, or where we may not read them: then each server has to
/// be asked.
async fn reported(cluster: &Cluster) -> Result<BTreeMap<String, StorageVersion>, Failure> {
    let path = format!("/apis/{}/{}", StorageVersion::API_VERSION, StorageVersion::RESOURCE);
    let request = Request::get(path).body(Vec::new());
    let request = request.map_err(|error| Failure { message: error.to_string(), ..Failure::default() })?;
    match exchange_json::<StorageVersionList>(cluster.client(), request).await {
        Ok(list) => Ok(list.items.into_iter().map(|item| (item.metadata.name.clone(), item)).collect()),
        Err(failure) if matches!(failure.code, 403 | 404) => Ok(BTreeMap::new()),
        Err(failure) => Err(failure),
    }
}

impl Observation {
    /// All resources that any server stores.
    pub fn resources(&self) -> Vec<GroupResource> {
        let mut names: Vec<GroupResource> =
            self.answered().flat_map(|(_, discovery)| discovery.keys().cloned()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// What is known about a resource; nothing where no server serves it.
    pub fn resource(&self, name: &GroupResource) -> Option<ResourceObservation> {
        let resource = self.answered().find_map(|(_, discovery)| discovery.get(name))?.clone();
        match self.reported.get(&StorageVersion::name_for(name)) {
            Some(storage_version) if !storage_version.status.storage_versions.is_empty() => {
                Some(from_report(resource, storage_version))
            }
            _ => Some(self.by_discovery(name, resource)),
        }
    }

    /// The servers that report what they store; none where they do not.
    pub fn reporting(&self) -> BTreeSet<&str> {
        let entries = self.reported.values().flat_map(|reported| &reported.status.storage_versions);
        entries.map(|entry| entry.api_server_id.as_str()).collect()
    }

    /// The servers that were asked, each with the reason where it did not answer.
    pub fn asked(&self) -> impl Iterator<Item = (&str, Option<&Failure>)> {
        self.discoveries.iter().map(|(name, discovery)| (name.as_str(), discovery.as_ref().err()))
    }

    /// Whether every server could be asked.
    pub fn is_complete(&self) -> bool {
        self.discoveries.iter().all(|(_, discovery)| discovery.is_ok())
    }

    fn answered(&self) -> impl Iterator<Item = (&str, &Discovery)> {
        self.discoveries.iter().filter_map(|(name, discovery)| Some((name.as_str(), discovery.as_ref().ok()?)))
    }

    fn by_discovery(&self, name: &GroupResource, resource: StoredResource) -> ResourceObservation {
        let mut hashes: Vec<StorageVersionHash> = Vec::new();
        let mut by_server = Vec::new();
        for (server, discovery) in &self.discoveries {
            let (hash, words) = match discovery {
                Err(failure) => (StorageVersionHash::unknown(), format!("{CANNOT_BE_ASKED}: {failure}")),
                Ok(discovery) => match discovery.get(name).map(|resource| &resource.hash) {
                    None => (StorageVersionHash::unknown(), "does not serve it".to_owned()),
                    Some(None) => (StorageVersionHash::unknown(), "does not say".to_owned()),
                    Some(Some(hash)) => (hash.clone(), hash.to_string()),
                },
            };
            by_server.push((server.clone(), words));
            if !hashes.contains(&hash) {
                hashes.push(hash);
            }
        }
        let agreement = match hashes.as_slice() {
            [hash] if !hash.is_unknown() => Agreement::Agreed(hash.clone()),
            _ => Agreement::Disagreed(hashes),
        };
        ResourceObservation { resource, agreement, revision: None, by_server }
    }
}

fn from_report(resource: StoredResource, storage_version: &StorageVersion) -> ResourceObservation {
    let status = &storage_version.status;
    let hash = |encoding: &str| hash_of(encoding, &resource.kind);
    let mut hashes: Vec<StorageVersionHash> = Vec::new();
    for entry in &status.storage_versions {
        let hash = hash(&entry.encoding_version);
        if !hashes.contains(&hash) {
            hashes.push(hash);
        }
    }
    let agreement = match &status.common_encoding_version {
        Some(version) if !hash(version).is_unknown() => Agreement::Agreed(hash(version)),
        _ => Agreement::Disagreed(hashes),
    };
    let by_server = status.storage_versions.iter();
    let by_server = by_server.map(|entry| (entry.api_server_id.clone(), entry.encoding_version.clone())).collect();
    let revision = storage_version.metadata.resource_version.clone();
    ResourceObservation { resource, agreement, revision, by_server }
}

/// The hash of a kind in an encoding version such as "apps/v1".
pub(crate) fn hash_of(encoding: &str, kind: &str) -> StorageVersionHash {
    let kind = encoding.parse::<GroupVersion>().ok().and_then(|version| GroupVersionKind::new(version, kind).ok());
    kind.map_or_else(StorageVersionHash::unknown, |kind| StorageVersionHash::of(&kind))
}

impl ResourceObservation {
    /// Why the servers do not agree, in one sentence; nothing when they do.
    pub fn disagreement(&self) -> Option<String> {
        if matches!(self.agreement, Agreement::Agreed(_)) {
            return None;
        }
        let servers: Vec<String> = self.by_server.iter().map(|(server, words)| format!("{server} {words}")).collect();
        Some(format!("the API servers do not agree on a storage version: {}", servers.join("; ")))
    }

    /// The version that all servers store.
    pub fn agreed(&self) -> Option<&StorageVersionHash> {
        match &self.agreement {
            Agreement::Agreed(hash) => Some(hash),
            Agreement::Disagreed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
