//! `restow migrate`: rewrites stored objects by hand, from anywhere, without installing anything.

mod display;

use crate::cluster_args::ClusterArgs;
use crate::output::Output;
use crate::pace_args::PaceArgs;
use crate::serving;
use anyhow::{Context, bail};
use clap::Args;
use display::{Bar, Summary};
use restow_agreement::migrate::key_rotation::RotationScope;
use restow_api::GroupResource;
use restow_migrate::agreement::{Observation, Scope, observe};
use restow_migrate::cluster::{Cluster, Reach};
use restow_migrate::definition;
use restow_migrate::discovery::equivalents;
use restow_migrate::migration::{MigrationOptions, Outcome, Owners, Reins, Settled, migrate};
use restow_migrate::runner::{Mode, Order, Progress, RunOptions};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::watch;

/// Rewrite stored objects in the version that the API servers store now.
///
/// Works on any cluster, and installs nothing. Nothing is done to a resource on whose version the API servers do not
/// agree: each of them is asked, by the addresses in the EndpointSlices of the service "kubernetes", and has to show the
/// storage version that the CRD names. Ctrl-C ends it between two objects; run it again to go on.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  everything is stored in the storage version, and that is proven
  1  it could not run
  3  some objects could not be rewritten; they are listed with the reasons
  4  it cannot be told: the API servers do not agree, or ceased to, or one of them cannot be asked or does not serve the
     resource, the resource is gone, a webhook cannot be reached, or after a key rotation nothing had to be rewritten
  5  it was stopped; what is done is done
  6  with --one-endpoint: every object was left unchanged at the end, but nothing is proven")]
pub(crate) struct MigrateArgs {
    /// The resources, such as widgets.example.com or secrets.
    #[arg(value_name = "RESOURCE", required_unless_present_any = ["all", "crds"])]
    resources: Vec<GroupResource>,
    /// Every resource, as after a change of the encryption key.
    #[arg(long, conflicts_with_all = ["resources", "crds"])]
    all: bool,
    /// Every custom resource.
    #[arg(long, conflicts_with = "resources")]
    crds: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Ask the server which objects it would refuse, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// How to print the result.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    output: Output,
    #[command(flatten)]
    pace: PaceArgs,
    /// Leave owners of fields as they are, also those that name a version which is about to go.
    #[arg(long)]
    keep_managed_fields: bool,
    /// How long to wait for the API servers to agree, in seconds: one of them may not have noticed yet that a CRD was
    /// changed.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    wait: u64,
    /// Rewrite objects through the one address of the kubeconfig, where API servers cannot be asked one by one, as behind
    /// a load balancer. Several passes over fresh connections are made. Nothing is proven by that, and
    /// status.storedVersions stays as it is.
    #[arg(long)]
    one_endpoint: bool,
    /// Where an earlier run of the same resource stopped.
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["all", "crds"])]
    continue_from: Option<String>,
    /// Why; with key-rotation it is said at the end what that means for the old key.
    #[arg(long, value_name = "REASON")]
    reason: Option<Reason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Reason {
    KeyRotation,
    VersionChange,
}

pub(crate) async fn run(args: MigrateArgs) -> anyhow::Result<ExitCode> {
    if args.continue_from.is_some() && args.resources.len() != 1 {
        bail!("--continue-from goes with exactly one resource");
    }
    let cluster = args.cluster.connect().await?.reached_by(args.reach());
    let observation = observe(&cluster, Scope::All).await.context("cannot ask the API servers")?;
    let resources = args.resources(&cluster, &observation).await?;
    let (order, orders) = watch::channel(Order::Run);
    tokio::spawn(async move {
        serving::stop_signal().await;
        order.send_replace(Order::Stop);
        // A second one is not waited for.
        serving::stop_signal().await;
        std::process::exit(5);
    });
    let mut summary = Summary::new(args.dry_run);
    for resource in resources {
        if *orders.borrow() == Order::Stop {
            break;
        }
        let bar = Bar::new(&resource, args.output.is_for_people());
        let (progress, seen) = watch::channel(Progress::default());
        bar.follow(seen);
        let reins = Reins { orders: orders.clone(), progress: &progress };
        let started = std::time::Instant::now();
        let settled = match args.looks_at_all() {
            true => None,
            false => Settled::recorded(&cluster, &resource).await,
        };
        let options = MigrationOptions { settled, ..args.options() };
        let report = migrate(&cluster, &resource, options, reins).await;
        bar.finish();
        summary.add(resource, report, started.elapsed());
    }
    if args.reason == Some(Reason::KeyRotation) && !args.dry_run {
        summary.judge_the_old_key(if args.all { RotationScope::Everything } else { RotationScope::Named });
    }
    match args.output.is_for_people() {
        true => summary.print_table(),
        false => args.output.print(&summary, String::new)?,
    }
    Ok(summary.exit_code())
}

impl MigrateArgs {
    /// Whether also those objects are looked at that a migration of the controller left in order. Another key changes every
    /// object, whatever is known of its version, and whoever asks what would be refused wants to know it of all.
    fn looks_at_all(&self) -> bool {
        self.all || self.dry_run || self.reason == Some(Reason::KeyRotation)
    }

    fn options(&self) -> MigrationOptions {
        MigrationOptions {
            run: RunOptions {
                pacer: self.pace.limits(),
                mode: if self.dry_run { Mode::DryRun } else { Mode::Write },
                continue_token: self.continue_from.clone(),
                ..RunOptions::default()
            },
            owners: if self.keep_managed_fields { Owners::Leave } else { Owners::Move },
            settling_time: self.pace.settling_time(),
            patience: Duration::from_secs(self.wait),
            ..MigrationOptions::default()
        }
    }

    fn reach(&self) -> Reach {
        if self.one_endpoint { Reach::OneEndpoint } else { Reach::EachServer }
    }

    async fn resources(&self, cluster: &Cluster, observation: &Observation) -> anyhow::Result<Vec<GroupResource>> {
        let served = observation.resources();
        let same = equivalents();
        let named = match self.all || self.crds {
            true => served.into_iter().filter(|resource| !same.contains(resource)).collect(),
            false => {
                if let Some(unknown) = self.resources.iter().find(|resource| !served.contains(resource)) {
                    bail!("the cluster does not serve {unknown}; name it as in `kubectl api-resources -o name`");
                }
                self.resources.clone()
            }
        };
        let mut resources = Vec::new();
        for resource in named {
            let found = definition::read(cluster.client(), &resource).await;
            let found = found.with_context(|| format!("cannot look up the CRD of {resource}"))?;
            // The settling time of all of them counts from here, so that it has gone by when it is their turn.
            if let Some(seen) = observation.resource(&resource, found.as_ref()) {
                observation.agreed_since(cluster, &seen, found.as_ref());
            }
            if !self.crds || found.is_some() {
                resources.push(resource);
            }
        }
        Ok(resources)
    }
}

/// What came of one resource, in one word.
fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded => "Succeeded",
        Outcome::Unproven(_) => "Unproven",
        Outcome::NotReady { .. } => "NotReady",
        Outcome::SomeFailed => "SomeFailed",
        Outcome::NoAgreement(_) => "NoAgreement",
        Outcome::AgreementChanged(_) => "AgreementChanged",
        Outcome::DefinitionChanged(_) => "DefinitionChanged",
        Outcome::NeverSettles => "NeverSettles",
        Outcome::Stopped(_) => "Stopped",
        Outcome::ServerSilent { .. } => "ServerSilent",
        Outcome::WebhookDown { .. } => "WebhookDown",
        Outcome::ResourceGone => "ResourceGone",
        Outcome::Asked => "Asked",
    }
}
