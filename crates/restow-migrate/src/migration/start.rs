//! The start of a migration: all API servers have to store the storage version of the CRD.

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

/// What a migration starts with: all API servers store the storage version of the CRD.
pub(super) struct Start {
    pub(super) observation: Observation,
    pub(super) seen: ResourceObservation,
    pub(super) crd: Option<Crd>,
    pub(super) target: MigrationTarget,
    /// Since when they agree.
    pub(super) agreed_since: Instant,
    /// The process of each server. `None` for servers that report before they write, under a fence.
    pub(super) processes: Option<Processes>,
}

/// Waits for the agreement until the timeout, or until the migration is stopped.
pub(super) async fn begin(
    cluster: &Cluster,
    resource: &GroupResource,
    options: &MigrationOptions,
    channels: &mut MigrationChannels<'_>,
) -> Result<Result<Start, MigrationOutcome>, MigrationError> {
    let began = Instant::now();
    loop {
        let (outcome, wait) = match check_start(cluster, resource, options.expected.as_ref(), options.goal).await? {
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
            // If the sender is dropped, the last value stays in force.
            if channels.control.wait_for(|command| *command == RunControl::Stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = tokio::time::sleep(wait) => {}
            () = stopped => {}
        }
    }
}

/// The delay before servers that disagree are queried again.
const AGREEMENT_WAIT: Duration = Duration::from_millis(500);
/// The delay if the servers agree and it is unknown whether these are all. This query costs them more.
const PROCESSES_WAIT: Duration = Duration::from_secs(5);

/// Identifies the process of each server, if discovery documents are going to prove something.
async fn identified(start: Start, reach: Reach, options: &MigrationOptions) -> Result<Start, String> {
    let is_proof =
        reach == Reach::EachServer && options.run.mode == WriteMode::Write && start.target.revision.is_none();
    let processes = if is_proof { Some(identify(&start.observation).await?) } else { None };
    Ok(Start { processes, ..start })
}

/// Checks whether a migration can start. Reads the CRD first, because the servers are compared with it.
pub(super) async fn check_start(
    cluster: &Cluster,
    resource: &GroupResource,
    expected: Option<&MigrationTarget>,
    goal: Goal,
) -> Result<Result<Start, MigrationOutcome>, MigrationError> {
    let crd = crd::read(cluster.client(), resource).await.map_err(MigrationError::Crd)?;
    let observation = observe(cluster, Scope::Resources(&[resource])).await.map_err(MigrationError::Observe)?;
    let observation = match goal {
        Goal::Version => observation,
        Goal::Key => observation.without_reports(),
    };
    if let (Some(described), Some(words)) =
        (observation.aggregated(resource), observation.not_managed_because(resource, crd.is_some()))
    {
        return Ok(Err(MigrationOutcome::NotManaged(match goal {
            Goal::Version => words,
            Goal::Key => {
                format!("{described}, and what the API servers behind it report says nothing about their keys")
            }
        })));
    }
    let Some(seen) = observation.resource(resource, crd.as_ref()) else {
        return Ok(Err(match crd {
            Some(_) => not_ready("no API server serves the resource, though it has a CRD".to_owned(), None),
            None if observation.is_complete() => MigrationOutcome::ResourceGone,
            None => not_ready("no API server that answers serves the resource".to_owned(), None),
        }));
    };
    // A server that cannot be queried may publish the storage version.
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

#[cfg(test)]
mod tests {
    use super::*;
    use restow_api::{ResourceVersion, StorageVersionHash};

    #[test]
    fn another_agreement_is_told_with_its_revision() {
        let target = |hash: &str, revision: Option<&str>| MigrationTarget {
            hash: StorageVersionHash::new(hash),
            revision: revision.map(ResourceVersion::new),
        };
        for (from, to, expected) in [
            (target("a", None), target("b", None), "the API servers agreed on a, and now on b"),
            (
                target("a", Some("7")),
                target("a", Some("9")),
                "the API servers agreed on a at revision 7, and now on a at revision 9",
            ),
        ] {
            assert_eq!(changed(&from, &to), expected);
        }
    }
}
