//! One migration, undisturbed and disturbed.

use crate::fixture::{Fixture, cluster};
use kube::api::{DeleteParams, Patch, PatchParams};
use restow_migrate::api_servers::{Scope, observe};
use restow_migrate::migration::{
    MigrationChannels, MigrationError, MigrationOptions, MigrationOutcome, MigrationReport, migrate,
};
use restow_migrate::runner::{Progress, RewriteMethod, RunControl, RunOptions, WriteMode};
use restow_migrate::step::{MigrationStep, TARGET};
use restow_rules::migrate::marks::{Holder, HolderKind};
use restow_rules::migrate::pacer::PacerLimits;
use restow_testkit::{LogEvent, abort_at, eventually, output, test_in_a_process};
use serde_json::json;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;
use tokio::sync::watch;

async fn run(fixture: &Fixture, options: MigrationOptions) -> Result<MigrationReport, MigrationError> {
    let (_order, control) = watch::channel(RunControl::Run);
    let (progress, _seen) = watch::channel(Progress::default());
    migrate(&fixture.cluster, &fixture.resource, options, MigrationChannels { control, progress: &progress }).await
}

/// Flips the storage version, and waits until discovery shows it.
async fn flip(fixture: &Fixture) {
    let hash = async || {
        let seen = observe(&fixture.cluster, Scope::Resources(&[&fixture.resource])).await.unwrap();
        seen.resource(&fixture.resource, None).and_then(|seen| seen.agreed().cloned())
    };
    let before = hash().await;
    fixture.store_in("v2").await;
    eventually("discovery shows the new storage version", async || {
        let now = hash().await;
        now.is_some() && now != before
    })
    .await;
}

#[tokio::test]
async fn everything_is_rewritten_and_the_stored_versions_are_trimmed() {
    let Some(fixture) = Fixture::new("plains", 120).await else { return };
    flip(&fixture).await;
    assert_eq!(fixture.stored_versions().await, ["v1", "v2"]);
    let options = RunOptions { page_size: 50, ..RunOptions::default() };
    let report = run(&fixture, MigrationOptions { run: options, ..MigrationOptions::default() }).await.unwrap();
    assert_eq!(report.outcome, MigrationOutcome::Succeeded);
    let done = report.run.unwrap();
    assert_eq!((done.progress.counts.seen, done.progress.counts.rewritten), (120, 120));
    assert!(done.passes.last().unwrap().is_clean());
    assert_eq!(fixture.stored_versions().await, ["v2"]);
    assert!(!fixture.is_marked().await);
    assert_eq!(fixture.numbers().await, (0..120).collect::<Vec<u64>>());

    let again = run(&fixture, MigrationOptions::default()).await.unwrap();
    assert_eq!(again.run.unwrap().progress.counts.rewritten, 0, "what is current stays as it is");
    fixture.remove().await;
}

#[tokio::test]
async fn a_migration_can_rewrite_objects_with_put() {
    let Some(fixture) = Fixture::new("puts", 20).await else { return };
    flip(&fixture).await;
    let options = RunOptions { method: RewriteMethod::Put, ..RunOptions::default() };
    let report = run(&fixture, MigrationOptions { run: options, ..MigrationOptions::default() }).await.unwrap();
    assert_eq!(report.outcome, MigrationOutcome::Succeeded);
    assert_eq!(report.run.unwrap().progress.counts.rewritten, 20);
    fixture.remove().await;
}

#[tokio::test]
async fn a_dry_run_of_a_migration_writes_nothing() {
    let Some(fixture) = Fixture::new("asks", 10).await else { return };
    flip(&fixture).await;
    let options = RunOptions { mode: WriteMode::DryRun, ..RunOptions::default() };
    let report = run(&fixture, MigrationOptions { run: options, ..MigrationOptions::default() }).await.unwrap();
    assert_eq!(report.outcome, MigrationOutcome::DryRunDone);
    assert_eq!(fixture.stored_versions().await, ["v1", "v2"]);
    let after = run(&fixture, MigrationOptions::default()).await.unwrap();
    assert_eq!(after.run.unwrap().progress.counts.rewritten, 10, "nothing had been rewritten before");
    fixture.remove().await;
}

#[tokio::test]
async fn concurrent_creates_updates_and_deletes_are_kept() {
    let Some(fixture) = Fixture::new("busies", 200).await else { return };
    flip(&fixture).await;
    let busy = async {
        for number in 0..60 {
            let (api, name) = (fixture.api("v1"), format!("object-{number}"));
            if number % 3 == 0 {
                api.delete(&name, &DeleteParams::default()).await.unwrap();
            } else {
                let patch = json!({"spec": {"number": number + 1_000}});
                api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
            }
            if number % 5 == 0 {
                fixture.create(2_000 + number..2_001 + number).await;
            }
        }
    };
    let limits = PacerLimits { first: 2, ceiling: 4, ..PacerLimits::default() };
    let options = RunOptions { pacer: limits, page_size: 20, ..RunOptions::default() };
    let (report, ()) =
        tokio::join!(run(&fixture, MigrationOptions { run: options, ..MigrationOptions::default() }), busy);
    assert_eq!(report.unwrap().outcome, MigrationOutcome::Succeeded);
    let mut expected: Vec<u64> = (60..200).collect();
    expected.extend((0..60).filter(|number| number % 3 != 0).map(|number| number + 1_000));
    expected.extend((0..60).filter(|number| number % 5 == 0).map(|number| number + 2_000));
    expected.sort_unstable();
    assert_eq!(fixture.numbers().await, expected);
    fixture.remove().await;
}

