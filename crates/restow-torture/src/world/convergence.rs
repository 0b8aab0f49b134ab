//! What must be true when all faults have ended: everybody agrees, everything is migrated, and no garbage is left.

use super::World;
use crate::checks::Contents;
use crate::world::server::identity;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The servers that there should be.
pub(crate) struct Expected {
    pub(crate) servers: BTreeSet<String>,
    /// The server of each resource of an aggregated server.
    pub(crate) aggregated: BTreeMap<String, String>,
}

/// What is not as it should be yet.
pub(crate) fn what_is_open(world: &World) -> Vec<String> {
    let servers: BTreeSet<String> = world.servers.iter().map(|server| identity(server.number)).collect();
    let expected = Expected { servers, aggregated: BTreeMap::new() };
    world.checker.read(|contents| what_is_open_in(contents, &expected, world.shape.custom_only))
}

/// What is not as it should be yet, where these servers are the only ones.
pub(crate) fn what_is_open_in(contents: &Contents, expected: &Expected, custom_only: bool) -> Vec<String> {
    let mut open = disagreements(contents, expected);
    open.extend(not_migrated(contents, custom_only));
    open.extend(leftovers(contents, expected));
    open
}

/// Every resource has a report of every server, and all are equal.
fn disagreements(contents: &Contents, expected: &Expected) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    for resource in expected.aggregated.keys().filter(|resource| contents.reports(resource).is_none()) {
        open.push(format!("no reports about {resource}"));
    }
    for (resource, reports) in contents.all_reports() {
        let reporting: BTreeSet<String> = reports.by_server.keys().cloned().collect();
        let aggregated = expected.aggregated.get(resource).map(|server| BTreeSet::from([server.clone()]));
        if reporting.is_empty() && aggregated.is_none() {
            continue;
        }
        if reporting != *aggregated.as_ref().unwrap_or(&expected.servers) || reports.common.is_none() {
            open.push(format!("no agreement on {resource}: {reports:?}"));
        }
    }
    open
}

/// Everything is stored in the version that the servers agree on, and CRDs say so.
fn not_migrated(contents: &Contents, custom_only: bool) -> Vec<String> {
    let mut open = Vec::new();
    let is_managed = |resource: &str| !custom_only || contents.crd_of(resource).is_some();
    for (resource, reports) in contents.all_reports().iter().filter(|(resource, _)| is_managed(resource)) {
        let Some(common) = &reports.common else { continue };
        let others: Vec<&String> = contents.stored_versions(resource).filter(|version| *version != common).collect();
        if !others.is_empty() {
            open.push(format!("objects of {resource} are stored in {others:?}, not in {common}"));
        }
    }
    for (key, crd) in contents.objects_of("apiextensions.k8s.io.customresourcedefinitions") {
        let versions = crd.value["spec"]["versions"].as_array().into_iter().flatten();
        let storage =
            versions.filter(|version| version["storage"] == true).filter_map(|version| version["name"].as_str());
        let (storage, listed) = (storage.collect::<BTreeSet<&str>>(), crate::checks::stored_versions_of(&crd.value));
        if storage != listed {
            open.push(format!("storedVersions of {} is {listed:?}, and its storage version {storage:?}", key.name));
        }
        let annotations = &crd.value["metadata"]["annotations"];
        if annotations["ksvm.sigs.k8s.io/migrating"] == "true" {
            open.push(format!("{} is still marked as being migrated", key.name));
        }
    }
    open
}

/// Nothing is left of servers that are gone, and nothing is stuck in deletion.
fn leftovers(contents: &Contents, expected: &Expected) -> Vec<String> {
    let mut open = Vec::new();
    let servers: BTreeSet<&String> = expected.servers.iter().chain(expected.aggregated.values()).collect();
    for (key, lease) in contents.objects_of("coordination.k8s.io.leases") {
        let is_identity = !lease.value["metadata"]["labels"]["apiserver.kubernetes.io/identity"].is_null();
        if is_identity && !servers.contains(&key.name) {
            open.push(format!("the lease {} of a server that is gone", key.name));
        }
    }
    let orphans = contents.objects_of("core.configmaps").filter(|(_, object)| contents.lacks_owner(object));
    open.extend(orphans.map(|(key, _)| format!("{key} has lost its owner")));
    for resource in ["core.namespaces", "apiextensions.k8s.io.customresourcedefinitions"] {
        let being_deleted = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
        let stuck = contents.objects_of(resource).filter(|(_, object)| being_deleted(&object.value));
        open.extend(stuck.map(|(key, _)| format!("{key} is still being deleted")));
    }
    open
}
