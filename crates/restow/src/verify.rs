//! `restow verify`: proves in which versions objects are stored, from the store itself.

mod api_state;
mod report;
mod source;
mod through_api;

use crate::cluster_args::ClusterArgs;
use crate::etcd_args::EtcdArgs;
use crate::output::Output;
use crate::pace_args::SettlingArgs;
use anyhow::{bail, ensure};
use api_state::ApiState;
use clap::Args;
use report::Proof;
use restow_apiserver::storage::census::StoredCensus;
use restow_migrate::cluster::Cluster;
use restow_rules::census::{
    ApiAnswer, CensusEvidence, CensusReport, CensusVerdict, KindTarget, RevisionsSeen, StoreIdentity, VerdictReason,
    evaluate, steady,
};
use restow_store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How often to check again whether objects that the API shows have been written to the store meanwhile.
const MAX_CHECKS: usize = 3;

/// Prove in which versions objects are stored, by reading the store itself.
///
/// It only reads. Give --etcd-endpoints for etcd (of Restow or of a stock cluster), or --data-dir for the embedded store of
/// a stopped server; without either, the running server reads its own store. The storage versions come from the API, after
/// a check that the etcd belongs to this cluster; for a stopped server they come from the store.
///
/// The result is "nothing old is stored" only if every value is known to be in the storage version. A kind that is not
/// served, a value that cannot be read or is encrypted, an empty prefix: these end with 4.
///
/// Without access to the store, --through-api requests the API servers to write each object of the named resources as it
/// is, which changes nothing if it is stored in the storage version. That is evidence, and covers encrypted objects too,
/// but it is not read-only: the first few objects that are stored in another version are rewritten. It stops there. Objects
/// that someone else writes meanwhile are tried again. With --etcd-endpoints this is done only for resources with encrypted
/// values.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  nothing old is stored: every value is known to be in the storage version
  1  it could not run
  2  the command line is wrong
  3  something old is stored
  4  unknown, and the reasons are listed: nothing is stored there, it is another cluster's store, the API servers
     disagree, values are encrypted or cannot be read, a kind is not served, or objects cannot be rewritten")]
pub(crate) struct VerifyArgs {
    /// The resources to verify, such as widgets.example.com; all by default.
    #[arg(value_name = "RESOURCE")]
    resources: Vec<String>,
    /// The etcd members to read from.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_endpoints: Vec<String>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// The data directory of a stopped server.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["etcd_endpoints", "kubeconfig", "context"])]
    data_dir: Option<PathBuf>,
    /// Use the API servers instead of reading the store, which needs the names of resources; with --etcd-endpoints, only
    /// for encrypted values. Needs permission to patch the objects.
    #[arg(long, conflicts_with = "data_dir")]
    through_api: bool,
    #[command(flatten)]
    settling: SettlingArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The output format.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(crate) async fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    let proof = match (&args.data_dir, args.etcd_endpoints.is_empty()) {
        (Some(directory), _) => args.prove_stopped(directory).await?,
        (None, false) => args.prove_from_etcd().await?,
        (None, true) if args.through_api => return args.verify_through_api().await,
        (None, true) => args.prove_running().await?,
    };
    args.output.print(&proof, || proof.table(args.output))?;
    Ok(exit_code(proof.report.verdict))
}

impl VerifyArgs {
    /// Verifies the named resources through the API, without reading the store.
    async fn verify_through_api(&self) -> anyhow::Result<ExitCode> {
        ensure!(
            !self.resources.is_empty(),
            "--through-api needs the names of the resources to verify; with --etcd-endpoints, it verifies those with \
             encrypted values"
        );
        let found = through_api::verify(&self.cluster.connect().await?, &self.resources, self.settling.time()).await?;
        self.output.print(&found, || through_api::table(&found))?;
        Ok(exit_code(found.verdict()))
    }

    /// Reads the data of a stopped server.
    async fn prove_stopped(&self, directory: &Path) -> anyhow::Result<Proof> {
        let (census, targets) = source::stopped(directory).await?;
        let evidence = self.evidence(census, targets, StoreIdentity::OneAndTheSame)?;
        Ok(self.proof(evaluate(&evidence), evidence, BTreeSet::new()))
    }

