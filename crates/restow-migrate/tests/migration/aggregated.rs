//! Resources of aggregated API servers: only their reports prove something, and only if there is one of each server.

use crate::cluster::{State, state};
use crate::{check_meanwhile, check_meanwhile_in, check_no_agreement, fenced, migrated, run, shared};
use restow_api::migration::SettledObjects;
use restow_api::{ResourceVersion, StorageVersionHash};
use restow_migrate::cluster::Reach;
use restow_migrate::migration::{EarlierAttempt, Goal, MigrationOptions, MigrationOutcome, MigrationTarget};
use restow_migrate::settling_time::SETTLING_TIME;
use std::time::Duration;

/// Two aggregated servers behind a Service that report v2, behind a stock API server that does not report.
fn aggregated() -> State {
    State {
        crd: None,
        services: vec!["widget-servers"],
        backends: vec!["10.1.0.1", "10.1.0.2"],
        aggregated: ["garden-a", "garden-b"].map(|name| (name, format!("{name}_1"))).into(),
        reports: Some(vec![("garden-a", "v2"), ("garden-b", "v2")]),
        ..state()
    }
}

#[tokio::test(start_paused = true)]
async fn resources_of_aggregated_servers_are_proven_if_each_of_them_reports() {
    let reported = shared(aggregated());
    let begun = tokio::time::Instant::now();
    assert_eq!(migrated(&reported).await, MigrationOutcome::Succeeded);
    assert_eq!(reported.lock().unwrap().old(), 0);
    assert_eq!(reported.lock().unwrap().scrapes, 0, "the processes of the main API servers are irrelevant");
    assert!(begun.elapsed() >= SETTLING_TIME, "another server may have been behind the Service before");
    // Whoever may not get a single report may list them.
    let only_list = State { forbidden: vec!["storageversions/example.com.widgets"], ..aggregated() };
    assert_eq!(migrated(&shared(only_list)).await, MigrationOutcome::Succeeded);
    // A lease and a report more than there are endpoints hide nobody.
    let fewer = State { backends: vec!["10.1.0.1"], ..aggregated() };
    assert_eq!(migrated(&shared(fewer)).await, MigrationOutcome::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn resources_of_aggregated_servers_are_not_proven_if_one_of_them_may_write_otherwise() {
    let only_a = Some(vec![("garden-a", "v2")]);
    for (doubtful, words) in [
        (State { backends: vec!["1", "2", "3"], ..aggregated() }, "2 reports, but the EndpointSlices name 3"),
        (State { backends: Vec::new(), ..aggregated() }, "no EndpointSlice names them"),
        (State { forbidden: vec!["backend/endpointslices"], ..aggregated() }, "backend/widget-servers cannot be read"),
        (State { forbidden: vec!["leases"], ..aggregated() }, "the identity leases in \"kube-system\" cannot be read"),
        (State { reports: only_a, ..aggregated() }, "garden-b holds an identity lease and does not report"),
        (State { name_own_leases: false, ..aggregated() }, "garden-a reports, but no identity lease"),
        (
            State { reports: Some(vec![("garden-a", "v2"), ("garden-b", "v1")]), ..aggregated() },
            "garden-b example.com/v1",
        ),
        (State { shown: Some("v1"), ..aggregated() }, "in its discovery"),
        (State { apart: vec!["garden-b"], ..aggregated() }, "do not all store it in the same place"),
    ] {
        let doubtful = shared(doubtful);
        let outcome = migrated(&doubtful).await;
        let MigrationOutcome::NoAgreement(said) = &outcome else { panic!("{outcome:?}, though {words:?}") };
        assert!(said.contains(words), "{said:?} lacks {words:?}");
        assert_eq!(doubtful.lock().unwrap().old(), 30, "nothing was written");
    }
    // Without the permission to list APIServices it is unknown.
    check_no_agreement(State { forbidden: vec!["apiservices"], ..state() }, "the APIServices cannot be listed").await;
    check_no_agreement(State { forbidden: vec!["apiservices"], ..fenced() }, "the APIServices cannot be listed").await;
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_aggregated_servers_during_a_migration_prevents_proof() {
    for listing in [1, 2] {
        let restart = |state: &mut State| drop(state.aggregated.insert("garden-b", "garden-b_2".into()));
        check_meanwhile_in(aggregated(), listing, restart, "Lease garden-b was changed").await;
        // Another server was added and removed.
        let flap = |state: &mut State| state.backends_generation += 2;
        check_meanwhile_in(aggregated(), listing, flap, "EndpointSlice /widgets was changed").await;
        let join = |state: &mut State| state.backends.push("10.1.0.3");
        check_meanwhile_in(aggregated(), listing, join, "AgreementChanged").await;
        let report = |state: &mut State| state.reports_revision += 2;
        check_meanwhile_in(aggregated(), listing, report, "AgreementChanged").await;
        // The APIService is registered meanwhile.
        let register = |state: &mut State| state.services = vec!["widget-servers"];
        check_meanwhile(listing, register, "NotManaged").await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_attempt_has_verified_is_not_taken_over_from_aggregated_servers() {
    // Behind a Service there may have been another server meanwhile, and no report has changed.
    for (cluster, old) in [(fenced(), 30), (aggregated(), 0)] {
        let revision = Some(ResourceVersion::new(cluster.reports_revision.to_string()));
        let hash = StorageVersionHash::new(restow_api::storage_version_hash("example.com", "v2", "Widget"));
        let objects = SettledObjects { resource_version: "999999".to_owned(), definition_generation: 1 };
        let settled = EarlierAttempt::new(MigrationTarget { hash, revision }, objects, &[]);
        let cluster = shared(cluster);
        let options = MigrationOptions { settled, ..MigrationOptions::default() };
        assert_eq!(run(&cluster, Reach::EachServer, options).await.outcome, MigrationOutcome::Succeeded);
        assert_eq!(cluster.lock().unwrap().old(), old);
    }
}

#[tokio::test(start_paused = true)]
async fn aggregated_servers_do_not_count_as_api_servers_of_the_cluster() {
    // The servers of another group: the only address of an API server is sufficient, and their restart is irrelevant.
    let beside = || State { services: Vec::new(), reports: None, ..State { crd: state().crd, ..aggregated() } };
    for listing in [1, 2] {
        let cluster = shared(beside());
        let restart = |state: &mut State| drop(state.aggregated.insert("garden-b", "garden-b_2".into()));
        cluster.lock().unwrap().at_listing.insert(listing, Box::new(restart));
        assert_eq!(migrated(&cluster).await, MigrationOutcome::Succeeded);
        assert_eq!(cluster.lock().unwrap().stored_versions(), ["v2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn resources_that_aggregated_servers_do_not_report_are_not_managed() {
    for (unmanaged, words) in [
        (State { reports: None, ..aggregated() }, "do not report what they store"),
        (State { has_hashes: false, ..aggregated() }, "do not publish the storageVersionHash"),
        (State { crd: state().crd, ..aggregated() }, "a CRD defines it too"),
        (State { services: vec!["widget-servers"], ..state() }, "do not report what they store"),
    ] {
        let unmanaged = shared(unmanaged);
        let patient = MigrationOptions { agreement_timeout: Duration::from_secs(1_000), ..MigrationOptions::default() };
        let outcome = run(&unmanaged, Reach::EachServer, patient).await.outcome;
        let MigrationOutcome::NotManaged(said) = &outcome else { panic!("{outcome:?}") };
        assert!(said.contains("v1.example.com") && said.contains("backend/widget-servers"), "{said}");
        assert!(said.contains(words), "{said:?} lacks {words:?}");
        assert_eq!(unmanaged.lock().unwrap().old(), 30, "nothing was written");
    }
    let key = MigrationOptions { goal: Goal::Key, ..MigrationOptions::default() };
    let outcome = run(&shared(aggregated()), Reach::EachServer, key).await.outcome;
    assert!(matches!(&outcome, MigrationOutcome::NotManaged(said) if said.contains("their keys")), "{outcome:?}");
    let aggregated = shared(State { services: vec!["widget-servers"], ..state() });
    let outcome = run(&aggregated, Reach::OneEndpoint, MigrationOptions::default()).await.outcome;
    assert!(matches!(outcome, MigrationOutcome::Unproven(_)), "{outcome:?}");
}
