//! One migration of one resource: agreement, mark, rewriting, agreement again, stored versions, mark off.
//!
//! `restow migrate` and the controller both do this. It can be interrupted anywhere: the mark is the only thing that it
//! leaves behind, and whoever comes next takes it away.

mod earlier_attempt;
mod end;
mod start;
pub mod step;

pub use earlier_attempt::EarlierAttempt;

use crate::cluster::{Cluster, Reach};
use crate::crd;
use crate::discovery::StoredResource;
use crate::mark::{MarkManager, Refusals, command_holder};
use crate::request::RequestError;
use crate::runner::{self, Progress, RunControl, RunError, RunOptions, RunOutcome, RunReport, WriteMode};
use crate::settling_time::SETTLING_TIME;
use end::confirm;
use restow_api::migration::StorageVersionMigration;
use restow_api::{GroupResource, ResourceVersion, StorageVersionHash};
use restow_rules::migrate::marks::{Holder, HolderKind};
use restow_rules::migrate::stored_versions::{Trim, trim};
use start::{Start, begin, look, not_ready};
use std::time::Duration;
use step::MigrationStep;
use tokio::sync::watch;

/// How a resource is migrated.
#[derive(Clone, Debug)]
pub struct MigrationOptions {
    /// How its objects are rewritten.
    pub run: RunOptions,
    /// Whether owners of fields that name a version which is about to go are moved.
    pub owners: ManagedFieldsPolicy,
    /// What objects are rewritten for.
    pub goal: Goal,
    /// The agreement that the migration is for; nothing takes the one that is found.
    pub expected: Option<MigrationTarget>,
    /// What an earlier, failed migration to the same target has made sure of. It is used only if nothing has changed since.
    pub settled: Option<EarlierAttempt>,
    /// How long after the last API server has shown the target version one of them may still write what it encoded
    /// before. Nothing is proven earlier. Servers that report their storage version before they write, and whose writes are
    /// fenced, need no such time.
    pub settling_time: Duration,
    /// How long to wait for the API servers to agree, or to serve the resource at all.
    pub agreement_timeout: Duration,
    /// Who marks the CRD; nothing is a command of this process.
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

/// What objects are rewritten for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// Another storage version. What API servers report about that counts.
    #[default]
    Version,
    /// Another encryption key. What API servers report says nothing about keys, so that each of them has to be asked.
    Key,
}

/// What is done about owners of fields that name a version which is about to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ManagedFieldsPolicy {
    /// They are moved to the version that stays, for custom resources.
    #[default]
    Move,
    /// They are left as they are.
    Leave,
}

/// What a migration is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationTarget {
    /// The version that all servers store.
    pub hash: StorageVersionHash,
    /// The revision of the StorageVersion that says so; nothing where the servers do not vouch for it by their reports.
    pub revision: Option<ResourceVersion>,
}

impl MigrationTarget {
    /// What a migration says that it is for; nothing where its author did not say.
    pub(crate) fn of(migration: &StorageVersionMigration) -> Option<Self> {
        Some(MigrationTarget { hash: migration.target_hash()?, revision: migration.agreement_revision() })
    }
}

/// How a migration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationOutcome {
    /// Every object is stored in the target version, and that is proven.
    Succeeded,
    /// Every object was left unchanged at the end, but not every API server could be asked: what was seen.
    Unproven(String),
    /// Some objects cannot be rewritten.
    SomeFailed,
    /// The servers do not agree, so nothing was done.
    NoAgreement(String),
    /// The servers agree no longer, or on something else than at the start.
    AgreementChanged(String),
    /// The CRD was changed meanwhile, so that nothing may be said about it.
    CrdChanged(String),
    /// Objects keep changing their stored version.
    NeverSettles,
    /// It was told to stop, and can go on from here.
    Stopped(Option<String>),
    /// A server does not answer; once it does, or is gone for good, it can go on from here.
    ServerUnresponsive {
        /// Which server, and what is known of that.
        words: String,
        /// Where to go on.
        continue_token: Option<String>,
    },
    /// An API server does not serve the resource, which is there; once it does, it can go on from here.
    NotReady {
        /// Which server, and what is known of that.
        words: String,
        /// Where to go on.
        continue_token: Option<String>,
    },
    /// A webhook cannot be reached without which nothing can be written; once it can be, it can go on from here.
    WebhookDown {
        /// What is known of that.
        words: String,
        /// Where to go on.
        continue_token: Option<String>,
    },
    /// An API server has had too much to do for a long time; it can go on from here.
    Overloaded {
        /// What is known of that.
        words: String,
        /// Where to go on.
        continue_token: Option<String>,
    },
    /// Nothing can ever be said about it: aggregated API servers serve it, or nobody tells in which version it is stored.
    NotManaged(String),
    /// The resource is gone: no API server serves it, and it has no CRD.
    ResourceGone,
    /// Nothing was written: it was only asked what the server would say.
    DryRunDone,
}

