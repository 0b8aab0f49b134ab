//! One migration of one resource: agreement, mark, rewriting, agreement again, stored versions, mark removed.
//!
//! `restow migrate` and the controller share this. It can be interrupted anywhere: it leaves nothing behind but the mark,
//! which the next migration or the controller removes.

mod earlier_attempt;
mod end;
mod start;

pub use earlier_attempt::EarlierAttempt;

use crate::cluster::{Cluster, Reach};
use crate::crd;
use crate::discovery::StoredResource;
use crate::mark::{MarkManager, Refusals, command_holder};
use crate::request::RequestError;
use crate::runner::{self, Progress, RunControl, RunError, RunOptions, RunOutcome, RunReport, WriteMode};
use crate::settling_time::SETTLING_TIME;
use crate::step::MigrationStep;
use end::confirm;
use restow_api::migration::StorageVersionMigration;
use restow_api::{GroupResource, ResourceVersion, StorageVersionHash};
use restow_rules::migrate::marks::{Holder, HolderKind};
use restow_rules::migrate::stored_versions::{Trim, trim};
use start::{Start, begin, check_start, not_ready};
use std::time::Duration;
use tokio::sync::watch;

/// The options of a migration.
#[derive(Clone, Debug)]
pub struct MigrationOptions {
    /// How its objects are rewritten.
    pub run: RunOptions,
    /// Whether managedFields entries of versions that are going to be removed are moved.
    pub owners: ManagedFieldsPolicy,
    /// Why objects are rewritten.
    pub goal: Goal,
    /// The agreement that the migration is for; `None` for any.
    pub expected: Option<MigrationTarget>,
    /// What an earlier, failed migration to the same target has verified. It is used only if nothing has changed since.
    pub settled: Option<EarlierAttempt>,
    /// The settling time: how long after the last API server has shown the target version an older write may still be in
    /// flight. Nothing is proven earlier. Servers that report before they write, and whose writes are fenced, need none.
    pub settling_time: Duration,
    /// How long to wait for the API servers to agree and to serve the resource.
    pub agreement_timeout: Duration,
    /// The holder of the mark; `None` for a command of this process.
    pub holder: Option<Holder>,
}

impl Default for MigrationOptions {
    fn default() -> Self {
        MigrationOptions {
            run: RunOptions::default(),
            owners: ManagedFieldsPolicy::default(),
            goal: Goal::default(),
            expected: None,
            settled: None,
            settling_time: SETTLING_TIME,
            agreement_timeout: Duration::ZERO,
            holder: None,
        }
    }
}

/// Why objects are rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// The storage version has changed. The StorageVersions that servers report count.
    #[default]
    Version,
    /// The encryption key has changed. StorageVersions say nothing about keys, so each server has to be queried.
    Key,
}

/// What happens to managedFields entries that name a version which is going to be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ManagedFieldsPolicy {
    /// They are moved to the storage version, for custom resources.
    #[default]
    Move,
    /// They are kept.
    Leave,
}

/// The agreement that a migration is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationTarget {
    /// The version that all servers store.
    pub hash: StorageVersionHash,
    /// The revision of the StorageVersion that shows it; `None` if discovery documents show it.
    pub revision: Option<ResourceVersion>,
}

impl MigrationTarget {
    /// The agreement that a migration object names; `None` if it names none.
    pub(crate) fn of(migration: &StorageVersionMigration) -> Option<Self> {
        Some(MigrationTarget { hash: migration.target_hash()?, revision: migration.agreement_revision() })
    }
}

/// How a migration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationOutcome {
    /// Every object is stored in the target version, and that is proven.
    Succeeded,
    /// Every object was left unchanged at the end, but not every API server could be queried.
    Unproven(String),
    /// Some objects cannot be rewritten.
    SomeFailed,
    /// The servers do not agree. Nothing was written.
    NoAgreement(String),
    /// The servers do not agree any more, or on another version than at the start.
    AgreementChanged(String),
    /// The CRD was changed meanwhile, so nothing is proven about it.
    CrdChanged(String),
    /// Objects keep changing their stored version.
    NeverSettles,
    /// It was stopped, and can continue here.
    Stopped(Option<String>),
    /// A server does not answer. The migration can continue here when it does, or when it is removed.
    ServerUnresponsive {
        /// Which server, and the error.
        words: String,
        /// Where to continue.
        continue_token: Option<String>,
    },
    /// An API server does not serve an existing resource. The migration can continue here when it does.
    NotReady {
        /// Which server, and the error.
        words: String,
        /// Where to continue.
        continue_token: Option<String>,
    },
    /// A webhook that every write needs cannot be reached. The migration can continue here when it can.
    WebhookDown {
        /// The error.
        words: String,
        /// Where to continue.
        continue_token: Option<String>,
    },
    /// An API server has been overloaded for a long time. The migration can continue here.
    Overloaded {
        /// The error.
        words: String,
        /// Where to continue.
        continue_token: Option<String>,
    },
    /// The resource is not managed: aggregated API servers serve it, or its storage version is not published.
    NotManaged(String),
    /// The resource does not exist: no API server serves it, and it has no CRD.
    ResourceGone,
    /// Dry run: nothing was written.
    DryRunDone,
}

