//! Rewrites the objects of one resource, until a pass through all of them finds nothing to do.
//!
//! Objects are listed in pages of metadata, so memory does not grow with their number or size. Many are in flight at once;
//! how many, and what the answers mean, is decided in `restow_rules::migrate`. This module does not know about
//! agreement: whoever starts it has made sure that all servers store the same version, and looks again when it ends.

mod listing;
mod pass;
mod pass_state;
mod probe;
mod progress;
mod rewrite;
mod unreadable;

pub use progress::{Progress, RunControl};
pub use rewrite::{CHANGED_BY_ADMISSION, ManagedFieldsPlan, RewriteMethod, WriteMode};

pub(crate) use listing::path_part;

use crate::cluster::Instance;
use crate::discovery::StoredResource;
use crate::migration::EarlierAttempt;
use crate::request::RequestError;
use pass::{Coverage, Pass};
use pass_state::PassOutcome;
use restow_api::migration::MigrationFailure;
use restow_rules::migrate::pacer::{Pacer, PacerLimits};
use restow_rules::migrate::passes::{AfterPass, PassReport, after_passes};
use rewrite::{AdmissionCheck, Rewriting};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// What to rewrite, and how.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// How many objects are listed at a time.
    pub page_size: u32,
    /// How many objects may be in flight.
    pub pacer: PacerLimits,
    /// Whether anything is written.
    pub mode: WriteMode,
    /// With which request.
    pub method: RewriteMethod,
    /// What is done about owners of fields that name a version which is about to go.
    pub owners: Option<ManagedFieldsPlan>,
    /// What need not be looked at again.
    pub settled: Option<EarlierAttempt>,
    /// The other versions in which the resource is served. An object that cannot be converted is listed in the one that
    /// it is stored in.
    pub other_versions: Vec<String>,
    /// Until when a server may still write what it encoded before all servers showed the target version; nothing where
    /// that is over. A pass that begins before proves nothing.
    pub settles_at: Option<Instant>,
    /// Where an earlier run stopped.
    pub continue_token: Option<String>,
    /// How long a webhook that cannot be reached is waited for, while nothing else goes on, before the run ends. Whoever
    /// has other work does that meanwhile.
    pub webhook_timeout: Duration,
    /// The same for a server that has too much to do and asks to wait again and again.
    pub overload_timeout: Duration,
}

/// How a run ended, and what it did.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// How it ended.
    pub ending: RunOutcome,
    /// What each pass came to.
    pub passes: Vec<PassReport>,
    /// The numbers over all passes.
    pub progress: Progress,
    /// The objects that could not be rewritten in the last pass, as many as are kept.
    pub failures: Vec<MigrationFailure>,
    /// The resource version that the last pass began at. What was not written since, and is not among the failures, is in
    /// the target version, if the last pass changed nothing.
    pub settled_at: String,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The last pass found nothing to do.
    Proven,
    /// Some objects cannot be rewritten.
    SomeFailed,
    /// Objects keep changing their stored version.
    NeverSettles,
    /// It was told to stop. An object of the page with this token may be the first that is not done.
    Stopped {
        /// Where to go on.
        continue_token: Option<String>,
    },
    /// A server does not answer. Without it nothing can be proven, and it may still write.
    Unresponsive {
        /// Which one, and what is known of that.
        words: String,
        /// Where to go on; only the first pass is worth going on with.
        continue_token: Option<String>,
    },
    /// A server does not serve the resource. Whether it is gone, or only not there yet, is for the caller to find out.
    NotServed {
        /// Which server, and what it said.
        words: String,
        /// Where to go on; only the first pass is worth going on with.
        continue_token: Option<String>,
    },
    /// A webhook without which no object can be written cannot be reached. Nothing is wrong with the objects.
    WebhookDown {
        /// What is known of that.
        words: String,
        /// Where to go on; only the first pass is worth going on with.
        continue_token: Option<String>,
    },
    /// A server has too much to do, and has asked to wait for so long that others shall have their turn.
    Overloaded {
        /// What is known of that.
        words: String,
        /// Where to go on; only the first pass is worth going on with.
        continue_token: Option<String>,
    },
    /// Nothing was written: it was only asked what the server would say.
    DryRunDone,
}

/// Why a run could not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Objects cannot be listed.
    #[error("cannot list the objects: {0}{hint}", hint = hint(.0))]
    List(RequestError),
    /// Nobody can tell without a write what would be refused.
    #[error("cannot be told without writing: {0}")]
    NoDryRun(RequestError),
    /// We may not rewrite objects.
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

/// How many failed objects are kept in memory and written down. Who has more has another problem than their names.
pub const MOST_FAILURES: usize = 50_000;

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            page_size: 500,
            pacer: PacerLimits::default(),
            mode: WriteMode::Write,
            method: RewriteMethod::Patch,
            owners: None,
            settled: None,
            other_versions: Vec::new(),
            settles_at: None,
            continue_token: None,
            webhook_timeout: Duration::from_secs(10),
            overload_timeout: Duration::from_secs(300),
        }
    }
}

/// Rewrites the objects of a resource. `control` can pause and stop it; `progress` tells how far it is.
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
        settled: options.settled.clone(),
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
        // A failure counts if it is still one in the last pass.
        pass.failures.clear();
        pass.list_revision.clear();
        let coverage = if passes.is_empty() { Coverage::ServerResult } else { Coverage::EveryServer };
        let (report, end) = pass.run(token.take(), coverage).await?;
        passes.push(report);
        // From now on objects should be left alone.
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

/// Waits for the end of the settling time. Returns whether the run goes on: it may be told to stop meanwhile.
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
        // When nobody can give orders any more, the last one stays in force.
        if control.wait_for(|command| *command == RunControl::Stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = tokio::time::sleep_until(at) => true,
        () = stopped => false,
    }
}
