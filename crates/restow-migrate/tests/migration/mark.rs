//! The mark on a CRD that another process has left behind.

use crate::cluster::State;
use crate::{fenced, migrated, shared};
use restow_migrate::migration::MigrationOutcome;
use restow_rules::migrate::marks::HOLDER_ANNOTATION;
use restow_rules::migrate::stored_versions::MIGRATING_ANNOTATION;
use serde_json::json;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn the_mark_of_a_killed_command_is_removed_at_the_end_of_the_next_migration() {
    let marked =
        |renewals: u32| json!({MIGRATING_ANNOTATION: "true", HOLDER_ANNOTATION: format!("command/other/{renewals}")});
    let left = || {
        let mut left = fenced();
        left.crd.as_mut().unwrap().annotations = marked(3);
        left
    };
    let state = shared(left());
    assert_eq!(migrated(&state).await, MigrationOutcome::Succeeded);
    let annotations = state.lock().unwrap().crd.as_ref().unwrap().annotations.clone();
    assert!(annotations.as_object().unwrap().values().all(serde_json::Value::is_null), "{annotations}");
    // A mark that its holder renews is kept.
    let state = shared(left());
    let renew = move |state: &mut State| {
        let crd = state.crd.as_mut().unwrap();
        (crd.annotations, crd.revision) = (marked(4), crd.revision + 1);
    };
    state.lock().unwrap().at_listing.insert(2, Box::new(renew));
    let began = tokio::time::Instant::now();
    assert_eq!(migrated(&state).await, MigrationOutcome::Succeeded);
    assert!(began.elapsed() < Duration::from_secs(15), "it is not waited for");
    assert_eq!(state.lock().unwrap().crd.as_ref().unwrap().annotations, marked(4));
}
