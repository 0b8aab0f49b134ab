//! `restow verify`: proof of what is stored, from the store itself.

mod asked;
mod report;
mod source;
mod through_api;

use crate::cluster_args::ClusterArgs;
use crate::etcd_args::EtcdArgs;
use crate::output::Output;
use anyhow::{bail, ensure};
use asked::Asked;
use clap::Args;
use report::Proof;
use restow_apiserver::stored::StoredCensus;
use restow_migrate::cluster::Cluster;
use restow_rules::census::{
    ApiAnswer, CensusEvidence, CensusReport, CensusVerdict, KindTarget, RevisionsSeen, StoreIdentity, VerdictReason,
    evaluate, steady,
};
use restow_store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How often it is looked again whether objects that the API shows have come to lie in the store.
const LOOKS: usize = 3;

/// Prove in which versions objects are stored, by reading the store itself.
///
/// It only reads. Give --etcd-endpoints for etcd (our own or a stock cluster's), or --data-dir for the embedded store of a
/// server that is stopped; without either, the running server is asked to read its store. What the API servers write now is
/// asked of the cluster, after a check that etcd is the etcd of this cluster; for a stopped server it is read from the store.
///
/// "Nothing old is stored" is said only if every value that was read is known to be in the storage version. A kind that
/// nobody serves, a value that cannot be read or is encrypted, a prefix with nothing in it: these end with 4.
///
/// Without access to the store, --through-api asks the API servers to write each object of the named resources as it is,
/// which changes nothing where it is stored in the storage version already. That is evidence, and covers encrypted objects too,
/// but it is no reading: the first few objects that are stored otherwise are rewritten by being asked about. It stops at
/// them. Objects that somebody else writes meanwhile are queried about again. Together with --etcd-endpoints the API
/// servers are queried only about resources with encrypted values.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  nothing old is stored: every value is known to be in the storage version
  1  it could not run
  2  the command line is wrong
  3  something old is stored
  4  it is unknown, and the reasons are listed: nothing is stored there, it is another cluster's store, the API servers
     disagree, values are encrypted or cannot be read, a kind is not served, or objects refuse to be written")]
pub(crate) struct VerifyArgs {
    /// The resources to verify, such as widgets.example.com; all without.
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
    /// Ask the API servers instead of reading the store, which needs the names of resources; with --etcd-endpoints, about
    /// encrypted values alone. Needs permission to patch the objects.
    #[arg(long, conflicts_with = "data_dir")]
    through_api: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// How to print it.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

pub(crate) async fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    let proof = match (&args.data_dir, args.etcd_endpoints.is_empty()) {
        (Some(directory), _) => args.prove_stopped(directory).await?,
        (None, false) => args.prove_from_etcd().await?,
        (None, true) if args.through_api => return args.ask_instead().await,
        (None, true) => args.prove_running().await?,
    };
    args.output.print(&proof, || proof.table(args.output))?;
    Ok(exit_code(proof.report.verdict))
}

impl VerifyArgs {
    /// Asks the API servers about the named resources, and reads nothing.
    async fn ask_instead(&self) -> anyhow::Result<ExitCode> {
        ensure!(
            !self.resources.is_empty(),
            "--through-api needs the names of the resources to ask about; with --etcd-endpoints, it asks about those with \
             encrypted values"
        );
        let found = through_api::ask(&self.cluster.connect().await?, &self.resources).await?;
        self.output.print(&found, || through_api::table(&found))?;
        Ok(exit_code(found.verdict()))
    }

    /// Reads the data of a stopped server.
    async fn prove_stopped(&self, directory: &Path) -> anyhow::Result<Proof> {
        let (census, targets) = source::stopped(directory).await?;
        let evidence = self.evidence(census, targets, StoreIdentity::OneAndTheSame)?;
        Ok(self.proof(evaluate(&evidence), evidence, BTreeSet::new()))
    }

    /// Has a running server read its own store.
    async fn prove_running(&self) -> anyhow::Result<Proof> {
        let cluster = self.cluster.connect().await?;
        let before = asked::ask(&cluster).await?;
        let census = source::running(&self.cluster).await?;
        let after = asked::ask(&cluster).await?;
        let targets = steady(&before.targets, after.targets);
        let evidence = self.evidence(census, targets, StoreIdentity::OneAndTheSame)?;
        Ok(self.proof(evaluate(&evidence), evidence, BTreeSet::new()))
    }

