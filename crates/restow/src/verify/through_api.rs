//! `restow verify --through-api`: evidence without access to the store.
//!
//! Each object is patched with nothing, as in the last pass of a migration. The API server leaves an object and its
//! resource version unchanged if it would store the same bytes. A dry run does not show this, because a server that does
//! not write does not compare. So this really writes, a few objects at a time, and stops at the first object that was
//! stored in another version, which is rewritten by then.

use super::find_resource;
use super::report::{colour, words};
use crate::output::{columns, paint_rows};
use anyhow::{Context, bail};
use restow_api::GroupResource;
use restow_migrate::api_servers::{Scope, observe};
use restow_migrate::cluster::Cluster;
use restow_migrate::cluster_status::{ResourceStatus, read_cluster_status};
use restow_migrate::crd;
use restow_migrate::processes::identify;
use restow_migrate::runner::{self, Progress, RunControl, RunOptions, RunOutcome};
use restow_rules::census::{ApiAnswer, CensusVerdict};
use restow_rules::migrate::pacer::PacerLimits;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// How many objects are in flight, which is also how many may be rewritten before it is noticed.
const AT_ONCE: usize = 4;

/// The results.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThroughApi {
    resources: Vec<ResourceFinding>,
}

/// The result of one resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceFinding {
    resource: String,
    storage_version: Option<String>,
    /// How many objects were found to be current.
    current: u64,
    /// How many were not, and have been rewritten.
    rewritten: u64,
    verdict: CensusVerdict,
    /// The reason of the verdict.
    words: String,
}

impl ThroughApi {
    /// The worst verdict.
    pub(super) fn verdict(&self) -> CensusVerdict {
        let has = |verdict| self.resources.iter().any(|one| one.verdict == verdict);
        [CensusVerdict::Old, CensusVerdict::Unknown]
            .into_iter()
            .find(|verdict| has(*verdict))
            .unwrap_or(CensusVerdict::Current)
    }

    /// The results as evidence for resources with encrypted values.
    pub(super) fn answers(self) -> BTreeMap<String, ApiAnswer> {
        let answer = |one: ResourceFinding| match one.verdict {
            CensusVerdict::Current => (one.resource, ApiAnswer::AllCurrent { objects: one.current }),
            CensusVerdict::Old => (one.resource, ApiAnswer::SomeOld { words: one.words }),
            CensusVerdict::Unknown => (one.resource, ApiAnswer::Unknown { words: one.words }),
        };
        self.resources.into_iter().map(answer).collect()
    }
}

/// Verifies these resources, one after the other.
pub(super) async fn verify(
    cluster: &Cluster,
    wanted: &[String],
    settling_time: Duration,
) -> anyhow::Result<ThroughApi> {
    let status = read_cluster_status(cluster).await.context("cannot query the storage versions of the API servers")?;
    let mut resources = Vec::new();
    for name in wanted {
        let name = find_resource(name, status.resources.iter().map(|resource| resource.resource.as_str()))?;
        let Some(resource) = status.resources.iter().find(|resource| resource.resource == name) else { continue };
        let finding = verify_resource(cluster, resource, settling_time).await;
        resources.push(finding.with_context(|| format!("cannot verify {}", resource.resource))?);
    }
    Ok(ThroughApi { resources })
}

