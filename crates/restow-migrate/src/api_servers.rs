//! Queries all API servers: do they store a resource in the same version?
//!
//! This module reads which API servers exist, the discovery document of each, the StorageVersions that they report, and the
//! CRD. `restow_rules::migrate::api_servers` decides what follows from it.

mod api_services;
mod managed;

use crate::cluster::{Cluster, Instance, Reach};
use crate::crd::{self, Crd};
use crate::discovery::{Discovery, StoredResource, discover, discover_groups};
use crate::request::{RequestError, request_json};
use crate::settling_time::SeenAgreement;
use api_services::{aggregation, count_servers};
use futures::future::try_join_all;
use http::Request;
use restow_api::internal_apiserver::{StorageVersion, StorageVersionList};
use restow_api::{GroupResource, GroupVersion, GroupVersionKind, ResourceVersion, StorageVersionHash};
use restow_rules::migrate::aggregation::Aggregation;
use restow_rules::migrate::api_servers::{
    ApiServers, Discovered, RequiredServers, ServerEvidence, ServerFinding, ServerVersion,
};
use restow_rules::trigger::EncodingAgreement;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// What the API servers of a cluster store, at one point in time.
#[derive(Clone)]
pub struct Observation {
    /// Every API server that answered.
    pub instances: Vec<Instance>,
    /// Every API server that the cluster lists.
    pub servers: ApiServers,
    discoveries: Vec<(String, Result<Discovery, RequestError>)>,
    reported: BTreeMap<String, StorageVersion>,
    aggregation: Aggregation,
}

/// What is known about one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceObservation {
    /// The resource, as the first server describes it.
    pub resource: StoredResource,
    /// Whether the servers agree.
    pub agreement: EncodingAgreement,
    /// The revision of the StorageVersion that shows the agreement, if the writes of all reporting servers are fenced.
    /// `None` if each server's own discovery document decides, whether they report or not.
    pub revision: Option<ResourceVersion>,
    /// What each server stores, for display: the server, and its version or why it could not be queried.
    pub by_server: Vec<(String, String)>,
    /// If aggregated API servers serve it: what has to be the same at the end of a migration, by the name of the object.
    pub marks: BTreeMap<String, String>,
}

/// Which resources to observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// All.
    All,
    /// These, and others of their groups. The reports of others need not be read.
    Resources(&'a [&'a GroupResource]),
}

/// As many StorageVersions are read one by one. If there are more, all are listed.
const FEW: usize = 8;

pub(crate) use restow_rules::migrate::api_servers::CANNOT_BE_QUERIED;

/// The timeout of a discovery query. A server that takes longer may be paused, and may still write.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(20);

