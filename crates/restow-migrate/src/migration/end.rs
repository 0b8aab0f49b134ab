//! How a migration ends: what it relied on still holds, so that the stored versions may be trimmed.

use super::start::{Start, look};
use super::step::MigrationStep;
use super::{MigrationError, MigrationOptions, MigrationReport, Outcome};
use crate::cluster::Cluster;
use crate::definition::{self, Definition};
use crate::exchange::Failure;
use crate::mark::MOST_CONFLICTS;
use crate::processes::identify;
use restow_api::GroupResource;
use restow_rules::migrate::stored_versions::{Trim, trim};

/// Looks whether what the rewriting relied on still holds, and trims the stored versions if it does.
pub(super) async fn confirm(
    cluster: &Cluster,
    resource: &GroupResource,
    start: &Start,
    options: &MigrationOptions,
    mut report: MigrationReport,
) -> Result<MigrationReport, MigrationError> {
    let end = match look(cluster, resource, Some(&start.target), options.goal).await? {
        Ok(end) => end,
        Err(Outcome::NoAgreement(words)) => {
            report.outcome = Outcome::AgreementChanged(words);
            return Ok(report);
        }
        Err(outcome) => {
            report.outcome = outcome;
            return Ok(report);
        }
    };
    // A server that came or was started anew since was not asked about any object. One that reports before it writes, under
    // a fence, need not be: then the revision of the agreement would have changed.
    let change = end.observation.servers.change_since(&start.observation.servers);
    if let (Some(words), None) = (change, &start.target.revision) {
        report.outcome = Outcome::AgreementChanged(format!("{words} while objects were rewritten; run it again"));
        return Ok(report);
    }
    if let Some(before) = &start.processes {
        let change = match identify(&end.observation).await {
            Ok(now) => now.change_since(before),
            Err(words) => Some(words),
        };
        if let Some(words) = change {
            report.outcome = Outcome::AgreementChanged(format!("{words} while objects were rewritten; run it again"));
            return Ok(report);
        }
    }
    MigrationStep::Confirmed.log(resource);
    let Some(definition) = &start.definition else { return Ok(report) };
    trim_stored_versions(cluster, resource, definition, &mut report).await?;
    MigrationStep::Trimmed.log(resource);
    Ok(report)
}

async fn trim_stored_versions(
    cluster: &Cluster,
    resource: &GroupResource,
    start: &Definition,
    report: &mut MigrationReport,
) -> Result<(), MigrationError> {
    // Others write the definition's status too. Each refusal means: look again, and decide again.
    for _ in 0..MOST_CONFLICTS {
        let end = definition::read(cluster.client(), resource).await.map_err(MigrationError::Definition)?;
        let Some(end) = end else {
            report.outcome = Outcome::ResourceGone;
            return Ok(());
        };
        match trim(&definition::view(start), &definition::view(&end)) {
            Trim::Nothing => return Ok(()),
            Trim::Changed(words) => {
                report.outcome = Outcome::DefinitionChanged(words);
                return Ok(());
            }
            Trim::To(versions) => match definition::set_stored_versions(cluster.client(), &end, &versions).await {
                Ok(_) => {
                    report.trimmed_to = Some(versions);
                    return Ok(());
                }
                Err(failure) if failure.code == 409 => {}
                Err(failure) => return Err(MigrationError::Definition(failure)),
            },
        }
    }
    Err(MigrationError::Definition(Failure {
        code: 409,
        message: "someone else keeps writing it".to_owned(),
        ..Failure::default()
    }))
}
