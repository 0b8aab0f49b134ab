//! The output of `restow migrate`: a progress bar, and the results.

use super::outcome_name;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use restow_api::GroupResource;
use restow_api::migration::MigrationFailure;
use restow_migrate::migration::{MigrationError, MigrationOutcome, MigrationReport};
use restow_migrate::runner::{Progress, RunError};
use restow_rules::migrate::key_rotation::{OldKey, RotatedResource, RotationScope, old_key};
use serde::Serialize;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::watch;

/// A progress bar with rate and remaining time. It is hidden if the output is not for people.
pub(super) struct ProgressDisplay {
    bar: ProgressBar,
}

impl ProgressDisplay {
    pub(super) fn new(resource: &GroupResource, is_wanted: bool) -> Self {
        let target = if is_wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let template = "{prefix} {bar:30} {human_pos}/{human_len} {rate} {eta} left {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.with_key("rate", |state: &ProgressState, text: &mut dyn fmt::Write| {
                // A rate that cannot be written is not shown.
                let _ = text.write_str(&rate_text(state.per_sec()));
            }));
        }
        bar.set_prefix(resource.to_string());
        ProgressDisplay { bar }
    }

    /// Shows the progress from the channel until it is closed.
    pub(super) fn follow(&self, mut seen: watch::Receiver<Progress>) {
        let bar = self.bar.clone();
        tokio::spawn(async move {
            while seen.changed().await.is_ok() {
                let progress = seen.borrow_and_update().clone();
                bar.set_length(progress.total_in_pass);
                bar.set_position(progress.done_in_pass);
                let pass = if progress.pass > 1 { "checking" } else { "" };
                bar.set_message(progress.waiting.unwrap_or_else(|| pass.to_owned()));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Objects per second, as a whole number with separators of thousands.
fn rate_text(per_second: f64) -> String {
    format!("{}/s", HumanCount(per_second.round() as u64))
}

/// The result of all resources.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    dry_run: bool,
    resources: Vec<ResourceResult>,
    /// What is known about the old encryption key.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_key: Option<String>,
    #[serde(skip)]
    old_key_is_in_doubt: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceResult {
    /// The resource, or a group version whose resources are unknown.
    resource: String,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    seen: u64,
    rewritten: u64,
    failed: u64,
    /// Objects that were not reached, because one before them cannot be read.
    #[serde(skip_serializing_if = "is_zero")]
    unreached: u64,
    /// Objects that nobody has written since the start.
    #[serde(skip_serializing_if = "is_zero")]
    unwritten: u64,
    passes: usize,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_versions: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    continue_token: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failures: Vec<MigrationFailure>,
}

impl Summary {
    /// The summary before the start. A resource without a result was not started.
    pub(super) fn new(dry_run: bool, selected: &[GroupResource]) -> Self {
        let resources = selected.iter().map(ResourceResult::not_begun).collect();
        Summary { dry_run, resources, old_key: None, old_key_is_in_doubt: false }
    }

    /// Records the result of one resource.
    pub(super) fn record(
        &mut self,
        resource: &GroupResource,
        report: Result<MigrationReport, MigrationError>,
        took: Duration,
    ) {
        let seconds = (took.as_secs_f64() * 1_000.0).round() / 1_000.0;
        let empty = ResourceResult { seconds, message: None, ..ResourceResult::not_begun(resource) };
        let line = match report {
            Err(error @ MigrationError::Run(RunError::NoDryRun(_))) => {
                ResourceResult { outcome: UNKNOWN, message: Some(error.to_string()), ..empty }
            }
            Err(error) => ResourceResult { outcome: "Error", message: Some(error.to_string()), ..empty },
            Ok(report) => ResourceResult::from_report(empty, report),
        };
        match self.resources.iter_mut().find(|known| known.resource == line.resource) {
            Some(known) => *known = line,
            None => self.resources.push(line),
        }
    }

    /// Records a group version whose discovery document could not be read, so that none of its resources was migrated.
    pub(super) fn record_unread(&mut self, version: &str, why: &str) {
        let message = format!("its resources are unknown, and none was migrated: {why}");
        let resource = format!("*.{version}");
        self.resources.push(ResourceResult {
            resource,
            outcome: UNKNOWN,
            message: Some(message),
            ..ResourceResult::empty()
        });
    }

    pub(super) fn print_table(&self) {
        let width = self.resources.iter().map(|line| line.resource.len()).max().unwrap_or(0).max(8);
        println!(
            "{:width$}  {:17} {:>9} {:>9} {:>7} {:>9}",
            "RESOURCE", "RESULT", "OBJECTS", "REWRITTEN", "FAILED", "SECONDS"
        );
        for line in &self.resources {
            println!(
                "{:width$}  {:17} {:>9} {:>9} {:>7} {:>9.1}",
                line.resource, line.outcome, line.seen, line.rewritten, line.failed, line.seconds
            );
        }
        for line in &self.resources {
            self.print_details(line);
        }
        if let Some(old_key) = &self.old_key {
            println!("{old_key}");
        }
    }

    fn print_details(&self, line: &ResourceResult) {
        if let Some(message) = &line.message {
            println!("{}: {message}", line.resource);
        }
        if let Some(versions) = &line.stored_versions {
            println!("{}: status.storedVersions is now {versions:?}", line.resource);
        }
        if let Some(token) = &line.continue_token {
            println!("{0}: continue with `restow migrate {0} --continue-from {token}`", line.resource);
        }
        for failure in line.failures.iter().take(20) {
            let namespace = if failure.namespace.is_empty() { "" } else { "/" };
            println!(
                "{} {}{namespace}{}: {} {}: {}",
                line.resource, failure.namespace, failure.name, failure.code, failure.reason, failure.message
            );
        }
        if line.unreached > 0 {
            println!(
                "{}: {} objects were not reached, because one before them cannot be read",
                line.resource, line.unreached
            );
        }
        if line.failed > 20 {
            println!("{}: {} more; see -o json", line.resource, line.failed - 20);
        }
    }

    /// Evaluates whether the old encryption key is still needed.
    pub(super) fn evaluate_old_key(&mut self, scope: RotationScope) {
        let rotated = |line: &ResourceResult| RotatedResource {
            resource: line.resource.clone(),
            is_proven: line.outcome == SUCCEEDED,
            objects: line.seen,
            rewritten: line.rewritten,
            unwritten: line.unwritten,
        };
        let rotated: Vec<RotatedResource> = self.resources.iter().map(rotated).collect();
        let verdict = old_key(&rotated, scope);
        self.old_key_is_in_doubt = !matches!(verdict, OldKey::NotNeeded { .. } | OldKey::OthersMayNeedIt { .. });
        self.old_key = Some(old_key_text(&verdict));
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    fn code(&self) -> u8 {
        let has = |outcomes: &[&str]| self.resources.iter().any(|line| outcomes.contains(&line.outcome));
        let has_failed = |line: &ResourceResult| line.failed > 0 || line.unreached > 0;
        if has(&[STOPPED]) {
            5
        } else if has(&["Error"]) {
            1
        } else if has(&["SomeFailed", "NeverSettles"]) || self.resources.iter().any(has_failed) {
            3
        } else if self.old_key_is_in_doubt || self.resources.iter().any(|line| !is_success(line.outcome)) {
            4
        } else if has(&["Unproven"]) {
            6
        } else {
            0
        }
    }
}

/// The outcome of a proven migration.
const SUCCEEDED: &str = "Succeeded";
/// The outcome if nothing is known.
const UNKNOWN: &str = "NotTold";
/// The outcome of a migration that was stopped, perhaps before its start.
const STOPPED: &str = "Stopped";

/// Whether an outcome is a success: proven, or the best that the options allow.
fn is_success(outcome: &str) -> bool {
    [SUCCEEDED, "Unproven", "Asked"].contains(&outcome)
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn old_key_text(verdict: &OldKey) -> String {
    let untouched = |names: &[String]| match names.len() {
        0 => String::new(),
        count => format!(
            " In {count} resources no object had to be rewritten ({}): if the encryption configuration covers one of \
             them, keep the old key.",
            names.join(", ")
        ),
    };
    match verdict {
        OldKey::NotNeeded { untouched: names } => format!(
            "Objects were rewritten, and a last pass through every API server found nothing to rewrite. No current object \
             needs the old key, if every API server had the new one first in its encryption configuration when this began. \
             Backups of the store still need it, and so may what is stored and is no object: an API server's records below \
             /registry/ranges, where the configuration covers everything (\"*.*\").{}",
            untouched(names)
        ),
        OldKey::OthersMayNeedIt { untouched: names } => {
            format!("Only the named resources were rewritten; others may still need the old key.{}", untouched(names))
        }
        OldKey::Keep { unproven } => {
            format!("Not everything is proven to be rewritten. Keep the old key. Not proven: {}.", unproven.join(", "))
        }
        OldKey::Partly { left_alone } => {
            let counts = left_alone.iter().map(|(name, left, all)| format!("{left} of {all} {name}"));
            format!(
                "Some objects were rewritten, and others of the same resource were left alone, which nobody has written \
                 since this began: {}. Either these were written with the new key before, or no API server uses the new \
                 key, and what was rewritten was older still. Keep the old key until that is clear: `restow verify \
                 --etcd-endpoints …` shows which keys are in the store.",
                counts.collect::<Vec<_>>().join(", ")
            )
        }
        OldKey::NothingRewritten => "Nothing was rewritten. Either everything was rewritten with the new key before, or no \
             API server uses the new key: it has to be the first one in the encryption configuration of every API server, \
             and each of them has to be restarted or to have reloaded it. Keep the old key."
            .to_owned(),
    }
}

impl ResourceResult {
    fn not_begun(resource: &GroupResource) -> Self {
        let message = Some("stopped before its start".to_owned());
        ResourceResult { resource: resource.to_string(), message, ..ResourceResult::empty() }
    }

    fn empty() -> Self {
        ResourceResult {
            resource: String::new(),
            outcome: STOPPED,
            message: None,
            seen: 0,
            rewritten: 0,
            failed: 0,
            unreached: 0,
            unwritten: 0,
            passes: 0,
            seconds: 0.0,
            stored_versions: None,
            continue_token: None,
            failures: Vec::new(),
        }
    }

    fn from_report(empty: ResourceResult, report: MigrationReport) -> Self {
        let outcome = outcome_name(&report.outcome);
        let (message, continue_token) = match report.outcome {
            MigrationOutcome::NoAgreement(words)
            | MigrationOutcome::AgreementChanged(words)
            | MigrationOutcome::CrdChanged(words) => (Some(words), None),
            MigrationOutcome::NeverSettles => {
                (Some("objects keep changing their stored version; does one API server store another?".into()), None)
            }
            MigrationOutcome::Unproven(words) | MigrationOutcome::NotManaged(words) => (Some(words), None),
            MigrationOutcome::ResourceGone => {
                (Some("no API server serves it any more; nothing is proven".into()), None)
            }
            MigrationOutcome::Stopped(token) => (None, token),
            MigrationOutcome::ServerUnresponsive { words, continue_token }
            | MigrationOutcome::NotReady { words, continue_token }
            | MigrationOutcome::WebhookDown { words, continue_token }
            | MigrationOutcome::Overloaded { words, continue_token } => (Some(words), continue_token),
            _ => (None, None),
        };
        let last = report.run.as_ref().and_then(|run| run.passes.last()).copied().unwrap_or_default();
        let (passes, failures, progress) = match report.run {
            Some(run) => (run.passes.len(), run.failures, run.progress),
            None => (0, Vec::new(), Progress::default()),
        };
        ResourceResult {
            outcome,
            message,
            seen: progress.counts.seen,
            rewritten: progress.counts.rewritten,
            failed: progress.counts.failed,
            unreached: last.unreached,
            unwritten: last.unwritten,
            passes,
            stored_versions: report.trimmed_to,
            continue_token,
            failures,
            ..empty
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(outcome: MigrationOutcome) -> Result<MigrationReport, MigrationError> {
        Ok(MigrationReport { target: None, outcome, run: None, trimmed_to: None, crd_generation: 0 })
    }

    #[test]
    fn a_rate_is_a_whole_number_with_separators() {
        assert_eq!(rate_text(5045.1376), "5,045/s");
        assert_eq!(rate_text(0.4), "0/s");
        assert_eq!(rate_text(1_234_567.8), "1,234,568/s");
    }

    #[test]
    fn what_was_intended_and_not_begun_is_neither_done_nor_proven() {
        let selected: Vec<GroupResource> =
            ["secrets", "configmaps"].map(|name| name.parse::<GroupResource>().unwrap()).to_vec();
        let mut summary = Summary::new(false, &selected);
        summary.record(&selected[0], ended(MigrationOutcome::Succeeded), Duration::ZERO);
        summary.evaluate_old_key(RotationScope::Everything);
        assert_eq!(summary.code(), 5);
        let words = summary.old_key.clone().unwrap();
        assert!(words.contains("Keep the old key") && words.contains("configmaps"), "{words}");
        summary.record(&selected[1], ended(MigrationOutcome::Succeeded), Duration::ZERO);
        summary.old_key_is_in_doubt = false;
        assert_eq!((summary.code(), summary.resources.len()), (0, 2));
    }

    #[test]
    fn a_group_of_which_nobody_says_what_it_has_is_neither_done_nor_proven() {
        let secrets: GroupResource = "secrets".parse().unwrap();
        let mut summary = Summary::new(false, std::slice::from_ref(&secrets));
        summary.record_unread("example.com/v1", "503: down");
        summary.record(&secrets, ended(MigrationOutcome::Succeeded), Duration::ZERO);
        assert_eq!(summary.code(), 4);
        summary.evaluate_old_key(RotationScope::Everything);
        let words = summary.old_key.clone().unwrap();
        assert!(words.contains("Keep the old key") && words.contains("*.example.com/v1"), "{words}");
    }
}
