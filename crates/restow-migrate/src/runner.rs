//! Rewrites the objects of one resource, until a pass through all of them finds nothing to do.
//!
//! Objects are listed in pages of metadata, so memory does not depend on their number or size. Many are in flight at once;
//! `restow_rules::migrate` decides how many, and what the responses mean. This module does not know about agreement: the
//! caller makes sure that all servers store the same version, and checks it again at the end.

mod listing;
mod pass;
mod pass_state;
mod probe;
mod progress;
mod rewrite;
mod unreadable;
mod verified;

pub use progress::{Progress, RunControl};
pub use rewrite::{CHANGED_BY_ADMISSION, RewriteMethod, WriteMode};

pub use verified::VerifiedObjects;

use crate::cluster::Instance;
use crate::discovery::StoredResource;
use crate::request::RequestError;
use pass::{Coverage, Pass};
use pass_state::PassOutcome;
use restow_api::migration::MigrationFailure;
use restow_rules::migrate::managed_fields::ManagedFieldsPlan;
use restow_rules::migrate::pacer::{Pacer, PacerLimits};
use restow_rules::migrate::passes::{AfterPass, PassReport, after_passes};
use rewrite::{AdmissionCheck, Rewriting};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The page size.
    pub page_size: u32,
    /// The limits of objects in flight.
    pub pacer: PacerLimits,
    /// Whether anything is written.
    pub mode: WriteMode,
    /// The request that rewrites.
    pub method: RewriteMethod,
    /// How managedFields entries of versions that are going to be removed are moved.
    pub owners: Option<ManagedFieldsPlan>,
    /// What an earlier attempt has verified.
    pub verified: Option<VerifiedObjects>,
    /// The other served versions. An object that cannot be converted is listed in the version that it is stored in.
    pub other_versions: Vec<String>,
    /// Until when a server may still write what it encoded before all servers showed the target version; `None` if that
    /// time is over. A pass that begins earlier proves nothing.
    pub settles_at: Option<Instant>,
    /// Where an earlier run stopped.
    pub continue_token: Option<String>,
    /// How long to wait for a webhook that cannot be reached, while nothing else can be done, before the run ends.
    pub webhook_timeout: Duration,
    /// The same for a server that keeps sending 429.
    pub overload_timeout: Duration,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// How it ended.
    pub ending: RunOutcome,
    /// The result of each pass.
    pub passes: Vec<PassReport>,
    /// The counts over all passes.
    pub progress: Progress,
    /// The objects that could not be rewritten in the last pass, up to a limit.
    pub failures: Vec<MigrationFailure>,
    /// The resource version at which the last pass began. If that pass changed nothing, objects that were not written since
    /// and did not fail are in the target version.
    pub settled_at: String,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The last pass found nothing to do, on every server and after the settling time.
    Proven,
    /// Some objects cannot be rewritten.
    SomeFailed,
    /// Objects keep changing their stored version.
    NeverSettles,
    /// It was stopped. The first unprocessed object is on the page of this token or after it.
    Stopped {
        /// Where to continue.
        continue_token: Option<String>,
    },
    /// A server does not answer. Nothing can be proven without it, and it may still write.
    Unresponsive {
        /// Which server, and the error.
        words: String,
        /// Where to continue; only the first pass can be continued.
        continue_token: Option<String>,
    },
    /// A server does not serve the resource. The caller finds out whether the resource is deleted.
    NotServed {
        /// Which server, and the error.
        words: String,
        /// Where to continue; only the first pass can be continued.
        continue_token: Option<String>,
    },
    /// A webhook that every write needs cannot be reached. The objects are not to blame.
    WebhookDown {
        /// The error.
        words: String,
        /// Where to continue; only the first pass can be continued.
        continue_token: Option<String>,
    },
    /// A server has been overloaded for too long.
    Overloaded {
        /// The error.
        words: String,
        /// Where to continue; only the first pass can be continued.
        continue_token: Option<String>,
    },
    /// Dry run: nothing was written.
    DryRunDone,
}

/// Why a run could not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Objects cannot be listed.
    #[error("cannot list the objects: {0}{hint}", hint = hint(.0))]
    List(RequestError),
    /// A webhook does not support dry run, so nothing is known without writing.
    #[error("unknown without writing: {0}")]
    NoDryRun(RequestError),
    /// Rewriting is forbidden.
    #[error("cannot rewrite objects: {0}{hint}", hint = hint(.0))]
    NotAllowed(RequestError),
}

/// What to do about a missing permission.
fn hint(failure: &RequestError) -> &'static str {
    match failure.code {
        403 => {
            "; get, list and patch on the resource are needed (`restow install` grants them on what the cluster has: run it \
             again after adding resources)"
        }
        _ => "",
    }
}

