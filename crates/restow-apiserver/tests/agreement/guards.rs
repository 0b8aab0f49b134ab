//! Race conditions that last for an instant in a running server, held open by a slow store.

use crate::fixture::*;
use restow_apiserver::resource::Membership;
use restow_store::{Key, Mutation, Store, StoreExt, Txn, TxnOutcome};
use serde_json::{Value, json};
use std::sync::Arc;

const SLICES: &str = "discovery.k8s.io.endpointslices";

fn key(name: &str) -> Key {
    Key::try_from(format!("{STORAGE_VERSIONS}{name}")).unwrap()
}

/// A StorageVersion with the entries of servers that have no lease.
async fn leave_behind(store: &Arc<dyn Store>, name: &str, servers: &[&str]) {
    let entry = |id: &&str| json!({"apiServerID": id, "encodingVersion": "x/v1", "decodableVersions": ["x/v1"]});
    let entries: Vec<Value> = servers.iter().map(entry).collect();
    let object = json!({
        "apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion", "metadata": {"name": name},
        "spec": {}, "status": {"storageVersions": entries},
    });
    store.put(&key(name), object.to_string().into()).await.unwrap();
    // Servers have used this store before.
    store.put(&Key::try_from("/restow/format").unwrap(), "restow-objects 1\n".into()).await.unwrap();
}

/// Whether a server that comes back while its entry is being dropped still has it afterwards.
async fn keeps_its_entry(store: &Arc<dyn Store>, slow: &Slow, name: &str) {
    slow.under_way().await;
    come_back(store, "late", "x").await;
    slow.may_pass.send_replace(true);
    eventually("what was under way has arrived or was refused", || async {
        !servers_of(&status(store, name).await).contains(&"gone")
    })
    .await;
    let after = status(store, name).await;
    assert!(servers_of(&after).contains(&"late"), "its lease exists, so it relies on its entry: {after}");
}

#[tokio::test]
async fn a_version_that_comes_into_force_during_a_report_is_reported_before_it_is_written() {
    let store = store();
    let slow = Slow::at(&store, "/example.com.widgets");
    let beneath: Arc<dyn Store> = slow.clone();
    let server = start(&beneath, "a", "1.37", "").await;
    let resource = widgets("example.com/v1");
    let storage = resource.storage.clone().unwrap();
    let reporting = tokio::spawn({
        let (server, resource) = (server.clone(), resource.clone());
        async move { server.agreement().report(&resource).await }
    });
    slow.under_way().await;
    storage.set_encoding("example.com/v2".parse().unwrap(), Vec::new());
    slow.may_pass.send_replace(true);
    reporting.await.unwrap().unwrap();
    eventually("it may write", || async { matches!(storage.encoding().membership, Membership::Registered(_)) }).await;
    let reported = status(&store, "example.com.widgets").await["storageVersions"][0]["encodingVersion"].clone();
    assert_eq!(reported, storage.encoding().version.to_string(), "what is written is what was reported");
}

#[tokio::test]
async fn a_report_keeps_the_entry_of_a_server_whose_lease_exists_at_the_commit() {
    let store = store();
    leave_behind(&store, SLICES, &["gone", "late"]).await;
    let slow = Slow::at(&store, "/discovery.k8s.io.endpointslices");
    let beneath: Arc<dyn Store> = slow.clone();
    let starting = tokio::spawn(async move { start(&beneath, "a", "1.37", "").await });
    keeps_its_entry(&store, &slow, SLICES).await;
    starting.await.unwrap();
}

#[tokio::test]
async fn the_collector_keeps_the_entry_of_a_server_whose_lease_exists_at_the_commit() {
    let store = store();
    leave_behind(&store, "x.things", &["gone", "late"]).await;
    come_back(&store, "other", "x").await;
    let slow = Slow::at(&store, "/x.things");
    let beneath: Arc<dyn Store> = slow.clone();
    let _server = start(&beneath, "a", "1.37", "").await;
    keeps_its_entry(&store, &slow, "x.things").await;
}

#[tokio::test]
async fn a_server_that_may_not_write_does_not_confirm_that_an_object_is_current() {
    let store = store();
    let server = start(&store, "a", "1.30", "").await;
    write_slice(&server, "same").await.unwrap();
    let before = lease(&store, "a").await.unwrap();
    store.txn(Txn::new().delete(&before.key)).await.unwrap();
    // The same object again: nothing has to be written.
    write_slice(&server, "same").await.unwrap();
    let after = lease(&store, "a").await.expect("it has joined again before it answered");
    assert!(after.create_revision > before.create_revision);
}

#[tokio::test]
async fn a_lease_is_renewed_while_its_server_joins() {
    let store = store();
    let slow = Slow::at(&store, "/core.configmaps");
    let beneath: Arc<dyn Store> = slow.clone();
    let starting = tokio::spawn(async move { start(&beneath, "a", "1.37", "").await });
    slow.under_way().await;
    eventually("the lease is renewed", || async { lease(&store, "a").await.is_some_and(|lease| lease.version >= 3) })
        .await;
    assert!(!starting.is_finished(), "it has not joined yet");
    slow.may_pass.send_replace(true);
    starting.await.unwrap();
}

/// Whether a transaction reports that widgets are stored in v2.
fn reports_widgets_in_v2(txn: &Txn) -> bool {
    txn.then.iter().any(|mutation| {
        let Mutation::Put(put) = mutation else { return false };
        let object: Value = serde_json::from_slice(&put.value).unwrap_or_default();
        put.key == key("example.com.widgets")
            && object["status"]["storageVersions"][0]["encodingVersion"] == "example.com/v2"
    })
}

#[tokio::test]
async fn a_report_without_a_response_cannot_be_committed_after_a_later_report() {
    let store = store();
    let mute = Mute::to(&store, reports_widgets_in_v2);
    let beneath: Arc<dyn Store> = mute.clone();
    let server = start(&beneath, "a", "1.37", "").await;
    server.agreement().report(&widgets("example.com/v1")).await.unwrap();
    let changed = widgets("example.com/v2");
    tokio::select! {
        biased;
        reported = server.agreement().report(&changed) => panic!("nothing was answered: {reported:?}"),
        _ = eventually("the report is sent", || async { !mute.kept.lock().unwrap().is_empty() }) => {}
    }
    // The resource goes back to the version that is still in the StorageVersion, so there is nothing to change in it.
    server.agreement().report(&widgets("example.com/v1")).await.unwrap();
    let late = std::mem::take(&mut *mute.kept.lock().unwrap());
    for txn in late {
        let outcome = store.txn(txn).await.unwrap();
        assert!(matches!(outcome, TxnOutcome::Refused { .. }), "this server writes v1 now");
    }
    assert_eq!(status(&store, "example.com.widgets").await["commonEncodingVersion"], "example.com/v1");
}
