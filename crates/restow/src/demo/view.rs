//! What is seen of the servers and of the store while the story goes on.

use super::actor::Role;
use super::narrator::{Cell, Narrator};
use super::props::{POLICIES, SLICES, WIDGETS};
use super::stage::{Member, Stage};
use anyhow::Context;
use restow_apiserver::stored::take_census;
use restow_migrate::cluster_status::{ResourceStatus, read_cluster_status};
use restow_rules::census::Encoding;
use std::collections::BTreeMap;

/// Who writes what: servers against resources.
pub(super) async fn matrix(narrator: &Narrator, stage: &Stage) -> anyhow::Result<()> {
    let overview = read_cluster_status(&stage.members[0].cluster).await?;
    let shown = |name: &&str| overview.resources.iter().find(|resource| resource.resource == **name);
    let resources: Vec<&ResourceStatus> = [SLICES, POLICIES, WIDGETS].iter().filter_map(shown).collect();
    let plural = |resource: &&ResourceStatus| resource.resource.split('.').next().unwrap_or_default().to_uppercase();
    let mut lines = vec![vec![Cell::plain("SERVER"), Cell::plain("RELEASE")]];
    lines[0].extend(resources.iter().map(|resource| Cell::plain(plural(resource))));
    for member in &stage.members {
        let mut line = vec![Cell::plain(member.name), Cell::plain(member.release)];
        line.extend(resources.iter().map(|resource| written(resource, member)));
        lines.push(line);
    }
    let mut agreed = vec![Cell::plain("agreed"), Cell::plain("")];
    agreed.extend(resources.iter().map(|resource| match &resource.storage_version {
        Some(version) => Cell::good(version),
        None => Cell::bad("no"),
    }));
    lines.push(agreed);
    narrator.table(&lines).await;
    Ok(())
}

/// What a server writes a resource in. Servers are named by their identity where they report what they write, else by their
/// address.
fn written(resource: &ResourceStatus, member: &Member) -> Cell {
    let (servers, agreed) = (&resource.servers, resource.storage_version.as_ref());
    let version = match servers.keys().any(|server| server.starts_with(&Role::identity(""))) {
        true => servers.get(&Role::identity(member.name)),
        false => servers.get(&member.machine.address().to_string()).or(agreed),
    };
    match version {
        None => Cell::bad("(not heard of)"),
        // While they differ in this story, the new one is v1.
        Some(version) if agreed.is_some() || version == "v1" => Cell::good(version),
        Some(version) => Cell::old(version),
    }
}

/// What server a says about EndpointSlices.
pub(super) async fn slices(stage: &Stage) -> anyhow::Result<ResourceStatus> {
    let overview = read_cluster_status(&stage.members[0].cluster).await?;
    let found = overview.resources.into_iter().find(|resource| resource.resource == SLICES);
    found.context("EndpointSlices are not served")
}

/// How many objects of a kind lie in the store in each version.
pub(super) async fn stored(stage: &Stage, kind: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let census = take_census(stage.store.as_ref(), |_| {}).await?;
    let mut counts = BTreeMap::new();
    for row in census.rows.into_iter().filter(|row| row.kind == kind) {
        if let Encoding::Json { version } | Encoding::Protobuf { version } = row.encoding {
            *counts.entry(version).or_insert(0) += row.count;
        }
    }
    Ok(counts)
}

/// Such numbers in words.
pub(super) fn counts(stored: &BTreeMap<String, u64>) -> String {
    stored.iter().map(|(version, count)| format!("{count} in {version}")).collect::<Vec<_>>().join(", ")
}
