//! StorageVersions that a person deletes or edits, and how servers report disagreements.

use crate::fixture::*;
use restow_store::{Key, Store, StoreExt, Txn};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

const SLICES: &str = "discovery.k8s.io.endpointslices";

fn key(name: &str) -> Key {
    Key::try_from(format!("{STORAGE_VERSIONS}{name}")).unwrap()
}

/// Edits a StorageVersion directly in the store.
async fn edit(store: &Arc<dyn Store>, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
    let mut object = objects(store, STORAGE_VERSIONS).await.remove(name).unwrap();
    change(&mut object);
    store.put(&key(name), object.to_string().into()).await.unwrap();
}

#[tokio::test]
async fn a_deleted_or_edited_report_is_written_again_without_a_restart() {
    let store = store();
    let _servers = (start(&store, "a", "1.31", "").await, start(&store, "b", "1.31", "").await);
    let good = status(&store, SLICES).await;
    let mut servers = servers_of(&good);
    servers.sort_unstable();
    assert_eq!(servers, ["a", "b"]);
    let healed = async |what: &str| {
        eventually(what, || async {
            let now = status(&store, SLICES).await;
            let mut servers = servers_of(&now);
            servers.sort_unstable();
            servers == ["a", "b"]
                && now["commonEncodingVersion"] == "discovery.k8s.io/v1"
                && now["conditions"][0]["status"] == "True"
        })
        .await;
    };
    store.txn(Txn::new().delete(&key(SLICES))).await.unwrap();
    healed("the deleted object is there again").await;
    edit(&store, SLICES, |object| {
        object["status"]["storageVersions"].as_array_mut().unwrap().retain(|entry| entry["apiServerID"] == "a");
    })
    .await;
    healed("the missing entry is there again").await;
    edit(&store, SLICES, |object| object["status"]["commonEncodingVersion"] = json!("discovery.k8s.io/v1beta1")).await;
    healed("the wrong conclusion is put right").await;
    edit(&store, SLICES, |object| object["status"] = json!({})).await;
    healed("the emptied object is filled again").await;
}

#[tokio::test]
async fn repeated_edits_of_a_report_cause_no_storm_of_writes() {
    let store = store();
    let _servers = (start(&store, "a", "1.31", "").await, start(&store, "b", "1.31", "").await);
    let before = store.status().await.unwrap().revision.get();
    let mut edits = 0;
    let end = tokio::time::Instant::now() + Duration::from_secs(3);
    while tokio::time::Instant::now() < end {
        if !servers_of(&status(&store, SLICES).await).is_empty() {
            edit(&store, SLICES, |object| object["status"]["storageVersions"] = json!([])).await;
            edits += 1;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Pauses of 50 ms that double leave room for seven repairs by each of two servers in that time; the rest are leases.
    assert!((1..=30).contains(&edits), "{edits} edits were answered in three seconds");
    let written = store.status().await.unwrap().revision.get() - before;
    assert!(written < 120, "{written} writes for {edits} edits");
    eventually("in the end it is right", || async { servers_of(&status(&store, SLICES).await).len() == 2 }).await;
}

#[tokio::test]
async fn repeated_deletions_of_a_lease_cause_no_storm_of_writes() {
    let store = store();
    let server = start(&store, "a", "1.31", "").await;
    let before = store.status().await.unwrap().revision.get();
    let mut shut_out = 0;
    let end = tokio::time::Instant::now() + Duration::from_secs(5);
    while tokio::time::Instant::now() < end {
        if let Some(found) = lease(&store, "a").await {
            store.txn(Txn::new().delete(&found.key)).await.unwrap();
            shut_out += 1;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Waits of up to 100 ms that double, of each at least a tenth, leave room for twelve in that time.
    assert!((2..=12).contains(&shut_out), "the server came back {shut_out} times in five seconds");
    let written = store.status().await.unwrap().revision.get() - before;
    println!("shut out {shut_out} times, {written} writes");
    eventually("in the end it is back", || async { server.agreement().is_registered() }).await;
}

#[tokio::test]
async fn how_long_servers_disagree_is_measured_by_resource() {
    let store = store();
    let old = start(&store, "old", "1.30", "").await;
    let new = start(&store, "new", "1.31", "").await;
    let seconds = |resource: &str| {
        let text = new.metrics().render();
        let line = text.lines().find(|line| {
            line.starts_with("apiserver_storage_version_disagreement_seconds{")
                && line.contains(&format!("resource=\"{resource}\""))
        });
        line.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
    };
    // Times in the object are whole seconds, so it may take one until there is something to see.
    eventually("the disagreement is measured", || async { seconds("endpointslices").is_some_and(|time| time > 0.0) })
        .await;
    assert_eq!(seconds("configmaps"), Some(0.0));
    old.leave().await;
    eventually("the agreement is noticed", || async { seconds("endpointslices") == Some(0.0) }).await;
    let text = new.metrics().render();
    for name in ["registered_after_seconds ", "fence_failures_total 0", "registration_retries_total "] {
        assert!(text.contains(&format!("apiserver_storage_version_{name}")), "{name} is missing");
    }
}