/// What a migration did.
#[derive(Clone, Debug)]
pub struct MigrationReport {
    /// What it was for; nothing where there was no agreement.
    pub target: Option<MigrationTarget>,
    /// How it ended.
    pub outcome: MigrationOutcome,
    /// What the rewriting came to; nothing where it did not begin.
    pub run: Option<RunReport>,
    /// The stored versions that the CRD has now, where they were trimmed.
    pub trimmed_to: Option<Vec<String>>,
    /// The generation of the CRD; zero where there is none.
    pub definition_generation: i64,
}

/// Why a migration could not go on.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// The servers cannot be asked.
    #[error("cannot find out what the API servers store: {0}")]
    Observe(RequestError),
    /// The CRD cannot be read or written.
    #[error("cannot read or write the CRD: {0}")]
    Crd(RequestError),
    /// The objects cannot be rewritten.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// What a migration tells and is told while it runs.
pub struct MigrationChannels<'a> {
    /// Pause and stop.
    pub control: watch::Receiver<RunControl>,
    /// How far it is.
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
        // What was agreed on was about the CRD as it was before.
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
    // Whatever came of it, the mark goes. A controller takes away what others have left; a command has to do it itself.
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
    MigrationReport { target, outcome, run: None, trimmed_to: None, definition_generation: 0 }
}

async fn rewrite(
    cluster: &Cluster,
    start: &Start,
    options: &MigrationOptions,
    channels: &MigrationChannels<'_>,
) -> Result<MigrationReport, MigrationError> {
    let Start { observation, crd, target, .. } = start;
    let generation = crd.as_ref().map_or(0, |crd| crd::view(crd).generation);
    let (resource, run) = how(start, options, generation);
    let mut report =
        runner::run(&observation.instances, &resource, run.clone(), channels.control.clone(), channels.progress)
            .await?;
    for _ in 1..rounds(cluster.reach()) {
        if report.ending != RunOutcome::Proven {
            break;
        }
        // Other connections may lead to other servers.
        let instances = cluster.instances(&observation.servers).map_err(MigrationError::Observe)?;
        let again = RunOptions { continue_token: None, ..run.clone() };
        report = runner::run(&instances, &resource, again, channels.control.clone(), channels.progress).await?;
    }
    let outcome = outcome(cluster, start, &report).await?;
    MigrationStep::Rewritten.log(&resource.resource.group_resource());
    let (target, run) = (Some(target.clone()), Some(report));
    Ok(MigrationReport { target, outcome, run, trimmed_to: None, definition_generation: generation })
}

/// How often everything is gone through until nothing changes. Where nobody knows which server answers, once is too little.
fn rounds(reach: Reach) -> u32 {
    match reach {
        Reach::EachServer => 1,
        Reach::OneEndpoint => 3,
    }
}

/// In which version objects are rewritten, and how.
fn how(start: &Start, options: &MigrationOptions, generation: i64) -> (StoredResource, RunOptions) {
    let crd = start.crd.as_ref();
    let owners = match options.owners {
        ManagedFieldsPolicy::Move => crd.and_then(crd::managed_fields_plan),
        ManagedFieldsPolicy::Leave => None,
    };
    let target = &start.target;
    let settled = options.settled.as_ref().filter(|settled| settled.holds_for(target, generation)).cloned();
    let mut other_versions = crd.map(crd::served_versions).unwrap_or_default();
    let resource = match other_versions.first() {
        Some(version) => start.seen.resource.in_version(version),
        None => start.seen.resource.clone(),
    };
    other_versions.retain(|version| version != resource.resource.version());
    // Who reports before it writes, under a fence, has nothing under way that was encoded before.
    let settles_at = target.revision.is_none().then(|| start.agreed_since + options.settling_time);
    (resource, RunOptions { owners, settled, other_versions, settles_at, ..options.run.clone() })
}

/// What came of the rewriting.
async fn outcome(cluster: &Cluster, start: &Start, report: &RunReport) -> Result<MigrationOutcome, MigrationError> {
    Ok(match &report.ending {
        RunOutcome::Proven if cluster.reach() == Reach::OneEndpoint => MigrationOutcome::Unproven(format!(
            "{} of {} objects were rewritten, and then {} passes through {} connections to {} left each of them \
             unchanged. Which API servers answered cannot be told, so that nothing is proven and status.storedVersions \
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
            match look(cluster, &resource, None, Goal::default()).await? {
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

/// What a migration by hand could not rewrite, in a sentence. A controller writes that into its migration.
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

/// How much of the server's words about a refused object is written down at its CRD.
const LONGEST_REFUSAL: usize = 300;
