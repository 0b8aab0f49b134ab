//! Reports from before a restart that do not hold any more are withdrawn. A server that reports nothing ends the agreement. One
//! damaged StorageVersion stops no server.

use crate::custom_resources::{CRD, WIDGETS, clients_of, create_crd};
use crate::fleet::{Fleet, identity};
use crate::rolling_upgrade::{NEW, SLICES};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, PostParams};
use restow_store::{Key, RangeRequest, Store, Txn};
use restow_testkit::{crds, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const FOLDER: &str = "/internal.apiserver.k8s.io/storageversions/";

/// The names of all StorageVersions.
async fn storage_versions(fleet: &Fleet) -> BTreeSet<String> {
    let listed = fleet.store.range(RangeRequest::prefix(FOLDER)).await.unwrap();
    listed.entries.iter().map(|entry| entry.key.to_string().rsplit('/').next().unwrap().to_string()).collect()
}

async fn entries_of(fleet: &Fleet, name: &str) -> Vec<String> {
    let entries = fleet.status(name).await["storageVersions"].as_array().cloned().unwrap_or_default();
    entries.iter().map(|entry| entry["apiServerID"].as_str().unwrap().to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_of_a_crd_that_was_deleted_while_a_server_was_down_are_removed() {
    let mut fleet = Fleet::of(2).await;
    (0..2).for_each(|number| fleet.start(number, "1.37", &[]));
    let clients = clients_of(&fleet, &fleet.addresses).await;
    create_crd(&fleet, &clients).await;
    fleet.kill(1);
    crds(&clients[0]).delete(CRD, &DeleteParams::default()).await.unwrap();
    let withdrawn = async || entries_of(&fleet, WIDGETS).await == [identity(1)];
    eventually("the living server withdraws its report", withdrawn).await;
    fleet.start(1, "1.37", &[]);
    eventually("the report goes", async || !storage_versions(&fleet).await.contains(WIDGETS)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_server_leaves_no_reports_of_its_earlier_release() {
    let everything = ["--runtime-config", "api/all=true"];
    let mut fresh = Fleet::of(1).await;
    fresh.start(0, "1.37", &everything);
    let expected = storage_versions(&fresh).await;
    drop(fresh);
    let mut fleet = Fleet::of(1).await;
    fleet.start(0, "1.30", &everything);
    assert!(!storage_versions(&fleet).await.is_subset(&expected), "the old release serves what the new one does not");
    fleet.kill(0);
    fleet.start(0, "1.37", &everything);
    eventually("only what is served is reported", async || storage_versions(&fleet).await == expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_reports_nothing_ends_the_agreement_before_it_writes() {
    let mut fleet = Fleet::of(2).await;
    (0..2).for_each(|number| fleet.start(number, "1.37", &[]));
    let agreed = async |fleet: &Fleet| fleet.status(SLICES).await["commonEncodingVersion"] == NEW;
    eventually("both agree", async || agreed(&fleet).await).await;
    fleet.kill(1);
    fleet.start(1, "1.30", &["--feature-gates", "StorageVersionAPI=false"]);
    // The server was ready, so it could write; no server may report its version.
    let status = fleet.status(SLICES).await;
    assert_eq!(status["commonEncodingVersion"], Value::Null, "{status}");
    assert_eq!(entries_of(&fleet, SLICES).await, [identity(0)]);
    assert!(fleet.has_lease(1).await);
    let message = status["conditions"][0]["message"].as_str().unwrap();
    assert!(message.contains(&identity(1)), "the condition names the server: {message}");
    // A definition that is made meanwhile finds no agreement either.
    fleet.stop(1);
    eventually("the rest agrees without it", async || agreed(&fleet).await).await;
    fleet.start(1, "1.37", &[]);
    eventually("both report", async || entries_of(&fleet, SLICES).await.len() == 2).await;
    eventually("both agree again", async || agreed(&fleet).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_damaged_storage_version_object_stops_no_server() {
    let mut fleet = Fleet::of(2).await;
    fleet.start(0, "1.37", &[]);
    let configmaps = Key::try_from(format!("{FOLDER}core.configmaps")).unwrap();
    for damage in ["{", "{\"status\": 7}"] {
        fleet.store.txn(Txn::new().put(&configmaps, damage)).await.unwrap();
        fleet.start(1, "1.37", &[]);
        let clients = clients_of(&fleet, &fleet.addresses).await;
        let maps: Api<ConfigMap> = Api::namespaced(clients[1].clone(), "default");
        let map = json!({"metadata": {"generateName": "map-"}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        let agreed = async || fleet.status("core.configmaps").await["commonEncodingVersion"] == "v1";
        eventually("both have reported it again", async || entries_of(&fleet, "core.configmaps").await.len() == 2)
            .await;
        eventually("both agree", agreed).await;
        fleet.stop(1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_voting_withdraws_its_votes() {
    let elections = "/kube-apiserver.internal.k8s.io/storageversions/";
    let mut fleet = Fleet::of(1).await;
    let count = async |fleet: &Fleet| fleet.store.range(RangeRequest::prefix(elections)).await.unwrap().entries.len();
    fleet.start(0, "1.37", &["--storage-versions", "vote"]);
    assert!(count(&fleet).await > 0);
    fleet.kill(0);
    fleet.start(0, "1.37", &[]);
    eventually("no votes are left", async || count(&fleet).await == 0).await;
}

/// More dead servers than one transaction can compare.
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_dead_servers_are_collected() {
    let mut fleet = Fleet::of(1).await;
    fleet.start(0, "1.37", &[]);
    let key = Key::try_from(format!("{FOLDER}{SLICES}")).unwrap();
    let entry = restow_store::StoreExt::get(&fleet.store, &key).await.unwrap().unwrap();
    let mut object: Value = serde_json::from_slice(&entry.value).unwrap();
    let entries = object["status"]["storageVersions"].as_array_mut().unwrap();
    let dead = |number: usize| {
        let mut dead = entries[0].clone();
        dead["apiServerID"] = format!("dead-{number}").into();
        dead
    };
    let dead: Vec<Value> = (0..300).map(dead).collect();
    entries.extend(dead);
    fleet.store.txn(Txn::new().put(&key, object.to_string())).await.unwrap();
    eventually("only the living server is left", async || entries_of(&fleet, SLICES).await == [identity(0)]).await;
}