/// Queries all API servers.
pub async fn observe(cluster: &Cluster, scope: Scope<'_>) -> Result<Observation, RequestError> {
    let (reported, servers, aggregation) =
        tokio::join!(reported(cluster, scope), cluster.api_servers(), aggregation(cluster));
    let reported = reported.map_err(|failure| about(cluster, failure))?;
    let mut aggregation = aggregation.map_err(|failure| about(cluster, failure))?;
    if cluster.reach() == Reach::EachServer {
        let counted = count_servers(cluster, &mut aggregation, &reported_groups(&reported), scope).await;
        counted.map_err(|failure| about(cluster, failure))?;
    }
    let servers = match cluster.reach() {
        Reach::EachServer => servers.map_err(|failure| about(cluster, failure))?,
        // With a single address, other servers are unknown.
        Reach::OneEndpoint => ApiServers { required: RequiredServers::Any, ..ApiServers::default() },
    };
    let found = cluster.instances(&servers)?;
    let ask = |instance: Instance| async move {
        let discovery = async {
            match scope {
                Scope::Resources(resources) => discover_groups(&instance.client, resources).await,
                Scope::All => discover(&instance.client).await,
            }
        };
        let discovery = tokio::time::timeout(DISCOVERY_TIMEOUT, discovery).await.unwrap_or_else(|_| {
            Err(RequestError {
                message: format!("no answer within {} s", DISCOVERY_TIMEOUT.as_secs()),
                ..RequestError::default()
            })
        });
        (instance, discovery)
    };
    let mut instances = Vec::new();
    let mut discoveries = Vec::new();
    for (instance, discovery) in futures::future::join_all(found.into_iter().map(ask)).await {
        discoveries.push((instance.name.clone(), discovery.clone()));
        if discovery.is_ok() {
            instances.push(instance);
        }
    }
    // Behind a load balancer, or from a laptop, no server may be reachable by its own address.
    if instances.is_empty() && cluster.reach() == Reach::EachServer {
        let (common, discovery) = ask(cluster.common()).await;
        match discovery {
            Ok(discovery) => {
                discoveries.push((common.name.clone(), Ok(discovery)));
                instances.push(common);
            }
            Err(failure) => {
                let message = format!("no API server can be queried ({}): {}", common.name, failure.message);
                return Err(RequestError { message, ..failure });
            }
        }
    }
    if instances.is_empty() {
        return Err(discoveries.into_iter().find_map(|(_, discovery)| discovery.err()).unwrap_or_default());
    }
    Ok(Observation { instances, servers, discoveries, reported, aggregation })
}

/// The groups of resources that servers report.
fn reported_groups(reported: &BTreeMap<String, StorageVersion>) -> BTreeSet<&str> {
    let reported = reported.iter().filter(|(_, report)| !report.status.storage_versions.is_empty());
    reported.filter_map(|(name, _)| Some(name.rsplit_once('.')?.0)).collect()
}

/// Adds the address to an error without an HTTP code.
fn about(cluster: &Cluster, failure: RequestError) -> RequestError {
    match failure.code {
        0 => RequestError { message: format!("{}: {}", cluster.common().name, failure.message), ..failure },
        _ => failure,
    }
}

/// The StorageVersions by name. Empty if the API is not served or reading is forbidden; then each server is queried
/// instead.
async fn reported(cluster: &Cluster, scope: Scope<'_>) -> Result<BTreeMap<String, StorageVersion>, RequestError> {
    let path = format!("/apis/{}/{}", StorageVersion::API_VERSION, StorageVersion::RESOURCE);
    let few = match scope {
        Scope::Resources(resources) if resources.len() <= FEW => {
            let paths = resources.iter().map(|resource| format!("{path}/{}", StorageVersion::name_for(resource)));
            allowed(try_join_all(paths.map(|path| read_if_there::<StorageVersion>(cluster, path))).await)?
        }
        _ => None,
    };
    let items: Vec<StorageVersion> = match few {
        Some(few) => few.into_iter().flatten().collect(),
        // Whoever may not get single ones may be allowed to list them.
        None => {
            let list = allowed(read_if_there::<StorageVersionList>(cluster, path).await)?.flatten();
            list.map_or_else(Vec::new, |list| list.items)
        }
    };
    Ok(items.into_iter().map(|item| (item.metadata.name.clone(), item)).collect())
}

/// What is at a path, if something is there.
async fn read_if_there<T: DeserializeOwned>(cluster: &Cluster, path: String) -> Result<Option<T>, RequestError> {
    let request = Request::get(path).body(Vec::new());
    let request = request.map_err(|error| RequestError { message: error.to_string(), ..RequestError::default() })?;
    match request_json(cluster.client(), request).await {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.code == 404 => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// What was read; `None` if reading it is forbidden.
fn allowed<T>(read: Result<T, RequestError>) -> Result<Option<T>, RequestError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.code == 403 => Ok(None),
        Err(failure) => Err(failure),
    }
}

