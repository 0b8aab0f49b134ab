//! What reports prove: the versions of API servers whose writes are fenced, and nothing else.

use crate::cluster::State;
use crate::{check_meanwhile_in, check_no_agreement, fenced, migrated, run, shared};
use restow_migrate::cluster::Reach;
use restow_migrate::migration::{Goal, MigrationOptions, MigrationOutcome};
use std::sync::Arc;
use std::time::Duration;

/// A stock server with the StorageVersion API.
fn stock() -> State {
    State { is_fenced: false, ..fenced() }
}

#[tokio::test(start_paused = true)]
async fn reports_without_fences_replace_neither_the_settling_time_nor_queries() {
    let lagging = shared(State { encoded: "v1", ..stock() });
    let server = Arc::clone(&lagging);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(55)).await;
        server.lock().unwrap().encoded = "v2";
    });
    assert_eq!(migrated(&lagging).await, MigrationOutcome::Succeeded);
    assert_eq!(lagging.lock().unwrap().old(), 0, "what the handler still wrote was found after the settling time");
    check_no_agreement(State { forbidden: vec!["metrics"], ..stock() }, "nonResourceURLs").await;
    for listing in [1, 2] {
        let restart = |state: &mut State| drop(state.leases.insert("apiserver-a", "apiserver-a_2".into()));
        check_meanwhile_in(stock(), listing, restart, "apiserver-a was restarted").await;
        let replace = |state: &mut State| state.started = vec!["11"];
        check_meanwhile_in(stock(), listing, replace, "restarted").await;
    }
}

#[tokio::test(start_paused = true)]
async fn there_is_no_agreement_while_a_server_has_no_lease() {
    let hidden = State { addresses: vec!["10.0.0.1", "10.0.0.2"], ..fenced() };
    check_no_agreement(hidden, "name 2 API servers (10.0.0.1:6443, 10.0.0.2:6443)").await;
}

#[tokio::test(start_paused = true)]
async fn reports_prove_nothing_about_encryption_keys() {
    // Two servers behind one address: the second one cannot be queried which key it uses.
    let two = || State {
        leases: ["apiserver-a", "apiserver-b"].map(|name| (name, format!("{name}_1"))).into(),
        reports: Some(vec![("apiserver-a", "v2"), ("apiserver-b", "v2")]),
        ..fenced()
    };
    let key = || MigrationOptions { goal: Goal::Key, ..MigrationOptions::default() };
    let rotated = shared(two());
    let outcome = run(&rotated, Reach::EachServer, key()).await.outcome;
    assert!(matches!(&outcome, MigrationOutcome::NoAgreement(words) if words.contains("apiserver-b")), "{outcome:?}");
    assert_eq!(rotated.lock().unwrap().old(), 30, "nothing was written");
    assert_eq!(migrated(&shared(two())).await, MigrationOutcome::Succeeded, "reports prove versions");
    let asked = shared(fenced());
    assert_eq!(run(&asked, Reach::EachServer, key()).await.outcome, MigrationOutcome::Succeeded);
    assert_eq!(asked.lock().unwrap().scrapes, 2, "at the beginning and at the end");
}
