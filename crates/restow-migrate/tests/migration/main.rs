//! Whole migrations on a simulated cluster: when `status.storedVersions` is trimmed, and when nothing is proven.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod aggregated;
mod cluster;
mod identity;
mod mark;
mod reports;
mod servers;

use cluster::{Event, NAME, Shared, State, cluster, state};
use restow_migrate::cluster::Reach;
use restow_migrate::migration::{MigrationChannels, MigrationOptions, MigrationOutcome, MigrationReport, migrate};
use restow_migrate::runner::{Progress, RunControl};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

fn shared(state: State) -> Shared {
    Arc::new(Mutex::new(state))
}

async fn run(state: &Shared, reach: Reach, options: MigrationOptions) -> MigrationReport {
    let (_order, control) = watch::channel(RunControl::Run);
    let (progress, _seen) = watch::channel(Progress::default());
    let channels = MigrationChannels { control, progress: &progress };
    migrate(&cluster(state).reached_by(reach), &NAME.parse().unwrap(), options, channels).await.unwrap()
}

/// A server that reports v2 before it writes it, under a fence.
fn fenced() -> State {
    State { reports: Some(vec![("apiserver-a", "v2")]), is_fenced: true, ..state() }
}

async fn migrated(state: &Shared) -> MigrationOutcome {
    run(state, Reach::EachServer, MigrationOptions::default()).await.outcome
}

/// Checks that nothing is proven: the stored versions stay, and no mark is left.
fn assert_nothing_is_proven(state: &Shared) {
    let state = state.lock().unwrap();
    assert_eq!(state.stored_versions(), ["v1", "v2"]);
    let marks = state.crd.as_ref().map(|crd| crd.annotations.clone()).unwrap_or_default();
    assert!(marks.as_object().is_none_or(|marks| marks.values().all(serde_json::Value::is_null)), "{marks}");
}

/// Checks that there is no agreement, and that the reason has these words.
async fn check_no_agreement(state: State, words: &str) {
    let state = shared(state);
    match migrated(&state).await {
        MigrationOutcome::NoAgreement(said) => assert!(said.contains(words), "{said:?} lacks {words:?}"),
        other => panic!("{other:?}, though {words:?}"),
    }
    assert_nothing_is_proven(&state);
    assert_eq!(state.lock().unwrap().old(), 30, "nothing was written");
}