/// How many failures are kept in memory and recorded.
pub const MOST_FAILURES: usize = 50_000;

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            page_size: 500,
            pacer: PacerLimits::default(),
            mode: WriteMode::Write,
            method: RewriteMethod::Patch,
            owners: None,
            verified: None,
            other_versions: Vec::new(),
            settles_at: None,
            continue_token: None,
            webhook_timeout: Duration::from_secs(10),
            overload_timeout: Duration::from_secs(300),
        }
    }
}

/// Rewrites the objects of a resource. `control` pauses and stops it; `progress` receives the progress.
pub async fn run(
    servers: &[Instance],
    resource: &StoredResource,
    options: RunOptions,
    control: watch::Receiver<RunControl>,
    progress: &watch::Sender<Progress>,
) -> Result<RunReport, RunError> {
    let rewriting = Rewriting {
        resource: resource.clone(),
        mode: options.mode,
        method: options.method,
        owners: options.owners.clone(),
        other_versions: options.other_versions.clone(),
    };
    let mut pass = Pass {
        servers: servers.to_vec(),
        rewriting,
        page_size: options.page_size.max(1),
        pacer: Pacer::new(options.pacer),
        began: Instant::now(),
        control,
        progress,
        failures: Vec::new(),
        verified: options.verified.clone(),
        list_revision: String::new(),
        began_at: String::new(),
        probe: None,
        admission_check: AdmissionCheck::None,
        is_after_settling: false,
        webhook_timeout: options.webhook_timeout,
        webhook_down_since: None,
        overload_timeout: options.overload_timeout,
        overloaded_since: None,
        no_responses: 0,
    };
    let mut token = options.continue_token;
    let mut passes: Vec<PassReport> = Vec::new();
    let ending = loop {
        if !passes.is_empty() && !settled(options.settles_at, &mut pass.control, progress).await {
            break RunOutcome::Stopped { continue_token: None };
        }
        pass.is_after_settling = options.settles_at.is_none_or(|at| at <= Instant::now());
        progress.send_modify(|progress| progress.begin_pass(passes.len() as u64 + 1, token.as_deref()));
        // A failure counts only if it occurs in the last pass.
        pass.failures.clear();
        pass.list_revision.clear();
        let coverage = if passes.is_empty() { Coverage::ServerResult } else { Coverage::EveryServer };
        let (report, end) = pass.run(token.take(), coverage).await?;
        passes.push(report);
        // From now on objects should be left unchanged.
        pass.admission_check = pass.admission_check.max(AdmissionCheck::Afterwards);
        match end {
            PassOutcome::Stopped { continue_token } => break RunOutcome::Stopped { continue_token },
            PassOutcome::Unresponsive { words, continue_token } => {
                let continue_token = continue_token.filter(|_| passes.len() == 1);
                break RunOutcome::Unresponsive { words, continue_token };
            }
            PassOutcome::NotServed { words, continue_token } => {
                let continue_token = continue_token.filter(|_| passes.len() == 1);
                break RunOutcome::NotServed { words, continue_token };
            }
            PassOutcome::WebhookDown { words, continue_token } => {
                let continue_token = continue_token.filter(|_| passes.len() == 1);
                break RunOutcome::WebhookDown { words, continue_token };
            }
            PassOutcome::Overloaded { words, continue_token } => {
                let continue_token = continue_token.filter(|_| passes.len() == 1);
                break RunOutcome::Overloaded { words, continue_token };
            }
            PassOutcome::Complete if options.mode == WriteMode::DryRun => break RunOutcome::DryRunDone,
            PassOutcome::Complete => match after_passes(&passes) {
                AfterPass::GoOn => {}
                AfterPass::Proven => break RunOutcome::Proven,
                AfterPass::SomeFailed => break RunOutcome::SomeFailed,
                AfterPass::NeverSettles => break RunOutcome::NeverSettles,
            },
        }
    };
    let failures = std::mem::take(&mut pass.failures);
    let settled_at = pass.list_revision.clone();
    Ok(RunReport { ending, passes, progress: progress.borrow().clone(), failures, settled_at })
}

/// Waits for the end of the settling time. Returns whether the run goes on: it may be stopped meanwhile.
async fn settled(
    at: Option<Instant>,
    control: &mut watch::Receiver<RunControl>,
    progress: &watch::Sender<Progress>,
) -> bool {
    let Some(at) = at.filter(|at| *at > Instant::now()) else { return true };
    let left = at.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
    progress.send_modify(|progress| {
        progress.waiting = Some(format!(
            "letting writes end that an API server may have begun before it stored the new version ({left:.0} s)"
        ));
    });
    let stopped = async {
        // If the sender is dropped, the last value stays in force.
        if control.wait_for(|command| *command == RunControl::Stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = stopped => false,
        () = tokio::time::sleep_until(at) => true,
    }
}
