//! How a migration begins: all API servers store the version that the CRD names.

use super::{Goal, MigrationChannels, MigrationError, MigrationOptions, MigrationOutcome, MigrationTarget};
use crate::api_servers::{Observation, ResourceObservation, Scope, observe};
use crate::cluster::{Cluster, Reach};
use crate::crd::{self, Crd};
use crate::processes::identify;
use crate::runner::{RunControl, WriteMode};
use restow_api::GroupResource;
use restow_rules::migrate::processes::Processes;
use std::time::Duration;
use tokio::time::Instant;

/// What a migration begins with: all API servers store the version that the CRD names.
pub(super) struct Start {
    pub(super) observation: Observation,
    pub(super) seen: ResourceObservation,
    pub(super) crd: Option<Crd>,
    pub(super) target: MigrationTarget,
    /// Since when they were seen to agree.
    pub(super) agreed_since: Instant,
    /// Which process each of them is. Servers that report before they write, under a fence, vouch for themselves.
    pub(super) processes: Option<Processes>,
}

/// Waits until there is agreement, as long as patience lasts, and for as long as nobody says stop.
pub(super) async fn begin(
    cluster: &Cluster,
    resource: &GroupResource,
    options: &MigrationOptions,
    channels: &mut MigrationChannels<'_>,
) -> Result<Result<Start, MigrationOutcome>, MigrationError> {
    let began = Instant::now();
    loop {
        let (outcome, wait) = match look(cluster, resource, options.expected.as_ref(), options.goal).await? {
            Ok(start) => match identified(start, cluster.reach(), options).await {
                Ok(start) => return Ok(Ok(start)),
                Err(words) => (MigrationOutcome::NoAgreement(words), PROCESSES_WAIT),
            },
            Err(outcome) => (outcome, AGREEMENT_WAIT),
        };
        let (MigrationOutcome::NoAgreement(words) | MigrationOutcome::NotReady { words, .. }) = &outcome else {
            return Ok(Err(outcome));
        };
        if began.elapsed() >= options.agreement_timeout || *channels.control.borrow() == RunControl::Stop {
            return Ok(Err(outcome));
        }
        channels.progress.send_modify(|progress| progress.waiting = Some(words.clone()));
        let stopped = async {
            // When nobody can give orders any more, the last one stays in force.
            if channels.control.wait_for(|command| *command == RunControl::Stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stopped => {}
        }
    }
}

/// How long to wait before servers are asked again that do not agree.
const AGREEMENT_WAIT: Duration = Duration::from_millis(500);
/// The same for servers that do agree, of which it cannot be told whether they are all. It costs them more to be asked that.
const PROCESSES_WAIT: Duration = Duration::from_secs(5);

/// Finds out which process each server is, where anything is going to be proven by what they say of themselves.
async fn identified(start: Start, reach: Reach, options: &MigrationOptions) -> Result<Start, String> {
    let is_proof =
        reach == Reach::EachServer && options.run.mode == WriteMode::Write && start.target.revision.is_none();
    let processes = if is_proof { Some(identify(&start.observation).await?) } else { None };
    Ok(Start { processes, ..start })
}

/// Looks whether a migration can begin. The CRD is read first: what the servers show is compared with it.
pub(super) async fn look(
    cluster: &Cluster,
    resource: &GroupResource,
    expected: Option<&MigrationTarget>,
    goal: Goal,
) -> Result<Result<Start, MigrationOutcome>, MigrationError> {
    let crd = crd::read(cluster.client(), resource).await.map_err(MigrationError::Crd)?;
    let observation = observe(cluster, Scope::Group(resource.group())).await.map_err(MigrationError::Observe)?;
    let observation = match goal {
        Goal::Version => observation,
        Goal::Key => observation.without_reports(),
    };
    if let Some(words) = observation.aggregated(resource) {
        return Ok(Err(MigrationOutcome::NotManaged(words)));
    }
    let Some(seen) = observation.resource(resource, crd.as_ref()) else {
        return Ok(Err(match crd {
            Some(_) => not_ready("no API server serves the resource, though it has a CRD".to_owned(), None),
            None if observation.is_complete() => MigrationOutcome::ResourceGone,
            None => not_ready("no API server that answers serves the resource".to_owned(), None),
        }));
    };
    // Where a server cannot be asked, it may be the one that tells.
    if crd.is_none() && observation.is_complete() && !observation.is_managed(resource, false) {
        return Ok(Err(MigrationOutcome::NotManaged(
            "its API servers do not say in which version they store it".to_owned(),
        )));
    }
    let agreed_since = observation.agreed_since(cluster, &seen, crd.as_ref());
    let (target, agreed_since) = match (target(&seen, expected), agreed_since) {
        (Ok(target), Some(since)) => (target, since),
        (Ok(_), None) => return Ok(Err(MigrationOutcome::NoAgreement(seen.disagreement().unwrap_or_default()))),
        (Err(outcome), _) => return Ok(Err(outcome)),
    };
    Ok(Ok(Start { observation, seen, crd, target, agreed_since, processes: None }))
}

pub(super) fn not_ready(words: String, continue_token: Option<String>) -> MigrationOutcome {
    MigrationOutcome::NotReady { words, continue_token }
}

fn target(seen: &ResourceObservation, expected: Option<&MigrationTarget>) -> Result<MigrationTarget, MigrationOutcome> {
    let Some(hash) = seen.agreed() else {
        return Err(MigrationOutcome::NoAgreement(seen.disagreement().unwrap_or_default()));
    };
    let found = MigrationTarget { hash: hash.clone(), revision: seen.revision.clone() };
    match expected {
        Some(expected) if *expected != found => Err(MigrationOutcome::AgreementChanged(changed(expected, &found))),
        _ => Ok(found),
    }
}

fn changed(from: &MigrationTarget, to: &MigrationTarget) -> String {
    let revision =
        |target: &MigrationTarget| target.revision.as_ref().map(|revision| format!(" at revision {revision}"));
    format!(
        "the API servers agreed on {}{}, and now on {}{}",
        from.hash,
        revision(from).unwrap_or_default(),
        to.hash,
        revision(to).unwrap_or_default()
    )
}
