//! Whether every API server was queried: an address is not a server, and a lease outlives the process that made it.

use crate::cluster::{State, state};
use crate::{check_meanwhile, check_no_agreement, fenced, migrated, shared};
use restow_migrate::migration::MigrationOutcome;

/// Three servers at three addresses.
fn three(started: &[&'static str]) -> State {
    State {
        addresses: vec!["10.0.0.1", "10.0.0.2", "10.0.0.3"],
        leases: ["apiserver-a", "apiserver-b", "apiserver-c"].map(|name| (name, format!("{name}_1"))).into(),
        started: started.to_vec(),
        ..state()
    }
}

#[tokio::test(start_paused = true)]
async fn the_process_of_every_server_must_be_queried() {
    let each = shared(three(&["10", "20", "30"]));
    assert_eq!(migrated(&each).await, MigrationOutcome::Succeeded);
    assert_eq!(each.lock().unwrap().scrapes, 6, "each at the beginning and at the end");
    // The addresses of a load balancer, which all lead to one of them.
    check_no_agreement(three(&["10"]), "there are 1 processes").await;
    check_no_agreement(three(&["10", "20", "10"]), "there are 2 processes").await;
    // Two addresses of one server hide the other.
    let twice = State { addresses: vec!["10.0.0.1", "10.0.0.2"], ..three(&["10"]) };
    check_no_agreement(State { leases: twice.leases.clone().into_iter().take(2).collect(), ..twice }, "1 process")
        .await;
}

#[tokio::test(start_paused = true)]
async fn without_leases_or_metrics_the_number_of_servers_is_unknown() {
    check_no_agreement(State { leases: Default::default(), ..state() }, "no API server holds an identity lease").await;
    let forbidden = State { forbidden: vec!["metrics"], ..state() };
    check_no_agreement(forbidden, "nonResourceURLs [\"/metrics\"]").await;
    check_no_agreement(State { unserved: vec!["metrics"], ..state() }, "answered with 404").await;
    let reporting = shared(State { forbidden: vec!["metrics"], ..fenced() });
    assert_eq!(migrated(&reporting).await, MigrationOutcome::Succeeded, "servers with fenced reports are not queried");
    assert_eq!(reporting.lock().unwrap().scrapes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_server_that_keeps_its_lease_is_noticed() {
    for listing in [1, 2] {
        check_meanwhile(listing, |state| state.started = vec!["11"], "restarted").await;
        check_meanwhile(listing, |state| state.slice_generation += 2, "EndpointSlice kubernetes was changed").await;
    }
}
