//! Reports of servers, how servers are fenced and join again, and how they are collected.

use crate::fixture::*;
use restow_apiserver::error::ApiError;
use restow_store::{Key, RangeRequest, StoreExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

#[tokio::test]
async fn a_single_server_reports_what_kubernetes_reports() {
    let store = store();
    let _server = start(&store, "a", "1.37", "").await;
    let mut ours = BTreeMap::new();
    for (name, object) in objects(&store, STORAGE_VERSIONS).await {
        let status = &object["status"];
        let entry = &status["storageVersions"][0];
        assert_eq!(entry["apiServerID"], "a");
        let mut conditions = status["conditions"].clone();
        conditions[0].as_object_mut().unwrap().remove("lastTransitionTime").unwrap();
        let comparable = json!({
            "name": name, "commonEncodingVersion": status["commonEncodingVersion"], "conditions": conditions,
            "encodingVersion": entry["encodingVersion"], "decodableVersions": entry["decodableVersions"],
            "servedVersions": entry["servedVersions"],
        });
        ours.insert(name, comparable);
    }
    let recorded = include_str!("../recorded/storage-versions-1.37.jsonl").lines();
    let theirs: BTreeMap<String, Value> = recorded
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|object| (object["name"].as_str().unwrap().to_string(), object))
        .collect();
    assert_eq!(theirs.len(), 63);
    assert_eq!(ours, theirs);
}

#[tokio::test]
async fn the_time_until_all_storage_versions_were_reported_is_a_metric() {
    let server = start(&store(), "a", "1.37", "").await;
    let text = server.metrics().render();
    let name = "apiserver_storage_version_registered_after_seconds ";
    let seconds: f64 = text.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap();
    assert!(seconds > 0.0, "{seconds}");
}

#[tokio::test]
async fn the_identity_lease_has_kubernetes_shape() {
    let store = store();
    let _server = start(&store, "a", "1.37", "").await;
    let lease = objects(&store, LEASES).await.remove("a").unwrap();
    assert_eq!(
        lease["metadata"]["labels"],
        json!({
            "apiserver.kubernetes.io/identity": "kube-apiserver",
            "kubernetes.io/hostname": "host",
            "restow.dev/fenced-writes": "true",
        })
    );
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 10);
    assert!(lease["spec"]["holderIdentity"].as_str().unwrap().starts_with("a_"));
}

#[tokio::test]
async fn servers_disagree_while_two_releases_run_and_agree_when_one_leaves() {
    let store = store();
    let slices = "discovery.k8s.io.endpointslices";
    let old = start(&store, "old", "1.30", "").await;
    let _new = start(&store, "new", "1.31", "").await;
    let disagreement = status(&store, slices).await;
    assert_eq!(servers_of(&disagreement), ["old", "new"]);
    assert_eq!(disagreement["commonEncodingVersion"], Value::Null);
    assert_eq!(disagreement["conditions"][0]["status"], "False");
    old.leave().await;
    assert_eq!(lease(&store, "old").await, None, "who leaves gives its lease up");
    eventually("the rest agrees", || async {
        status(&store, slices).await["commonEncodingVersion"] == "discovery.k8s.io/v1"
    })
    .await;
    assert!(write_slice(&old, "late").await.is_err(), "who has left writes no more");
}

#[tokio::test]
async fn a_server_whose_lease_was_deleted_reports_again_and_continues() {
    let store = store();
    let server = start(&store, "a", "1.30", "").await;
    write_slice(&server, "before").await.unwrap();
    let first = lease(&store, "a").await.unwrap();
    // As the collector does with a server that does not renew: delete the lease first, then the entries.
    let listed = store.range(RangeRequest::prefix(STORAGE_VERSIONS)).await.unwrap().entries;
    store.txn(restow_store::Txn::new().delete(&first.key)).await.unwrap();
    for entry in listed {
        let absent = restow_store::Compare::absent(&first.key);
        store.txn(restow_store::Txn::new().when(absent).delete(&entry.key)).await.unwrap();
    }
    // The client notices nothing but a pause: the write waits until the server may write again.
    write_slice(&server, "after").await.unwrap();
    let second = lease(&store, "a").await.unwrap();
    assert!(second.create_revision > first.create_revision);
    assert_eq!(servers_of(&status(&store, "discovery.k8s.io.endpointslices").await), ["a"]);
    let slices = store.range(RangeRequest::prefix("/discovery.k8s.io/endpointslices/")).await.unwrap().entries;
    let after = slices.iter().find(|entry| entry.key.to_string().contains("after")).unwrap();
    assert!(after.create_revision > second.create_revision, "it reported before it wrote");
}