impl Observation {
    /// All resources that any server stores.
    pub fn resources(&self) -> Vec<GroupResource> {
        let mut names: Vec<GroupResource> =
            self.answered().flat_map(|(_, discovery)| discovery.resources.keys().cloned()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// What is known about a resource; `None` if no server serves it. If it has a CRD, the servers have to store the
    /// storage version of the CRD.
    pub fn resource(&self, name: &GroupResource, crd: Option<&Crd>) -> Option<ResourceObservation> {
        let resource = self.answered().find_map(|(_, discovery)| discovery.resources.get(name))?.clone();
        let report = self.reported.get(&StorageVersion::name_for(name));
        let report = report.filter(|report| !report.status.storage_versions.is_empty());
        let reported = report.map(|report| reported_encodings(report, &resource.kind));
        let evidence = ServerEvidence {
            servers: self.servers.clone(),
            served_by: self.aggregation.of_group(name.group()),
            discovered: self
                .discoveries
                .iter()
                .map(|(server, said)| (server.clone(), discovered(said, name)))
                .collect(),
            reported,
            has_common_version: report.is_none_or(|report| report.status.common_encoding_version.is_some()),
            defined: crd.map(crd::view).map(|view| {
                let hash = hash_of(&format!("{}/{}", name.group(), view.storage_version), &resource.kind);
                (view.storage_version, hash)
            }),
        };
        let ServerFinding { agreement, by_server, is_fenced, marks } = evidence.evaluate();
        let revision = report.filter(|_| is_fenced).and_then(|report| report.metadata.resource_version.clone());
        Some(ResourceObservation { resource, agreement, revision, by_server, marks })
    }

    /// Records since when the servers agree on a resource and returns it; `None` if they do not agree.
    pub fn agreed_since(&self, cluster: &Cluster, seen: &ResourceObservation, crd: Option<&Crd>) -> Option<Instant> {
        let name = seen.resource.resource.group_resource();
        let Some(hash) = seen.agreed() else {
            cluster.agreements().saw_none(&name);
            return None;
        };
        let crd = crd.map(crd::view).map(|view| (view.uid, view.generation));
        // A restart of an aggregated API server concerns its own resources only.
        let servers = ApiServers { aggregated: BTreeMap::new(), ..self.servers.clone() };
        let agreed = SeenAgreement { hash: hash.clone(), crd, servers, marks: seen.marks.clone() };
        Some(cluster.agreements().saw(&name, agreed))
    }

    /// The servers that report what they store.
    pub fn reporting(&self) -> BTreeSet<&str> {
        let entries = self.reported.values().flat_map(|reported| &reported.status.storage_versions);
        entries.map(|entry| entry.api_server_id.as_str()).collect()
    }

    /// The servers that were queried, each with the error if it did not answer.
    pub fn asked(&self) -> impl Iterator<Item = (&str, Option<&RequestError>)> {
        self.discoveries.iter().map(|(name, discovery)| (name.as_str(), discovery.as_ref().err()))
    }

    /// Whether every server answered.
    pub fn every_server_answered(&self) -> bool {
        self.servers.unreachable_servers().is_none() && self.discoveries.iter().all(|(_, discovery)| discovery.is_ok())
    }

    /// Whether every server answered with all its discovery documents.
    pub fn is_complete(&self) -> bool {
        self.every_server_answered() && self.unread().is_empty()
    }

    /// Whether every server answered with all its discovery documents of a group.
    pub fn is_complete_for(&self, group: &str) -> bool {
        self.every_server_answered() && self.answered().all(|(_, discovery)| discovery.unread_of(group).is_none())
    }

    /// The group versions whose discovery document could not be read, each with the reason.
    pub fn unread(&self) -> BTreeMap<&str, &str> {
        let unread = self.answered().flat_map(|(_, discovery)| &discovery.unread);
        unread.map(|(version, why)| (version.as_str(), why.as_str())).collect()
    }

    /// Which resources or aggregated servers could not be determined, in sentences.
    pub fn undetermined(&self) -> Vec<String> {
        let unread = self.unread().into_iter().map(|(version, why)| format!("which resources {version} has: {why}"));
        let aggregated = self.aggregation.0.as_ref().err();
        let aggregated = aggregated.map(|why| format!("which resources aggregated API servers serve: {why}"));
        unread.chain(aggregated).collect()
    }

    /// The same without the StorageVersions, for callers that are not interested in versions.
    pub fn without_reports(self) -> Self {
        Observation { reported: BTreeMap::new(), ..self }
    }

    fn answered(&self) -> impl Iterator<Item = (&str, &Discovery)> {
        self.discoveries.iter().filter_map(|(name, discovery)| Some((name.as_str(), discovery.as_ref().ok()?)))
    }
}

/// What each server reports: its id, its encoding version, and the hash of that.
fn reported_encodings(report: &StorageVersion, kind: &str) -> Vec<ServerVersion> {
    let entries = report.status.storage_versions.iter();
    let said = entries.map(|entry| {
        let encoding = &entry.encoding_version;
        (entry.api_server_id.clone(), encoding.clone(), hash_of(encoding, kind))
    });
    said.collect()
}

/// What a server's discovery says about a resource.
fn discovered(discovery: &Result<Discovery, RequestError>, name: &GroupResource) -> Discovered {
    let discovery = match discovery {
        Ok(discovery) => discovery,
        Err(failure) => return Discovered::Unreachable(failure.to_string()),
    };
    match (discovery.resources.get(name), discovery.unread_of(name.group())) {
        (Some(StoredResource { hash: Some(hash), .. }), _) => Discovered::Hash(hash.clone()),
        (_, Some(why)) => Discovered::Unreachable(why),
        (Some(_), None) => Discovered::NoHash,
        (None, None) => Discovered::NotServed,
    }
}

/// The hash of a kind in an encoding version such as "apps/v1".
pub(crate) fn hash_of(encoding: &str, kind: &str) -> StorageVersionHash {
    let kind = encoding.parse::<GroupVersion>().ok().and_then(|version| GroupVersionKind::new(version, kind).ok());
    kind.map_or_else(StorageVersionHash::unknown, |kind| StorageVersionHash::of(&kind))
}

impl ResourceObservation {
    /// Whether older writes may still be in flight. Servers that report before they write, under a fence, have none; but one that
    /// does not report may have been behind the Service of aggregated servers until a moment ago.
    pub fn has_to_settle(&self) -> bool {
        self.revision.is_none() || !self.marks.is_empty()
    }

    /// Which servers exist, if the StorageVersion does not show each change of them.
    pub(crate) fn servers(&self, of_cluster: &ApiServers) -> Option<String> {
        match (self.marks.is_empty(), &self.revision) {
            (true, Some(_)) => None,
            (true, None) => of_cluster.processes(),
            (false, _) => {
                let marks = self.marks.iter().map(|(name, mark)| format!("{name} {mark}"));
                Some(marks.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// What has changed since `start` that the reports do not show; `None` if nothing has.
    pub fn change_since(&self, start: &ResourceObservation) -> Option<String> {
        let names: BTreeSet<&String> = start.marks.keys().chain(self.marks.keys()).collect();
        let changed = names.into_iter().find(|name| start.marks.get(*name) != self.marks.get(*name))?;
        Some(format!("an aggregated API server came or went: the {changed} was changed"))
    }

    /// Why the servers do not agree, in one sentence; `None` when they do.
    pub fn disagreement(&self) -> Option<String> {
        if matches!(self.agreement, EncodingAgreement::Agreed(_)) {
            return None;
        }
        let servers: Vec<String> = self.by_server.iter().map(|(server, words)| format!("{server} {words}")).collect();
        Some(format!("the API servers do not agree on a storage version: {}", servers.join("; ")))
    }

    /// The version that all servers store.
    pub fn agreed(&self) -> Option<&StorageVersionHash> {
        match &self.agreement {
            EncodingAgreement::Agreed(hash) => Some(hash),
            EncodingAgreement::Disagreed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
