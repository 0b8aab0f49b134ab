//! A CRD is changed again and again, its storage version too, while its objects are read and written without pause. No request
//! fails; with three servers on one etcd, etcd's history shows that nothing was written in a version that was not in force.

use crate::custom_resources::{CRONTABS, crontab};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use restow_store::{Change, KeyRange, Revision, Store, WatchRequest};
use restow_testkit::{Cluster, On, TIMEOUT, crds, etcd_store, eventually_blocking, namespaced_api};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FLIPS: usize = 8;

/// Writes one object again and again until `stop` is set. Every write must succeed.
async fn write(client: kube::Client, name: String, version: &'static str, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let api = namespaced_api(&client, "stable.example.com", version, "CronTab", "crontabs");
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": format!("stable.example.com/{version}"), "kind": "CronTab", "metadata": {"name": name}, "spec": {"replicas": 1},
    }))
    .unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
    let mut number = 1;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let patch = json!({"spec": {"replicas": number}});
        let written = api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let written = written.unwrap_or_else(|error| panic!("{name} in {version}: {error}"));
        assert_eq!(written.data["spec"]["replicas"], number);
        done.fetch_add(1, Ordering::Relaxed);
        let context = |error: kube::Error| format!("{name} in {version}: {error}");
        let read = api.get(&name).await.map_err(context).unwrap();
        assert_eq!(read.data["spec"]["replicas"], number, "it reads what it wrote");
        let listed = api.list(&ListParams::default()).await.map_err(context).unwrap();
        assert!(listed.items.iter().any(|object| object.name_any() == name));
    }
}

/// Changes the CRD many times, each time after every server has been written to for a while: the storage version, the
/// schema, the columns, and whether there is a third version.
async fn keep_changing(cluster: &Cluster) -> u64 {
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for (number, server) in cluster.servers.iter().enumerate() {
        for version in ["v1", "v2"] {
            let name = format!("{version}-{number}");
            writers.push(tokio::spawn(write(server.client().await, name, version, stop.clone(), done.clone())));
        }
    }
    for flip in 0..FLIPS {
        let (seen, begun) = (done.load(Ordering::Relaxed), Instant::now());
        while done.load(Ordering::Relaxed) < seen + 20 {
            assert!(begun.elapsed() < TIMEOUT, "the writers are stuck");
            assert!(!writers.iter().any(tokio::task::JoinHandle::is_finished), "a writer has failed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let server = &cluster.servers[flip % cluster.servers.len()];
        let api = crds(&server.client().await);
        let columns = json!([{"name": format!("Column{flip}"), "type": "integer", "jsonPath": ".spec.replicas"}]);
        let third =
            json!({"name": "v3", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}});
        let patch = json!([
            {"op": "replace", "path": "/spec/versions/0/storage", "value": flip % 2 == 1},
            {"op": "replace", "path": "/spec/versions/1/storage", "value": flip % 2 == 0},
            {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": format!("flip {flip}")},
            {"op": "add", "path": "/spec/versions/1/additionalPrinterColumns", "value": columns},
            match flip % 2 {
                0 => json!({"op": "add", "path": "/spec/versions/2", "value": third}),
                _ => json!({"op": "remove", "path": "/spec/versions/2"}),
            },
        ]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
        api.patch("crontabs.stable.example.com", &PatchParams::default(), &patch).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    done.load(Ordering::Relaxed)
}

#[tokio::test]
async fn no_request_is_lost_while_a_crd_changes_on_the_embedded_store() {
    let cluster = Cluster::one(On::Embedded).await;
    cluster.kubectl(&["apply", "-f", &cluster.file("crd.yaml", CRONTABS)]);
    let object = cluster.file("object.yaml", &crontab("v1", "first", "{}"));
    eventually_blocking("the resource is served", || {
        cluster.servers[0].try_kubectl(&["apply", "-f", &object]).status.success()
    });
    keep_changing(&cluster).await;
}

#[tokio::test]
async fn no_object_is_written_in_a_version_that_is_not_in_force() {
    let cluster = Cluster::on_etcd(&["1.37", "1.37", "1.37"]).await;
    let first = &cluster.servers[0];
    first.kubectl(&["apply", "-f", &cluster.file("crd.yaml", CRONTABS)]);
    for (number, server) in cluster.servers.iter().enumerate() {
        server.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd/crontabs.stable.example.com"]);
        let object = cluster.file("object.yaml", &crontab("v1", &format!("first-{number}"), "{}"));
        eventually_blocking("the server serves it", || server.try_kubectl(&["apply", "-f", &object]).status.success());
    }
    let done = keep_changing(&cluster).await;
    let checked = check_history(&cluster.etcd_endpoint()).await;
    assert!(checked.writes >= done, "the history holds every write");
    assert_eq!(checked.versions_in_force, FLIPS + 1);
    println!("{} writes, {} in v2, over {FLIPS} changes", checked.writes, checked.in_v2);
}

#[derive(Default)]
struct Checked {
    writes: u64,
    in_v2: u64,
    versions_in_force: usize,
}

/// Reads everything that was ever written to etcd, in order, and checks each object's version.
async fn check_history(endpoint: &str) -> Checked {
    let store = etcd_store(endpoint, "").await;
    let latest = store.status().await.unwrap().revision;
    let mut watch = store.watch(WatchRequest::from(KeyRange::all(), Revision::new(1))).await.unwrap();
    let mut checked = Checked::default();
    let mut in_force = String::new();
    let mut reached = Revision::ZERO;
    while reached < latest {
        let batch = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap().unwrap().unwrap();
        reached = batch.revision;
        for event in batch.events {
            let Change::Put(entry) = event.change else { continue };
            let key = String::from_utf8_lossy(entry.key.as_ref()).to_string();
            let value: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
            if key.ends_with("/customresourcedefinitions/crontabs.stable.example.com") {
                let versions = value["spec"]["versions"].as_array().unwrap();
                let storage = versions.iter().find(|version| version["storage"] == true).unwrap();
                let version = format!("stable.example.com/{}", storage["name"].as_str().unwrap());
                if version != in_force {
                    checked.versions_in_force += 1;
                    in_force = version;
                }
            } else if key.contains("/stable.example.com/crontabs/") {
                assert_eq!(value["apiVersion"], in_force.as_str(), "{key} at revision {}", event.revision);
                checked.writes += 1;
                checked.in_v2 += u64::from(in_force.ends_with("v2"));
            }
        }
    }
    checked
}