    /// Reads etcd, and asks the API whether it is the same cluster's.
    async fn prove_from_etcd(&self) -> anyhow::Result<Proof> {
        let config = self.etcd.config(&self.etcd_endpoints)?;
        let cluster = self.cluster.connect().await?;
        let before = asked::ask(&cluster).await?;
        let store = source::etcd(config).await?;
        let census = source::census(&store).await?;
        let identity = compare(&store, &cluster).await?;
        let after = asked::ask(&cluster).await?;
        let is_same = matches!(identity, StoreIdentity::Same { .. });
        let targets = steady(&before.targets, after.targets);
        let mut evidence = self.evidence(census, targets, identity)?;
        let mut not_covered = BTreeSet::new();
        // Of another cluster nothing is queried, and above all nothing is written to it.
        if is_same {
            let asked = Asked { targets: evidence.targets.clone(), served: after.served };
            (evidence.elsewhere, not_covered) = self.stored_elsewhere(&store, &cluster, &asked, &evidence).await?;
            if self.through_api {
                evidence.answers = answers(&cluster, &evaluate(&evidence)).await?;
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
        let wanted = self.resources.iter().map(|name| meant(name, resources()).map(String::from));
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

    /// The resources that the API has objects of and this store has not, with what is known; and those among them that other
    /// API servers keep, which need not be here.
    async fn stored_elsewhere(
        &self,
        store: &dyn Store,
        cluster: &Cluster,
        asked: &Asked,
        evidence: &CensusEvidence,
    ) -> anyhow::Result<(BTreeMap<String, String>, BTreeSet<String>)> {
        let report = evaluate(evidence);
        let kinds = report.kinds.iter().map(|kind| &kind.resource);
        let seen: BTreeSet<&String> = kinds.chain(report.opaque.iter().map(|values| &values.resource)).collect();
        let is_unseen = |target: &&KindTarget| {
            !seen.contains(&target.resource)
                && (evidence.wanted.is_empty() || evidence.wanted.contains(&target.resource))
        };
        let unseen: Vec<&KindTarget> = asked.targets.iter().filter(is_unseen).collect();
        let aggregated = asked::aggregated_groups(cluster).await;
        let (others, mut open): (Vec<&KindTarget>, Vec<&KindTarget>) =
            unseen.into_iter().partition(|target| aggregated.contains(&target.group) && evidence.wanted.is_empty());
        let mut found = BTreeMap::new();
        for _ in 0..LOOKS {
            let names = open.iter().filter_map(|target| asked.served.get_key_value(&target.resource));
            let names = names.map(|(name, resource)| (name.clone(), resource.clone())).collect();
            found = asked::have_objects(cluster, names).await;
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

/// Whether the store is that of the cluster.
async fn compare(store: &dyn Store, cluster: &Cluster) -> anyhow::Result<StoreIdentity> {
    let stored = source::uid(store).await?;
    let before = source::revision(store).await?.get();
    let told = asked::revision(cluster).await;
    let after = source::revision(store).await?.get();
    Ok(StoreIdentity::compare(stored, asked::uid(cluster).await, RevisionsSeen { before, told, after }))
}

/// What the API servers say of the resources whose values are encrypted.
async fn answers(cluster: &Cluster, report: &CensusReport) -> anyhow::Result<BTreeMap<String, ApiAnswer>> {
    let encrypted = report.opaque.iter().filter_map(|values| match &values.because {
        VerdictReason::Encrypted { resource } => resource.clone(),
        _ => None,
    });
    let names: Vec<String> = encrypted.collect::<BTreeSet<_>>().into_iter().collect();
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    Ok(through_api::ask(cluster, &names).await?.answers())
}

/// The resource that is meant by a name: its full one, or its plural name where no other resource has that too.
fn meant<'r>(name: &str, resources: impl Iterator<Item = &'r str>) -> anyhow::Result<&'r str> {
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
    fn a_resource_is_meant_by_a_name_that_no_other_has() {
        let served = ["widgets.example.com", "events", "events.example.com", "jobs.a.com", "jobs.b.com"];
        let meant = |name: &str| meant(name, served.into_iter());
        assert_eq!(meant("widgets").unwrap(), "widgets.example.com");
        assert_eq!(meant("widgets.example.com").unwrap(), "widgets.example.com");
        assert_eq!(meant("events").unwrap(), "events");
        assert!(meant("jobs").unwrap_err().to_string().contains("jobs.a.com, jobs.b.com"));
        assert!(meant("nonsense").unwrap_err().to_string().contains("kubectl api-resources -o name"));
    }
}