    /// Lets a running server read its own store.
    async fn prove_running(&self) -> anyhow::Result<Proof> {
        let cluster = self.cluster.connect().await?;
        let before = api_state::read_api_state(&cluster).await?;
        let census = source::running(&self.cluster).await?;
        let after = api_state::read_api_state(&cluster).await?;
        let targets = steady(&before.targets, after.targets);
        let mut evidence = self.evidence(census, targets, StoreIdentity::OneAndTheSame)?;
        // This store does not have the objects of aggregated API servers, which says nothing about them.
        let (named, others): (BTreeMap<String, String>, BTreeMap<String, String>) =
            after.aggregated.into_iter().partition(|(resource, _)| evidence.wanted.contains(resource));
        evidence.elsewhere = named;
        let not_covered = if evidence.wanted.is_empty() { others.into_keys().collect() } else { BTreeSet::new() };
        Ok(self.proof(evaluate(&evidence), evidence, not_covered))
    }

    /// Reads etcd, and checks with the API that it belongs to the same cluster.
    async fn prove_from_etcd(&self) -> anyhow::Result<Proof> {
        let config = self.etcd.config(&self.etcd_endpoints)?;
        let cluster = self.cluster.connect().await?;
        let before = api_state::read_api_state(&cluster).await?;
        let store = source::etcd(config).await?;
        let census = source::census(&store).await?;
        let identity = compare(&store, &cluster).await?;
        let after = api_state::read_api_state(&cluster).await?;
        let is_same = matches!(identity, StoreIdentity::Same { .. });
        let targets = steady(&before.targets, after.targets);
        let mut evidence = self.evidence(census, targets, identity)?;
        let mut not_covered = BTreeSet::new();
        // Nothing is read from another cluster, and above all nothing is written to it.
        if is_same {
            let api_state = ApiState { targets: evidence.targets.clone(), ..after };
            (evidence.elsewhere, not_covered) = self.stored_elsewhere(&store, &cluster, &api_state, &evidence).await?;
            if self.through_api {
                evidence.answers = answers(&cluster, &evaluate(&evidence), self.settling.time()).await?;
            }
        }
        Ok(self.proof(evaluate(&evidence), evidence, not_covered))
    }

    fn evidence(
        &self,
        census: StoredCensus,
        targets: Vec<KindTarget>,
        identity: StoreIdentity,
    ) -> anyhow::Result<CensusEvidence> {
        let resources = || targets.iter().map(|target| target.resource.as_str());
        let wanted = self.resources.iter().map(|name| find_resource(name, resources()).map(String::from));
        let wanted = wanted.collect::<anyhow::Result<Vec<String>>>()?;
        Ok(CensusEvidence {
            total: census.total,
            from_revision: census.from_revision,
            to_revision: census.to_revision,
            rows: census.rows,
            targets,
            identity,
            answers: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            wanted,
        })
    }

    /// The resources with objects in the API and none in this store, with the reason; and those among them that aggregated
    /// API servers keep in other stores.
    async fn stored_elsewhere(
        &self,
        store: &dyn Store,
        cluster: &Cluster,
        api_state: &ApiState,
        evidence: &CensusEvidence,
    ) -> anyhow::Result<(BTreeMap<String, String>, BTreeSet<String>)> {
        let report = evaluate(evidence);
        let kinds = report.kinds.iter().map(|kind| &kind.resource);
        let seen: BTreeSet<&String> = kinds.chain(report.opaque.iter().map(|values| &values.resource)).collect();
        let is_unseen = |target: &&KindTarget| {
            !seen.contains(&target.resource)
                && (evidence.wanted.is_empty() || evidence.wanted.contains(&target.resource))
        };
        let unseen: Vec<&KindTarget> = api_state.targets.iter().filter(is_unseen).collect();
        let aggregated = api_state::aggregated_groups(cluster).await;
        let (others, mut open): (Vec<&KindTarget>, Vec<&KindTarget>) =
            unseen.into_iter().partition(|target| aggregated.contains(&target.group) && evidence.wanted.is_empty());
        let mut found = BTreeMap::new();
        for _ in 0..MAX_CHECKS {
            let names = open.iter().filter_map(|target| api_state.served.get_key_value(&target.resource));
            let names = names.map(|(name, resource)| (name.clone(), resource.clone())).collect();
            found = api_state::have_objects(cluster, names).await;
            open.retain(|target| found.contains_key(&target.resource));
            let mut missing = Vec::new();
            for target in open {
                // What was written since the store was read is there by now.
                match source::has_any(store, target).await? {
                    true => drop(found.remove(&target.resource)),
                    false => missing.push(target),
                }
            }
            open = missing;
        }
        Ok((found, others.into_iter().map(|target| target.resource.clone()).collect()))
    }