/// The steps that `restow migrate` and the controller have in common, in order.
const STEPS: [MigrationStep; 7] = [
    MigrationStep::Agreed,
    MigrationStep::Marked,
    MigrationStep::HalfRewritten,
    MigrationStep::Rewritten,
    MigrationStep::Confirmed,
    MigrationStep::Trimmed,
    MigrationStep::Unmarked,
];
/// The step at which the process of a migration aborts, and the resource that it migrates.
const STEP_VARIABLE: &str = "RESTOW_TEST_ABORT_AT_STEP";
const RESOURCE_VARIABLE: &str = "RESTOW_TEST_ABORT_RESOURCE";
const SIGABRT: i32 = 6;

/// All have the same holder: a migration waits for the mark of another holder until it was not renewed for a minute.
fn interrupted_options() -> MigrationOptions {
    MigrationOptions {
        holder: Some(Holder::new(HolderKind::Command, "the-same")),
        settling_time: Duration::from_secs(5),
        agreement_timeout: Duration::from_secs(60),
        ..MigrationOptions::default()
    }
}

#[tokio::test]
async fn the_next_migration_completes_one_that_crashed_at_any_step() {
    for (number, step) in STEPS.into_iter().enumerate() {
        let Some(fixture) = Fixture::new(&format!("deaths{number}"), 12).await else { return };
        flip(&fixture).await;
        let crashed = output(
            test_in_a_process("migration::migration_process_that_aborts_at_a_step")
                .env(STEP_VARIABLE, format!("{step:?}"))
                .env(RESOURCE_VARIABLE, fixture.resource.to_string()),
        );
        assert_eq!(crashed.status.signal(), Some(SIGABRT), "{step:?}: {crashed:?}");
        let trimmed = matches!(step, MigrationStep::Trimmed | MigrationStep::Unmarked);
        let stored = fixture.stored_versions().await;
        assert_eq!(stored.len(), if trimmed { 1 } else { 2 }, "after {step:?}");
        let report = run(&fixture, interrupted_options()).await.unwrap();
        assert_eq!(report.outcome, MigrationOutcome::Succeeded, "after {step:?}");
        assert_eq!(fixture.stored_versions().await, ["v2"]);
        assert!(!fixture.is_marked().await, "after {step:?}");
        fixture.remove().await;
    }
}

/// The process that the test above starts. It does nothing if the variables are not set.
#[tokio::test]
async fn migration_process_that_aborts_at_a_step() {
    let (Ok(step), Ok(resource)) = (std::env::var(STEP_VARIABLE), std::env::var(RESOURCE_VARIABLE)) else { return };
    abort_at(LogEvent { target: TARGET, field: "step", value: step });
    let (_order, control) = watch::channel(RunControl::Run);
    let (progress, _seen) = watch::channel(Progress::default());
    let (cluster, resource) = (cluster().await.unwrap(), resource.parse().unwrap());
    let channels = MigrationChannels { control, progress: &progress };
    migrate(&cluster, &resource, interrupted_options(), channels).await.unwrap();
}

#[tokio::test]
async fn a_crd_that_changes_during_its_migration_keeps_its_stored_versions() {
    let Some(fixture) = Fixture::new("changes", 150).await else { return };
    flip(&fixture).await;
    let (command, control) = watch::channel(RunControl::Pause);
    let (progress, _seen) = watch::channel(Progress::default());
    let channels = MigrationChannels { control, progress: &progress };
    let change = async {
        eventually("the CRD is marked", async || fixture.is_marked().await).await;
        fixture.rename().await;
        command.send_replace(RunControl::Run);
    };
    let migration = migrate(&fixture.cluster, &fixture.resource, MigrationOptions::default(), channels);
    let (report, ()) = tokio::join!(migration, change);
    let outcome = report.unwrap().outcome;
    assert!(matches!(outcome, MigrationOutcome::CrdChanged(_)), "{outcome:?}");
    assert_eq!(fixture.stored_versions().await, ["v1", "v2"]);
    assert!(!fixture.is_marked().await);
    fixture.remove().await;
}

#[tokio::test]
async fn a_resource_that_is_deleted_ends_its_migration() {
    let Some(fixture) = Fixture::new("goers", 30).await else { return };
    flip(&fixture).await;
    let (command, control) = watch::channel(RunControl::Pause);
    let (progress, _seen) = watch::channel(Progress::default());
    let channels = MigrationChannels { control, progress: &progress };
    let go = async {
        eventually("the CRD is marked", async || fixture.is_marked().await).await;
        fixture.remove().await;
        command.send_replace(RunControl::Run);
    };
    let migration = migrate(&fixture.cluster, &fixture.resource, MigrationOptions::default(), channels);
    let (report, ()) = tokio::join!(migration, go);
    assert_eq!(report.unwrap().outcome, MigrationOutcome::ResourceGone);
}