/// The result of a migration.
#[derive(Clone, Debug)]
pub struct MigrationReport {
    /// What it was for; `None` if there was no agreement.
    pub target: Option<MigrationTarget>,
    /// How it ended.
    pub outcome: MigrationOutcome,
    /// The result of rewriting; `None` if it did not begin.
    pub run: Option<RunReport>,
    /// The new stored versions of the CRD, if they were trimmed.
    pub trimmed_to: Option<Vec<String>>,
    /// The generation of the CRD; zero if there is none.
    pub crd_generation: i64,
}

/// Why a migration could not go on.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// The servers cannot be queried.
    #[error("cannot find out what the API servers store: {0}")]
    Observe(RequestError),
    /// The CRD cannot be read or written.
    #[error("cannot read or write the CRD: {0}")]
    Crd(RequestError),
    /// The objects cannot be rewritten.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// The channels to and from a running migration.
pub struct MigrationChannels<'a> {
    /// Receives pause and stop.
    pub control: watch::Receiver<RunControl>,
    /// Sends the progress.
    pub progress: &'a watch::Sender<Progress>,
}

/// Migrates the objects of a resource.
pub async fn migrate(
    cluster: &Cluster,
    resource: &GroupResource,
    options: MigrationOptions,
    mut channels: MigrationChannels<'_>,
) -> Result<MigrationReport, MigrationError> {
    let mut start = match begin(cluster, resource, &options, &mut channels).await? {
        Ok(start) => start,
        Err(outcome) => return Ok(ended(None, outcome)),
    };
    MigrationStep::Agreed.log(resource);
    if options.run.mode == WriteMode::DryRun {
        return rewrite(cluster, &start, &options, &channels).await;
    }
    let holder = options.holder.clone().unwrap_or_else(command_holder);
    let mut mark = MarkManager::new(cluster, resource, holder);
    if let Some(found) = &start.crd {
        let marked = mark.set(found).await.map_err(MigrationError::Crd)?;
        // The agreement refers to the CRD as it was before.
        if let Trim::Changed(words) = trim(&crd::view(found), &crd::view(&marked)) {
            mark.remove(Refusals::Unknown).await.map_err(MigrationError::Crd)?;
            return Ok(ended(None, MigrationOutcome::CrdChanged(words)));
        }
        start.crd = Some(marked);
    }
    MigrationStep::Marked.log(resource);
    let work = async {
        match rewrite(cluster, &start, &options, &channels).await {
            Ok(report) if report.outcome == MigrationOutcome::Succeeded => {
                confirm(cluster, resource, &start, &options, report).await
            }
            other => other,
        }
    };
    let done = match start.crd.is_some() {
        true => mark.renewed_while(work).await,
        false => work.await,
    };
    // Whatever the result, the mark is removed. A controller also removes stale marks of others later; a command has to
    // wait for that.
    if start.crd.is_some() {
        let is_stopped = matches!(&done, Ok(MigrationReport { outcome: MigrationOutcome::Stopped(_), .. }));
        if mark.holder.kind == HolderKind::Command && !is_stopped {
            mark.outwait().await.map_err(MigrationError::Crd)?;
        }
        let refusals = refusals(mark.holder.kind, &done);
        mark.remove(refusals).await.map_err(MigrationError::Crd)?;
    }
    MigrationStep::Unmarked.log(resource);
    done
}

fn ended(target: Option<MigrationTarget>, outcome: MigrationOutcome) -> MigrationReport {
    MigrationReport { target, outcome, run: None, trimmed_to: None, crd_generation: 0 }
}

async fn rewrite(
    cluster: &Cluster,
    start: &Start,
    options: &MigrationOptions,
    channels: &MigrationChannels<'_>,
) -> Result<MigrationReport, MigrationError> {
    let Start { observation, crd, target, .. } = start;
    let generation = crd.as_ref().map_or(0, |crd| crd::view(crd).generation);
    let (resource, run) = run_options(start, options, generation);
    let mut report =
        runner::run(&observation.instances, &resource, run.clone(), channels.control.clone(), channels.progress)
            .await?;
    for _ in 1..rounds(cluster.reach()) {
        if report.ending != RunOutcome::Proven {
            break;
        }
        // New connections may lead to other servers.
        let instances = cluster.instances(&observation.servers).map_err(MigrationError::Observe)?;
        let again = RunOptions { continue_token: None, ..run.clone() };
        report = runner::run(&instances, &resource, again, channels.control.clone(), channels.progress).await?;
    }
    let outcome = outcome(cluster, start, &report).await?;
    MigrationStep::Rewritten.log(&resource.resource.group_resource());
    let (target, run) = (Some(target.clone()), Some(report));
    Ok(MigrationReport { target, outcome, run, trimmed_to: None, crd_generation: generation })
}