#[tokio::test]
async fn a_restarted_server_fences_its_earlier_process() {
    let store = store();
    let earlier = start(&store, "a", "1.30", "").await;
    let later = start(&store, "a", "1.31", "").await;
    write_slice(&later, "later").await.unwrap();
    let written = tokio::time::timeout(Duration::from_secs(20), write_slice(&earlier, "earlier")).await.unwrap();
    let Err(ApiError::Unavailable { .. }) = written else { panic!("the earlier life wrote: {written:?}") };
    assert!(!earlier.agreement().is_registered(), "it must not be sent requests any more");
    assert!(later.agreement().is_registered(), "and it must not fight the later one");
    let status = status(&store, "discovery.k8s.io.endpointslices").await;
    assert_eq!(status["commonEncodingVersion"], "discovery.k8s.io/v1");
}

#[tokio::test]
async fn servers_with_expired_leases_are_collected_and_unknown_servers_are_not() {
    let store = store();
    let entry = |id: &str| json!({"apiServerID": id, "encodingVersion": "x/v1", "decodableVersions": ["x/v1"]});
    let object = |name: &str, ids: &[&str]| {
        let entries: Vec<Value> = ids.iter().map(|id| entry(id)).collect();
        json!({
            "apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion",
            "metadata": {"name": name}, "spec": {},
            "status": {"storageVersions": entries, "commonEncodingVersion": "x/v1"},
        })
    };
    let dead = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "dead", "namespace": "kube-system", "labels": {"apiserver.kubernetes.io/identity": "x"}},
        "spec": {"holderIdentity": "dead_1", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"},
    });
    let put = async |key: String, value: String| {
        store.put(&Key::try_from(key).unwrap(), value.into()).await.unwrap();
    };
    put(format!("{LEASES}dead"), dead.to_string()).await;
    put(format!("{LEASES}unreadable"), "{".to_string()).await;
    put(format!("{STORAGE_VERSIONS}x.gone"), object("x.gone", &["dead", "long-dead"]).to_string()).await;
    put(format!("{STORAGE_VERSIONS}x.kept"), object("x.kept", &["dead", "unreadable"]).to_string()).await;
    let _server = start(&store, "a", "1.37", "").await;
    eventually("the entries of the dead are gone", || async {
        let objects = objects(&store, STORAGE_VERSIONS).await;
        servers_of(&objects["x.gone"]["status"]).is_empty()
            && servers_of(&objects["x.kept"]["status"]) == ["unreadable"]
    })
    .await;
    assert_eq!(lease(&store, "dead").await, None);
    let unreadable = lease(&store, "unreadable").await.expect("what cannot be read is not gone");
    store.txn(restow_store::Txn::new().delete(&unreadable.key)).await.unwrap();
    eventually("objects without entries are gone", || async {
        let objects = objects(&store, STORAGE_VERSIONS).await;
        !objects.contains_key("x.gone") && !objects.contains_key("x.kept")
    })
    .await;
}

#[tokio::test]
async fn added_resources_are_reported_updated_and_withdrawn() {
    let store = store();
    let server = start(&store, "a", "1.37", "").await;
    let name = "example.com.widgets";
    server.agreement().report(&widgets("example.com/v1")).await.unwrap();
    assert_eq!(status(&store, name).await["commonEncodingVersion"], "example.com/v1");
    let current = widgets("example.com/v2");
    server.agreement().report(&current).await.unwrap();
    assert_eq!(status(&store, name).await["commonEncodingVersion"], "example.com/v2");
    assert_eq!(current.storage.as_ref().unwrap().encoding().comparisons().len(), 1, "its writes carry the fence");

    // All reports are written again with a new lease.
    let first = lease(&store, "a").await.unwrap();
    store.txn(restow_store::Txn::new().delete(&first.key)).await.unwrap();
    store
        .txn(restow_store::Txn::new().delete(&Key::try_from(format!("{STORAGE_VERSIONS}{name}")).unwrap()))
        .await
        .unwrap();
    eventually("it is reported again", || async {
        status(&store, name).await["commonEncodingVersion"] == "example.com/v2"
    })
    .await;

    eventually("the server is back", || async { server.agreement().is_registered() }).await;
    server.agreement().withdraw(&current.group_resource).await.unwrap();
    assert!(!objects(&store, STORAGE_VERSIONS).await.contains_key(name));
}