    fn proof(&self, report: CensusReport, evidence: CensusEvidence, not_covered: BTreeSet<String>) -> Proof {
        let this: Vec<String> = std::iter::once("restow".into()).chain(std::env::args().skip(1)).collect();
        Proof {
            revision: evidence.to_revision,
            total: evidence.total,
            identity: evidence.identity,
            next: Proof::commands(&report, &this.join(" ")),
            report,
            not_covered,
        }
    }
}

/// Whether the store belongs to the cluster.
async fn compare(store: &dyn Store, cluster: &Cluster) -> anyhow::Result<StoreIdentity> {
    let stored = source::uid(store).await?;
    let before = source::revision(store).await?.get();
    let told = api_state::revision(cluster).await;
    let after = source::revision(store).await?.get();
    Ok(StoreIdentity::compare(stored, api_state::uid(cluster).await, RevisionsSeen { before, told, after }))
}

/// The results of rewriting the resources with encrypted values through the API.
async fn answers(
    cluster: &Cluster,
    report: &CensusReport,
    settling_time: Duration,
) -> anyhow::Result<BTreeMap<String, ApiAnswer>> {
    let encrypted = report.opaque.iter().filter_map(|values| match &values.because {
        VerdictReason::Encrypted { resource } => resource.clone(),
        _ => None,
    });
    let names: Vec<String> = encrypted.collect::<BTreeSet<_>>().into_iter().collect();
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    Ok(through_api::verify(cluster, &names, settling_time).await?.answers())
}

/// The resource with this full name, or with this plural name if no other resource has it.
fn find_resource<'r>(name: &str, resources: impl Iterator<Item = &'r str>) -> anyhow::Result<&'r str> {
    let mut named: Vec<&str> =
        resources.filter(|resource| *resource == name || resource.split('.').next() == Some(name)).collect();
    named.sort_unstable();
    named.dedup();
    match (named.iter().find(|resource| **resource == name), named.as_slice()) {
        (Some(exact), _) => Ok(exact),
        (None, [one]) => Ok(one),
        (None, []) => bail!("the cluster does not serve {name}; name it as in `kubectl api-resources -o name`"),
        (None, several) => bail!("{name} can be any of {}; give the full name", several.join(", ")),
    }
}

fn exit_code(verdict: CensusVerdict) -> ExitCode {
    match verdict {
        CensusVerdict::Current => ExitCode::SUCCESS,
        CensusVerdict::Old => ExitCode::from(3),
        CensusVerdict::Unknown => ExitCode::from(4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_found_by_its_full_name_or_a_unique_plural() {
        let served = ["widgets.example.com", "events", "events.example.com", "jobs.a.com", "jobs.b.com"];
        let find_resource = |name: &str| find_resource(name, served.into_iter());
        assert_eq!(find_resource("widgets").unwrap(), "widgets.example.com");
        assert_eq!(find_resource("widgets.example.com").unwrap(), "widgets.example.com");
        assert_eq!(find_resource("events").unwrap(), "events");
        assert!(find_resource("jobs").unwrap_err().to_string().contains("jobs.a.com, jobs.b.com"));
        assert!(find_resource("nonsense").unwrap_err().to_string().contains("kubectl api-resources -o name"));
    }
}