#[tokio::test(start_paused = true)]
async fn an_agreed_version_is_proven_and_stored_versions_are_trimmed() {
    let state = shared(state());
    let report = run(&state, Reach::EachServer, MigrationOptions::default()).await;
    assert_eq!(report.outcome, MigrationOutcome::Succeeded);
    assert_eq!(report.trimmed_to, Some(vec!["v2".to_owned()]));
    assert_eq!(state.lock().unwrap().old(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_target_is_the_storage_version_of_the_crd_and_not_of_stale_discovery() {
    check_no_agreement(State { shown: Some("v1"), encoded: "v1", ..state() }, "the CRD names v2").await;
    let lagging = shared(State { shown: Some("v1"), encoded: "v1", ..state() });
    let server = Arc::clone(&lagging);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let mut server = server.lock().unwrap();
        (server.shown, server.encoded) = (Some("v2"), "v2");
    });
    let options = MigrationOptions { agreement_timeout: Duration::from_secs(10), ..MigrationOptions::default() };
    assert_eq!(run(&lagging, Reach::EachServer, options).await.outcome, MigrationOutcome::Succeeded);
    assert_eq!(lagging.lock().unwrap().old(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_lag_behind_discovery() {
    let state = shared(State { shown: Some("v2"), encoded: "v1", ..state() });
    let server = Arc::clone(&state);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(55)).await;
        server.lock().unwrap().encoded = "v2";
    });
    assert_eq!(migrated(&state).await, MigrationOutcome::Succeeded);
    assert_eq!(state.lock().unwrap().old(), 0, "each of them, though the first pass left all of them alone");
    assert_eq!(state.lock().unwrap().stored_versions(), ["v2"]);
}

#[tokio::test(start_paused = true)]
async fn servers_that_cannot_be_queried_are_named() {
    let three = |state: &mut State| {
        state.leases = ["apiserver-a", "apiserver-b", "apiserver-c"].map(|name| (name, format!("{name}_1"))).into();
    };
    let mut hidden = state();
    three(&mut hidden);
    check_no_agreement(hidden, "(apiserver-a, apiserver-b, apiserver-c)").await;
    for path in ["endpointslices", "leases"] {
        check_no_agreement(State { forbidden: vec![path], ..state() }, "cannot be read").await;
    }
    let without_reports = shared(State { forbidden: vec!["storageversions"], ..state() });
    assert_eq!(migrated(&without_reports).await, MigrationOutcome::Succeeded, "each server was queried");
}

#[tokio::test(start_paused = true)]
async fn reports_count_if_every_server_reports_and_discovery_shows_the_same() {
    let two = |reports: &[(&'static str, &'static str)]| State {
        leases: ["apiserver-a", "apiserver-b"].map(|name| (name, format!("{name}_1"))).into(),
        reports: Some(reports.to_vec()),
        is_fenced: true,
        ..state()
    };
    let agreed = two(&[("apiserver-a", "v2"), ("apiserver-b", "v2")]);
    let behind_one_address = shared(agreed);
    assert_eq!(migrated(&behind_one_address).await, MigrationOutcome::Succeeded);
    assert_eq!(behind_one_address.lock().unwrap().old(), 0);
    check_no_agreement(two(&[("apiserver-a", "v2")]), "apiserver-b holds an identity lease and does not report").await;
    check_no_agreement(two(&[("apiserver-a", "v2"), ("apiserver-b", "v1")]), "apiserver-b example.com/v1").await;
    let stale = State { shown: Some("v1"), ..two(&[("apiserver-a", "v2"), ("apiserver-b", "v2")]) };
    check_no_agreement(stale, "in its discovery").await;
}

/// Checks the outcome of a migration with an event at this list request.
async fn check_meanwhile(listing: u32, event: impl FnOnce(&mut State) + Send + 'static, expected: &str) {
    check_meanwhile_in(state(), listing, event, expected).await;
}

async fn check_meanwhile_in(
    state: State,
    listing: u32,
    event: impl FnOnce(&mut State) + Send + 'static,
    expected: &str,
) {
    let state = shared(state);
    state.lock().unwrap().at_listing.insert(listing, Box::new(event) as Event);
    let outcome = format!("{:?}", migrated(&state).await);
    assert!(outcome.contains(expected), "{outcome} lacks {expected:?}");
    if state.lock().unwrap().crd.is_some() {
        assert_nothing_is_proven(&state);
    }
}

#[tokio::test(start_paused = true)]
async fn changes_during_a_migration_prevent_trimming() {
    for listing in [1, 2] {
        let restart = |state: &mut State| drop(state.leases.insert("apiserver-a", "apiserver-a_2".into()));
        check_meanwhile(listing, restart, "apiserver-a was restarted").await;
        let join = |state: &mut State| {
            state.addresses.push("10.0.0.2");
            state.leases.insert("apiserver-b", "apiserver-b_1".into());
        };
        check_meanwhile(listing, join, "AgreementChanged").await;
        // Changed and changed back.
        let flip = |state: &mut State| state.crd.as_mut().unwrap().generation += 2;
        check_meanwhile(listing, flip, "CrdChanged").await;
        let back = |state: &mut State| {
            let crd = state.crd.as_mut().unwrap();
            (crd.stores, crd.generation) = ("v1", crd.generation + 1);
            (state.shown, state.encoded) = (Some("v1"), "v1");
        };
        check_meanwhile(listing, back, "Changed").await;
        check_meanwhile(listing, |state| state.shown = None, "NotReady").await;
        let remove = |state: &mut State| (state.crd, state.shown) = (None, None);
        check_meanwhile(listing, remove, "ResourceGone").await;
        // A server reported another version, and then this one again.
        let reporting = State { reports: Some(vec![("apiserver-a", "v2")]), is_fenced: true, ..state() };
        let report = |state: &mut State| state.reports_revision += 2;
        check_meanwhile_in(reporting, listing, report, "AgreementChanged").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_migration_through_one_endpoint_rewrites_objects_and_proves_nothing() {
    let state = shared(State {
        leases: ["apiserver-a", "apiserver-b"].map(|name| (name, format!("{name}_1"))).into(),
        ..state()
    });
    let report = run(&state, Reach::OneEndpoint, MigrationOptions::default()).await;
    let MigrationOutcome::Unproven(words) = &report.outcome else { panic!("{:?}", report.outcome) };
    assert!(words.contains("nothing is proven"), "{words}");
    assert!(words.contains("of 30 objects were rewritten, and then 3 passes through 4 connections"), "{words}");
    assert_eq!(state.lock().unwrap().old(), 0);
    assert_nothing_is_proven(&state);
}

#[tokio::test(start_paused = true)]
async fn only_the_first_of_several_runs_through_one_endpoint_continues_an_earlier_one() {
    let state = shared(state());
    let mut options = MigrationOptions::default();
    options.run.continue_token = Some("there".to_owned());
    let report = run(&state, Reach::OneEndpoint, options).await;
    assert!(matches!(report.outcome, MigrationOutcome::Unproven(_)), "{:?}", report.outcome);
    let last = report.run.unwrap();
    assert!(!last.passes[0].began_in_the_middle, "new connections may lead to servers that saw nothing yet");
}

#[tokio::test(start_paused = true)]
async fn a_404_for_crds_does_not_mean_that_the_crd_is_deleted() {
    let state = shared(State { unserved: vec!["customresourcedefinitions/widgets.example.com"], ..state() });
    let (_order, control) = watch::channel(RunControl::Run);
    let (progress, _seen) = watch::channel(Progress::default());
    let channels = MigrationChannels { control, progress: &progress };
    let done = migrate(&cluster(&state), &NAME.parse().unwrap(), MigrationOptions::default(), channels).await;
    assert!(done.is_err(), "{:?}", done.map(|report| report.outcome));
    assert_eq!(state.lock().unwrap().old(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_migration_does_not_wait_for_a_resource_without_a_storage_version_hash() {
    let without_hashes = || State { crd: None, has_hashes: false, ..state() };
    let patient = MigrationOptions { agreement_timeout: Duration::from_secs(1_000_000), ..MigrationOptions::default() };
    let aggregated = shared(without_hashes());
    let outcome = run(&aggregated, Reach::EachServer, patient).await.outcome;
    assert!(matches!(&outcome, MigrationOutcome::NotManaged(words) if words.contains("do not say")), "{outcome:?}");
    assert_eq!(aggregated.lock().unwrap().old(), 30, "nothing was written");
    // A document that cannot be read may have the resource.
    let down = shared(State { unserved: vec!["example.com/v1", "example.com/v2"], ..without_hashes() });
    let outcome = migrated(&down).await;
    assert!(matches!(&outcome, MigrationOutcome::NotReady { .. }), "{outcome:?}");
    // A server that cannot be queried may have the hash.
    let hidden = shared(State { forbidden: vec!["endpointslices"], ..without_hashes() });
    assert!(matches!(migrated(&hidden).await, MigrationOutcome::NoAgreement(_)));
}
