//! `restow migrate`: migrates stored objects manually, from anywhere, without installing anything.

mod display;

use crate::cluster_args::ClusterArgs;
use crate::output::Output;
use crate::pace_args::PaceArgs;
use crate::serving;
use anyhow::{Context, bail};
use clap::Args;
use display::{ProgressDisplay, Summary};
use restow_api::GroupResource;
use restow_migrate::api_servers::{Observation, Scope, observe};
use restow_migrate::cluster::{Cluster, Reach};
use restow_migrate::crd::{self, Crd};
use restow_migrate::discovery::equivalents;
use restow_migrate::migration::{
    EarlierAttempt, Goal, ManagedFieldsPolicy, MigrationChannels, MigrationOptions, MigrationOutcome, migrate,
};
use restow_migrate::runner::{Progress, RunControl, RunOptions, WriteMode};
use restow_rules::migrate::key_rotation::RotationScope;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::watch;

/// Rewrite stored objects in the version that the API servers store now.
///
/// Works on any cluster, and installs nothing. A resource is migrated only if all API servers agree on its version: each of
/// them is queried, by the addresses in the EndpointSlices of the service "kubernetes", and has to show the storage version
/// of the CRD. Ctrl-C stops between two objects; run it again to continue.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  everything is stored in the storage version, and that is proven
  1  it could not run
  3  some objects could not be rewritten; they are listed with the reasons
  4  unknown: the API servers do not agree, or stopped to agree; one of them cannot be queried, is overloaded for minutes,
     does not serve the resource, or does not publish its resources or their storage versions; aggregated API servers serve
     the resource, and not each of them reports what it stores; it is deleted; a webhook cannot be reached; or after a key
     rotation nothing, or not everything, had to be rewritten
  5  it was stopped; what is done is done
  6  with --one-endpoint: every object was left unchanged at the end, but nothing is proven")]
pub(crate) struct MigrateArgs {
    /// The resources, such as widgets.example.com or secrets.
    #[arg(value_name = "RESOURCE", required_unless_present_any = ["all", "crds"])]
    resources: Vec<GroupResource>,
    /// All resources, as after a change of the encryption key.
    #[arg(long, conflicts_with_all = ["resources", "crds"])]
    all: bool,
    /// All custom resources.
    #[arg(long, conflicts_with = "resources")]
    crds: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Report which objects the server would refuse, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// The output format.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Output,
    #[command(flatten)]
    pace: PaceArgs,
    /// Keep all managedFields entries, including those of versions that are going to be removed.
    #[arg(long)]
    keep_managed_fields: bool,
    /// How long to wait for the API servers to agree, in seconds: one of them may not have noticed a change of the CRD yet.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    /// Rewrite objects through the address in the kubeconfig, if API servers cannot be queried one by one, as behind a load
    /// balancer. Makes several passes over new connections. This proves nothing, and status.storedVersions is not trimmed.
    #[arg(long)]
    one_endpoint: bool,
    /// Continue at the token of an earlier run of the same resource.
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["all", "crds"])]
    continue_from: Option<String>,
    /// The reason. With key-rotation, the output says whether the old key is still needed.
    #[arg(long, value_name = "REASON")]
    reason: Option<Reason>,
}

/// The message after Ctrl-C.
const STOPPING: &str = "stopping when the requests in flight are answered; a second signal stops at once";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Reason {
    KeyRotation,
    VersionChange,
}

pub(crate) async fn run(args: MigrateArgs) -> anyhow::Result<ExitCode> {
    if args.continue_from.is_some() && args.resources.len() != 1 {
        bail!("--continue-from needs exactly one resource");
    }
    let cluster = args.cluster.connect().await?.reached_by(args.reach());
    let observation = observe(&cluster, Scope::All).await.context("cannot query the API servers")?;
    let observation = match args.goal() {
        Goal::Version => observation,
        Goal::Key => observation.without_reports(),
    };
    let resources = args.resources(&cluster, &observation).await?;
    let (command, control) = watch::channel(RunControl::Run);
    tokio::spawn(async move {
        serving::stop_signal().await;
        command.send_replace(RunControl::Stop);
        eprintln!("{STOPPING}");
        // A second signal ends the process at once.
        serving::stop_signal().await;
        std::process::exit(5);
    });
    let mut summary = Summary::new(args.dry_run, &resources);
    if args.all {
        observation.unread().into_iter().for_each(|(version, why)| summary.record_unread(version, why));
    }
    for resource in resources {
        if *control.borrow() == RunControl::Stop {
            break;
        }
        let bar = ProgressDisplay::new(&resource, args.output.is_for_people());
        let (progress, seen) = watch::channel(Progress::default());
        bar.follow(seen);
        let channels = MigrationChannels { control: control.clone(), progress: &progress };
        let started = std::time::Instant::now();
        let settled = match args.processes_all() {
            true => None,
            false => EarlierAttempt::recorded(&cluster, &resource).await,
        };
        let options = MigrationOptions { settled, ..args.options() };
        let report = migrate(&cluster, &resource, options, channels).await;
        bar.finish();
        summary.record(&resource, report, started.elapsed());
    }
    if args.reason == Some(Reason::KeyRotation) && !args.dry_run {
        summary.evaluate_old_key(if args.all { RotationScope::Everything } else { RotationScope::Named });
    }
    match args.output.is_for_people() {
        true => summary.print_table(),
        false => args.output.print(&summary, String::new)?,
    }
    Ok(summary.exit_code())
}

