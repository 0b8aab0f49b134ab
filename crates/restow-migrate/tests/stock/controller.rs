//! The whole controller: it installs, sees a change, migrates, and reports it.

use crate::fixture::{Fixture, alone, cluster};
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use restow_api::storage_version_hash;
use restow_migrate::controller::{self, ControllerConfig, Metrics, ResourceFilter};
use restow_migrate::crd;
use restow_migrate::install::{InstallAction, InstallOptions, install};
use restow_rules::migrate::stored_versions::MIGRATING_ANNOTATION;
use restow_testkit::eventually;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::watch;

#[tokio::test]
async fn a_changed_storage_version_is_migrated_without_a_further_command() {
    let Some(cluster) = cluster().await else { return };
    let _alone = alone().await;
    install(cluster.client(), &InstallOptions::default()).await.unwrap();
    let again = install(cluster.client(), &InstallOptions::default()).await.unwrap();
    let changed: Vec<_> = again.iter().filter(|installed| installed.action != InstallAction::Unchanged).collect();
    assert!(changed.is_empty(), "installing twice changes nothing: {changed:?}");

    let Some(fixture) = Fixture::alone("autos", 300).await else { return };
    let config = |identity: &str| ControllerConfig {
        identity: identity.to_owned(),
        resources: ResourceFilter::Custom,
        poll_interval: Duration::from_secs(3_600),
        ..ControllerConfig::default()
    };
    let metrics = Metrics::default();
    let (stop, stopped) = watch::channel(false);
    // Two controllers; one is the leader.
    let first = tokio::spawn(controller::run(cluster.clone(), config("one"), metrics.clone(), stopped.clone()));
    let second = tokio::spawn(controller::run(cluster.clone(), config("two"), Metrics::default(), stopped));
    let kind = GroupVersionKind::gvk("migration.k8s.io", "v1alpha1", "StorageState");
    let states = ApiResource::from_gvk_with_plural(&kind, "storagestates");
    let states: Api<DynamicObject> = Api::all_with(cluster.client().clone(), &states);
    let persisted = async || {
        let state = states.get_opt(&fixture.resource.to_string()).await.unwrap();
        let status = state.map(|state| state.data["status"].clone()).unwrap_or(Value::Null);
        let current = status["currentStorageVersionHash"].clone();
        (status["persistedStorageVersionHashes"].clone(), current)
    };
    // A StorageState of an earlier run may exist, so the test compares the version.
    let is_settled = |(persisted, current): &(Value, Value), version: &str| {
        let hash = storage_version_hash("migrate.restow.test", version, "Autos");
        *persisted == json!([hash]) && *current == json!(hash)
    };
    eventually("the first migration is accounted for", async || is_settled(&persisted().await, "v1")).await;
    fixture.store_in("v2").await;
    eventually("the stored versions are trimmed", async || fixture.stored_versions().await == ["v2"]).await;
    eventually("the StorageState names only this version", async || is_settled(&persisted().await, "v2")).await;
    eventually("the mark is gone", async || !fixture.is_marked().await).await;
    stop.send_replace(true);
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(fixture.numbers().await.len(), 300);
    fixture.remove().await;
}

#[tokio::test]
async fn the_guard_refuses_only_changes_of_the_storage_version_during_a_migration() {
    let Some(cluster) = cluster().await else { return };
    let _alone = alone().await;
    install(cluster.client(), &InstallOptions::default()).await.unwrap();
    let Some(fixture) = Fixture::alone("guards", 1).await else { return };
    let mark = |value: Value| json!({ MIGRATING_ANNOTATION: value });
    eventually("the CRD is marked", async || {
        crd::annotate(cluster.client(), &fixture.crd().await, mark(json!("true"))).await.is_ok()
    })
    .await;
    // A new policy takes a moment to be in force. Changing back and forth is allowed as long as it is not.
    let mut versions = ["v2", "v1"].into_iter().cycle();
    let mut refusal = String::new();
    eventually("the guard is in force", async || match fixture.try_to_store_in(versions.next().unwrap()).await {
        Ok(()) => false,
        Err(error) => {
            refusal = error.to_string();
            true
        }
    })
    .await;
    assert!(refusal.contains("cannot be changed while the stored objects are being migrated"), "{refusal}");
    fixture.rename().await;
    crd::annotate(cluster.client(), &fixture.crd().await, mark(Value::Null)).await.unwrap();
    eventually("the storage version can be changed again", async || {
        fixture.try_to_store_in("v2").await.is_ok() && fixture.try_to_store_in("v1").await.is_ok()
    })
    .await;
    fixture.remove().await;
}
