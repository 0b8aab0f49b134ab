//! The end of a migration: checks that the agreement still holds, and trims the stored versions.

use super::start::{Start, check_start};
use super::{MigrationError, MigrationOptions, MigrationOutcome, MigrationReport};
use crate::cluster::Cluster;
use crate::crd::{self, Crd};
use crate::mark::MOST_CONFLICTS;
use crate::processes::identify;
use crate::request::RequestError;
use crate::step::MigrationStep;
use restow_api::GroupResource;
use restow_rules::migrate::stored_versions::{Trim, trim};

/// Checks whether the agreement still holds, and trims the stored versions if it does.
pub(super) async fn confirm(
    cluster: &Cluster,
    resource: &GroupResource,
    start: &Start,
    options: &MigrationOptions,
    mut report: MigrationReport,
) -> Result<MigrationReport, MigrationError> {
    let end = match check_start(cluster, resource, Some(&start.target), options.goal).await? {
        Ok(end) => end,
        Err(MigrationOutcome::NoAgreement(words)) => {
            report.outcome = MigrationOutcome::AgreementChanged(words);
            return Ok(report);
        }
        Err(outcome) => {
            report.outcome = outcome;
            return Ok(report);
        }
    };
    // A server that joined or was restarted has not processed any object. With fenced reports this is not needed: the
    // revision of the agreement would have changed.
    let change = match &start.target.revision {
        None => end.observation.servers.change_since(&start.observation.servers),
        Some(_) => None,
    };
    // It is not known which of the aggregated servers processed an object, and one that does not report may have been added.
    if let Some(words) = change.or_else(|| end.seen.change_since(&start.seen)) {
        report.outcome =
            MigrationOutcome::AgreementChanged(format!("{words} while objects were rewritten; run it again"));
        return Ok(report);
    }
    if let Some(before) = &start.processes {
        let change = match identify(&end.observation).await {
            Ok(now) => now.change_since(before),
            Err(words) => Some(words),
        };
        if let Some(words) = change {
            report.outcome =
                MigrationOutcome::AgreementChanged(format!("{words} while objects were rewritten; run it again"));
            return Ok(report);
        }
    }
    MigrationStep::Confirmed.log(resource);
    let Some(crd) = &start.crd else { return Ok(report) };
    trim_stored_versions(cluster, resource, crd, &mut report).await?;
    MigrationStep::Trimmed.log(resource);
    Ok(report)
}

async fn trim_stored_versions(
    cluster: &Cluster,
    resource: &GroupResource,
    start: &Crd,
    report: &mut MigrationReport,
) -> Result<(), MigrationError> {
    // Others write the CRD's status too. After a conflict, read and decide again.
    for _ in 0..MOST_CONFLICTS {
        let end = crd::read(cluster.client(), resource).await.map_err(MigrationError::Crd)?;
        let Some(end) = end else {
            report.outcome = MigrationOutcome::ResourceGone;
            return Ok(());
        };
        match trim(&crd::view(start), &crd::view(&end)) {
            Trim::Nothing => return Ok(()),
            Trim::Changed(words) => {
                report.outcome = MigrationOutcome::CrdChanged(words);
                return Ok(());
            }
            Trim::To(versions) => match crd::set_stored_versions(cluster.client(), &end, &versions).await {
                Ok(_) => {
                    report.trimmed_to = Some(versions);
                    return Ok(());
                }
                Err(failure) if failure.code == 409 => {}
                Err(failure) => return Err(MigrationError::Crd(failure)),
            },
        }
    }
    Err(MigrationError::Crd(RequestError {
        code: 409,
        message: "someone else keeps writing it".to_owned(),
        ..RequestError::default()
    }))
}