impl MigrateArgs {
    /// Whether to process objects too that a migration of the controller has verified. A new key changes every object, and
    /// a dry run should report on all.
    fn processes_all(&self) -> bool {
        self.all || self.dry_run || self.reason == Some(Reason::KeyRotation)
    }

    fn options(&self) -> MigrationOptions {
        MigrationOptions {
            run: RunOptions {
                pacer: self.pace.limits(),
                mode: if self.dry_run { WriteMode::DryRun } else { WriteMode::Write },
                continue_token: self.continue_from.clone(),
                ..RunOptions::default()
            },
            owners: if self.keep_managed_fields { ManagedFieldsPolicy::Leave } else { ManagedFieldsPolicy::Move },
            goal: self.goal(),
            settling_time: self.pace.settling_time(),
            agreement_timeout: Duration::from_secs(self.wait),
            ..MigrationOptions::default()
        }
    }

    fn goal(&self) -> Goal {
        if self.reason == Some(Reason::KeyRotation) { Goal::Key } else { Goal::Version }
    }

    fn reach(&self) -> Reach {
        if self.one_endpoint { Reach::OneEndpoint } else { Reach::EachServer }
    }

    /// The resources to migrate, including those with a CRD that no API server serves, because objects may still be stored.
    async fn resources(&self, cluster: &Cluster, observation: &Observation) -> anyhow::Result<Vec<GroupResource>> {
        let crds = self.crds(cluster).await?;
        let served = observation.resources();
        let resources: Vec<GroupResource> = match self.all || self.crds {
            true => selected(served, &crds).into_iter().filter(|one| self.all || crds.contains_key(one)).collect(),
            false => {
                // A group whose discovery document could not be read may contain the resource.
                let is_known = |one: &GroupResource| served.contains(one) || crds.contains_key(one);
                let is_unknown = |one: &&GroupResource| !is_known(one) && observation.is_complete_for(one.group());
                if let Some(unknown) = self.resources.iter().find(is_unknown) {
                    bail!("the cluster does not serve {unknown}; name it as in `kubectl api-resources -o name`");
                }
                self.resources.clone()
            }
        };
        for resource in &resources {
            let found = crds.get(resource);
            // The settling time of all of them counts from here, so it has passed when they are migrated.
            if let Some(seen) = observation.resource(resource, found) {
                observation.agreed_since(cluster, &seen, found);
            }
        }
        Ok(resources)
    }

    /// The CRDs of the named resources, or all.
    async fn crds(&self, cluster: &Cluster) -> anyhow::Result<BTreeMap<GroupResource, Crd>> {
        if self.all || self.crds {
            let all = crd::list(cluster.client()).await.context("cannot list CRDs")?;
            return Ok(all.into_values().filter_map(|one| Some((crd::resource(&one)?, one))).collect());
        }
        let mut found = BTreeMap::new();
        for resource in &self.resources {
            let one = crd::read(cluster.client(), resource).await;
            let one = one.with_context(|| format!("cannot read the CRD of {resource}"))?;
            found.extend(one.map(|one| (resource.clone(), one)));
        }
        Ok(found)
    }
}

/// Everything that can be stored: served resources, and those of CRDs, without other names of the same resource.
fn selected(served: Vec<GroupResource>, crds: &BTreeMap<GroupResource, Crd>) -> BTreeSet<GroupResource> {
    let same = equivalents();
    served.into_iter().chain(crds.keys().cloned()).filter(|resource| !same.contains(resource)).collect()
}

/// The outcome of one resource, for the output.
fn outcome_name(outcome: &MigrationOutcome) -> &'static str {
    match outcome {
        MigrationOutcome::Succeeded => "Succeeded",
        MigrationOutcome::Unproven(_) => "Unproven",
        MigrationOutcome::NotReady { .. } => "NotReady",
        MigrationOutcome::SomeFailed => "SomeFailed",
        MigrationOutcome::NoAgreement(_) => "NoAgreement",
        MigrationOutcome::AgreementChanged(_) => "AgreementChanged",
        MigrationOutcome::CrdChanged(_) => "DefinitionChanged",
        MigrationOutcome::NeverSettles => "NeverSettles",
        MigrationOutcome::Stopped(_) => "Stopped",
        MigrationOutcome::ServerUnresponsive { .. } => "ServerSilent",
        MigrationOutcome::WebhookDown { .. } => "WebhookDown",
        MigrationOutcome::Overloaded { .. } => "Overloaded",
        MigrationOutcome::NotManaged(_) => "NotManaged",
        MigrationOutcome::ResourceGone => "ResourceGone",
        MigrationOutcome::DryRunDone => "Asked",
    }
}
