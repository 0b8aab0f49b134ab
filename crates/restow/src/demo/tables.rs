//! What the servers and the store look like while the demo runs: tables and counts.

use super::cluster::{DemoCluster, Member};
use super::in_process_server::ServerSpec;
use super::objects::{POLICIES, SLICES, WIDGETS};
use super::printer::Printer;
use super::styled_text::{Span, Style};
use anyhow::Context;
use restow_apiserver::storage::census::take_census;
use restow_migrate::cluster_status::{ResourceStatus, read_cluster_status};
use restow_rules::census::Encoding;
use std::collections::BTreeMap;

/// Which server writes which resource in which version.
pub(super) async fn matrix(printer: &Printer, cluster: &DemoCluster) -> anyhow::Result<()> {
    let overview = read_cluster_status(&cluster.members[0].cluster).await?;
    let shown = |name: &&str| overview.resources.iter().find(|resource| resource.resource == **name);
    let resources: Vec<&ResourceStatus> = [SLICES, POLICIES, WIDGETS].iter().filter_map(shown).collect();
    let plural = |resource: &&ResourceStatus| resource.resource.split('.').next().unwrap_or_default().to_uppercase();
    let mut lines = vec![vec![Span::plain("SERVER"), Span::plain("RELEASE")]];
    lines[0].extend(resources.iter().map(|resource| Span::plain(plural(resource))));
    for member in &cluster.members {
        let mut line = vec![Span::plain(member.name), Span::plain(member.release)];
        line.extend(resources.iter().map(|resource| written(resource, member)));
        lines.push(line);
    }
    let mut agreed = vec![Span::plain("agreed"), Span::plain("")];
    agreed.extend(resources.iter().map(|resource| match &resource.storage_version {
        Some(version) => Span::new(Style::Good, version),
        None => Span::new(Style::Bad, "no"),
    }));
    lines.push(agreed);
    printer.table(&lines).await;
    Ok(())
}

/// What a server writes a resource in. Servers are named by their identity where they report what they write, else by their
/// address.
fn written(resource: &ResourceStatus, member: &Member) -> Span {
    let (servers, agreed) = (&resource.servers, resource.storage_version.as_ref());
    let version = match servers.keys().any(|server| server.starts_with(&ServerSpec::identity(""))) {
        true => servers.get(&ServerSpec::identity(member.name)),
        false => servers.get(&member.server.address().to_string()).or(agreed),
    };
    match version {
        None => Span::new(Style::Bad, "(not reported)"),
        // While they differ in this demo, the new one is v1.
        Some(version) if agreed.is_some() || version == "v1" => Span::new(Style::Good, version),
        Some(version) => Span::new(Style::Old, version),
    }
}

/// What server a reports about EndpointSlices.
pub(super) async fn slices(cluster: &DemoCluster) -> anyhow::Result<ResourceStatus> {
    let overview = read_cluster_status(&cluster.members[0].cluster).await?;
    let found = overview.resources.into_iter().find(|resource| resource.resource == SLICES);
    found.context("EndpointSlices are not served")
}

/// How many objects of a kind are stored in each version.
pub(super) async fn stored(cluster: &DemoCluster, kind: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let census = take_census(cluster.store.as_ref(), |_| {}).await?;
    let mut counts = BTreeMap::new();
    for row in census.rows.into_iter().filter(|row| row.kind == kind) {
        if let Encoding::Json { version } | Encoding::Protobuf { version } = row.encoding {
            *counts.entry(version).or_insert(0) += row.count;
        }
    }
    Ok(counts)
}

/// Such counts as text.
pub(super) fn counts(stored: &BTreeMap<String, u64>) -> String {
    stored.iter().map(|(version, count)| format!("{count} in {version}")).collect::<Vec<_>>().join(", ")
}