/// How many clean runs are needed. One is not enough if it is unknown which server answers.
fn rounds(reach: Reach) -> u32 {
    match reach {
        Reach::EachServer => 1,
        Reach::OneEndpoint => 3,
    }
}

/// The resource in the version to rewrite through, and the options of the run.
fn run_options(start: &Start, options: &MigrationOptions, generation: i64) -> (StoredResource, RunOptions) {
    let crd = start.crd.as_ref();
    let owners = match options.owners {
        ManagedFieldsPolicy::Move => crd.and_then(crd::managed_fields_plan),
        ManagedFieldsPolicy::Leave => None,
    };
    let target = &start.target;
    // Behind a Service another server may have come and gone since, which no StorageVersion shows.
    let settled = options.settled.as_ref().filter(|_| start.seen.marks.is_empty());
    let verified = settled.filter(|settled| settled.holds_for(target, generation)).map(EarlierAttempt::verified);
    let mut other_versions = crd.map(crd::served_versions).unwrap_or_default();
    let resource = match other_versions.first() {
        Some(version) => start.seen.resource.in_version(version),
        None => start.seen.resource.clone(),
    };
    other_versions.retain(|version| version != resource.resource.version());
    let settles_at = start.seen.has_to_settle().then(|| start.agreed_since + options.settling_time);
    (resource, RunOptions { owners, verified, other_versions, settles_at, ..options.run.clone() })
}

/// The result of the rewriting.
async fn outcome(cluster: &Cluster, start: &Start, report: &RunReport) -> Result<MigrationOutcome, MigrationError> {
    Ok(match &report.ending {
        RunOutcome::Proven if cluster.reach() == Reach::OneEndpoint => MigrationOutcome::Unproven(format!(
            "{} of {} objects were rewritten, and then {} passes through {} connections to {} left each of them \
             unchanged. It is unknown which API servers answered, so nothing is proven and status.storedVersions \
             stays as it is",
            report.progress.counts.rewritten,
            report.progress.counts.seen,
            rounds(Reach::OneEndpoint),
            start.observation.instances.len(),
            cluster.common().name,
        )),
        RunOutcome::Proven => MigrationOutcome::Succeeded,
        RunOutcome::SomeFailed => MigrationOutcome::SomeFailed,
        RunOutcome::NeverSettles => MigrationOutcome::NeverSettles,
        RunOutcome::Stopped { continue_token } => MigrationOutcome::Stopped(continue_token.clone()),
        RunOutcome::Unresponsive { words, continue_token } => {
            MigrationOutcome::ServerUnresponsive { words: words.clone(), continue_token: continue_token.clone() }
        }
        RunOutcome::NotServed { words, continue_token } => {
            let resource = start.seen.resource.resource.group_resource();
            match check_start(cluster, &resource, None, Goal::default()).await? {
                Err(MigrationOutcome::ResourceGone) => MigrationOutcome::ResourceGone,
                _ => not_ready(words.clone(), continue_token.clone()),
            }
        }
        RunOutcome::WebhookDown { words, continue_token } => {
            MigrationOutcome::WebhookDown { words: words.clone(), continue_token: continue_token.clone() }
        }
        RunOutcome::Overloaded { words, continue_token } => {
            MigrationOutcome::Overloaded { words: words.clone(), continue_token: continue_token.clone() }
        }
        RunOutcome::DryRunDone => MigrationOutcome::DryRunDone,
    })
}

/// What a manual migration could not rewrite, as a sentence. A controller writes it to the migration object instead.
fn refusals(kind: HolderKind, done: &Result<MigrationReport, MigrationError>) -> Refusals {
    let Ok(report) = done else { return Refusals::Unknown };
    match (&report.outcome, &report.run) {
        (MigrationOutcome::Succeeded, _) => Refusals::None,
        (MigrationOutcome::SomeFailed, Some(run)) if kind == HolderKind::Command => {
            let first = run.failures.first().map(|failure| {
                let name = [failure.namespace.as_str(), failure.name.as_str()].join("/");
                let message: String = failure.message.chars().take(LONGEST_REFUSAL).collect();
                format!(", the first being {}: {} {message}", name.trim_start_matches('/'), failure.code)
            });
            Refusals::Some(format!("{} objects were refused{}", run.progress.counts.failed, first.unwrap_or_default()))
        }
        _ => Refusals::Unknown,
    }
}

/// How much of the server's message about a failed object is recorded at the CRD.
const LONGEST_REFUSAL: usize = 300;