async fn verify_resource(
    cluster: &Cluster,
    resource: &ResourceStatus,
    settling_time: Duration,
) -> anyhow::Result<ResourceFinding> {
    let name: GroupResource = resource.resource.parse()?;
    let unknown = |words: String| ResourceFinding {
        resource: resource.resource.clone(),
        storage_version: resource.storage_version.clone(),
        current: 0,
        rewritten: 0,
        verdict: CensusVerdict::Unknown,
        words,
    };
    let crd = crd::read(cluster.client(), &name).await?;
    let before = observe(cluster, Scope::Resources(&[&name])).await?;
    let Some(seen) = before.resource(&name, crd.as_ref()) else { bail!("it is not served any more") };
    let agreed_since = before.agreed_since(cluster, &seen, crd.as_ref());
    if let (Some(_), Some(words)) = (&resource.aggregated, &resource.not_managed_because) {
        return Ok(unknown(words.clone()));
    }
    if let Some(words) = seen.disagreement() {
        return Ok(unknown(words));
    }
    // As in a migration: servers that report before they write, under a fence, need no identification of their processes.
    let processes = match seen.revision.is_none() {
        true => match identify(&before).await {
            Ok(processes) => Some(processes),
            Err(words) => return Ok(unknown(words)),
        },
        false => None,
    };
    let (command, control) = watch::channel(RunControl::Run);
    let (progress, mut seen_progress) = watch::channel(Progress::default());
    tokio::spawn(async move {
        // The end of the channel is the end of the run.
        if seen_progress.wait_for(|progress| progress.counts.rewritten + progress.counts.failed > 0).await.is_ok() {
            command.send_replace(RunControl::Stop);
        }
        std::future::pending::<()>().await;
    });
    let pacer = PacerLimits { first: AT_ONCE, ceiling: AT_ONCE, ..PacerLimits::default() };
    let settles_at = agreed_since.filter(|_| seen.has_to_settle()).map(|since| since + settling_time);
    let options = RunOptions { pacer, settles_at, ..RunOptions::default() };
    let report = runner::run(&before.instances, &seen.resource, options, control, &progress).await?;
    let after = observe(cluster, Scope::Resources(&[&name])).await?;
    let crd = crd::read(cluster.client(), &name).await?;
    let now = after.resource(&name, crd.as_ref());
    let are_the_same = processes.is_none() || identify(&after).await.ok() == processes;
    let is_the_same = are_the_same
        && now.is_some_and(|now| {
            (now.agreed(), &now.revision) == (seen.agreed(), &seen.revision)
                && now.change_since(&seen).is_none()
                && after.agreed_since(cluster, &now, crd.as_ref()) == agreed_since
        });
    let (counts, failure) = (report.progress.counts, report.failures.first());
    let (verdict, words) = match &report.ending {
        _ if counts.rewritten > 0 => {
            (CensusVerdict::Old, "some were stored in another version; it stopped there".to_owned())
        }
        _ if !is_the_same => {
            (CensusVerdict::Unknown, "the storage version of the API servers has changed meanwhile".to_owned())
        }
        RunOutcome::Proven => (CensusVerdict::Current, "every object was left unchanged".to_owned()),
        _ => {
            let why = failure.map(|failure| format!(": {}: {}", failure.name, failure.message)).unwrap_or_default();
            (CensusVerdict::Unknown, format!("an object could not be rewritten{why}"))
        }
    };
    Ok(ResourceFinding { current: counts.skipped, rewritten: counts.rewritten, verdict, ..unknown(words) })
}

/// The results as a table.
pub(super) fn table(found: &ThroughApi) -> String {
    let mut lines =
        vec![["RESOURCE", "STORAGE VERSION", "CURRENT", "REWRITTEN", "VERDICT", "BECAUSE"].map(String::from).to_vec()];
    for one in &found.resources {
        let version = one.storage_version.clone().unwrap_or_else(|| "-".into());
        let (current, rewritten) = (one.current.to_string(), one.rewritten.to_string());
        lines.push(vec![
            one.resource.clone(),
            version,
            current,
            rewritten,
            words(one.verdict).to_string(),
            one.words.clone(),
        ]);
    }
    let colours: Vec<_> = found.resources.iter().map(|one| colour(one.verdict)).collect();
    let mut text = paint_rows(&columns(&lines), &colours);
    let old: Vec<&str> = found
        .resources
        .iter()
        .filter(|one| one.verdict == CensusVerdict::Old)
        .map(|one| one.resource.as_str())
        .collect();
    text.push_str(
        "\nThis is what the API servers say of themselves; only the store can prove it (--etcd-endpoints).\n",
    );
    if !old.is_empty() {
        text.push_str(&format!("To bring the rest up to date: restow migrate {}\n", old.join(" ")));
    }
    text
}
