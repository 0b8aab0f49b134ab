//! What `restow migrate` shows: a bar while it works, and what came of it.

use super::word;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use restow_agreement::migrate::key_rotation::{OldKey, RotatedResource, RotationScope, old_key};
use restow_api::GroupResource;
use restow_api::migration::MigrationFailure;
use restow_migrate::migration::{MigrationError, MigrationReport, Outcome};
use restow_migrate::runner::Progress;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::watch;

/// A bar with rate and time left. Where nobody looks, it draws nothing.
pub(super) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    pub(super) fn new(resource: &GroupResource, is_wanted: bool) -> Self {
        let target = if is_wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let template = "{prefix} {bar:30} {pos}/{len} {per_sec} {eta} left {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(resource.to_string());
        Bar { bar }
    }

    /// Shows what the channel says, until nobody says anything more.
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

/// What came of all resources.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    dry_run: bool,
    resources: Vec<Line>,
    /// What is known about an encryption key that is to be given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    old_key: Option<String>,
    #[serde(skip)]
    old_key_is_in_doubt: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    resource: GroupResource,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    seen: u64,
    rewritten: u64,
    failed: u64,
    /// Objects that were not reached, because one in front of them cannot be read.
    #[serde(skip_serializing_if = "is_zero")]
    unreached: u64,
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
    pub(super) fn new(dry_run: bool) -> Self {
        Summary { dry_run, resources: Vec::new(), old_key: None, old_key_is_in_doubt: false }
    }

    pub(super) fn add(
        &mut self,
        resource: GroupResource,
        report: Result<MigrationReport, MigrationError>,
        took: Duration,
    ) {
        let seconds = (took.as_secs_f64() * 1_000.0).round() / 1_000.0;
        let empty = Line {
            resource,
            outcome: "Error",
            message: None,
            seen: 0,
            rewritten: 0,
            failed: 0,
            unreached: 0,
            passes: 0,
            seconds,
            stored_versions: None,
            continue_token: None,
            failures: Vec::new(),
        };
        self.resources.push(match report {
            Err(error) => Line { message: Some(error.to_string()), ..empty },
            Ok(report) => Line::from_report(empty, report),
        });
    }

    pub(super) fn print_table(&self) {
        let width = self.resources.iter().map(|line| line.resource.to_string().len()).max().unwrap_or(0).max(8);
        println!(
            "{:width$}  {:17} {:>9} {:>9} {:>7} {:>9}",
            "RESOURCE", "RESULT", "OBJECTS", "REWRITTEN", "FAILED", "SECONDS"
        );
        for line in &self.resources {
            println!(
                "{:width$}  {:17} {:>9} {:>9} {:>7} {:>9.1}",
                line.resource.to_string(),
                line.outcome,
                line.seen,
                line.rewritten,
                line.failed,
                line.seconds
            );
        }
        for line in &self.resources {
            self.print_details(line);
        }
        if let Some(old_key) = &self.old_key {
            println!("{old_key}");
        }
    }

    fn print_details(&self, line: &Line) {
        if let Some(message) = &line.message {
            println!("{}: {message}", line.resource);
        }
        if let Some(versions) = &line.stored_versions {
            println!("{}: status.storedVersions is now {versions:?}", line.resource);
        }
        if let Some(token) = &line.continue_token {
            println!("{0}: go on with `restow migrate {0} --continue-from {token}`", line.resource);
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
                "{}: {} objects were not reached, because one in front of them cannot be read",
                line.resource, line.unreached
            );
        }
        if line.failed > 20 {
            println!("{}: {} more; see -o json", line.resource, line.failed - 20);
        }
    }

    /// Finds out what is known about an encryption key that is to be given up.
    pub(super) fn judge_the_old_key(&mut self, scope: RotationScope) {
        let rotated = |line: &Line| RotatedResource {
            resource: line.resource.to_string(),
            is_proven: line.outcome == SUCCEEDED,
            objects: line.seen,
            rewritten: line.rewritten,
        };
        let rotated: Vec<RotatedResource> = self.resources.iter().map(rotated).collect();
        let verdict = old_key(&rotated, scope);
        self.old_key_is_in_doubt = matches!(verdict, OldKey::Keep { .. } | OldKey::NothingRewritten);
        self.old_key = Some(about_the_old_key(&verdict));
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        let has = |outcomes: &[&str]| self.resources.iter().any(|line| outcomes.contains(&line.outcome));
        let has_failed = |line: &Line| line.failed > 0 || line.unreached > 0;
        if has(&["Stopped"]) {
            ExitCode::from(5)
        } else if has(&["Error"]) {
            ExitCode::FAILURE
        } else if has(&["SomeFailed", "NeverSettles"]) || self.resources.iter().any(has_failed) {
            ExitCode::from(3)
        } else if self.old_key_is_in_doubt || self.resources.iter().any(|line| !is_well(line.outcome)) {
            ExitCode::from(4)
        } else if has(&["Unproven"]) {
            ExitCode::from(6)
        } else {
            ExitCode::SUCCESS
        }
    }
}

/// The outcome of a migration that is proven.
const SUCCEEDED: &str = "Succeeded";

/// Whether an outcome is what was asked for: a proof, or what can be had of it.
fn is_well(outcome: &str) -> bool {
    [SUCCEEDED, "Unproven", "Asked"].contains(&outcome)
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn about_the_old_key(verdict: &OldKey) -> String {
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
             needs the old key. Backups of the store still do.{}",
            untouched(names)
        ),
        OldKey::OthersMayNeedIt { untouched: names } => {
            format!("Only the named resources were rewritten; others may still need the old key.{}", untouched(names))
        }
        OldKey::Keep { unproven } => {
            format!("Not everything is proven to be rewritten. Keep the old key. Not proven: {}.", unproven.join(", "))
        }
        OldKey::NothingRewritten => "Nothing was rewritten. Either everything was rewritten with the new key before, or no \
             API server uses the new key: it has to be the first one in the encryption configuration of every API server, \
             and each of them has to be restarted or to have reloaded it. Keep the old key."
            .to_owned(),
    }
}

impl Line {
    fn from_report(empty: Line, report: MigrationReport) -> Self {
        let outcome = word(&report.outcome);
        let (message, continue_token) = match report.outcome {
            Outcome::NoAgreement(words) | Outcome::AgreementChanged(words) | Outcome::DefinitionChanged(words) => {
                (Some(words), None)
            }
            Outcome::NeverSettles => {
                (Some("objects keep changing their stored version; does one API server store another?".into()), None)
            }
            Outcome::Unproven(words) => (Some(words), None),
            Outcome::ResourceGone => (Some("no API server serves it any more; nothing is proven".into()), None),
            Outcome::Stopped(token) => (None, token),
            Outcome::ServerSilent { words, continue_token }
            | Outcome::NotReady { words, continue_token }
            | Outcome::WebhookDown { words, continue_token } => (Some(words), continue_token),
            _ => (None, None),
        };
        let unreached = report.run.as_ref().and_then(|run| run.passes.last()).map_or(0, |pass| pass.unreached);
        let (passes, failures, progress) = match report.run {
            Some(run) => (run.passes.len(), run.failures, run.progress),
            None => (0, Vec::new(), Progress::default()),
        };
        Line {
            outcome,
            message,
            seen: progress.counts.seen,
            rewritten: progress.counts.rewritten,
            failed: progress.counts.failed,
            unreached,
            passes,
            stored_versions: report.trimmed_to,
            continue_token,
            failures,
            ..empty
        }
    }
}
