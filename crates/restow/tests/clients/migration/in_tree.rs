//! `storagemigration.k8s.io/v1` on Restow, which kube-controller-manager implements elsewhere.

use super::{GROUP, PLURAL, Widgets, eventually};
use kube::api::{Api, DynamicObject, PostParams};
use restow_testkit::Server;
use serde_json::{Value, json};

async fn ask(migrations: &Api<DynamicObject>, name: &str, group: &str, resource: &str) {
    let migration: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "storagemigration.k8s.io/v1", "kind": "StorageVersionMigration", "metadata": {"name": name},
        "spec": {"resource": {"group": group, "resource": resource}},
    }))
    .unwrap();
    migrations.create(&PostParams::default(), &migration).await.unwrap();
}

/// The statuses of its conditions, by their type.
async fn condition(migrations: &Api<DynamicObject>, name: &str, kind: &str) -> Value {
    let status = migrations.get(name).await.unwrap().data["status"].clone();
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or(Value::Null)
}

#[tokio::test(flavor = "multi_thread")]
async fn in_tree_storage_version_migrations_run_on_restow() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up_with(folder.path(), &[]);
    let widgets = Widgets::new(&server, 20).await;
    let migrations =
        widgets.api("storagemigration.k8s.io", "v1", "StorageVersionMigration", "storageversionmigrations");
    ask(&migrations, "mine", GROUP, PLURAL).await;
    eventually("the migration has succeeded", async || {
        condition(&migrations, "mine", "Succeeded").await["status"] == "True"
    })
    .await;
    let running = condition(&migrations, "mine", "Running").await;
    assert_eq!((&running["status"], &running["reason"]), (&json!("False"), &json!("MigrationCompleted")));
    let revision = migrations.get("mine").await.unwrap().data["status"]["resourceVersion"].clone();
    assert!(revision.as_str().unwrap().parse::<u64>().unwrap() > 0);
    eventually("no mark is left", async || !widgets.is_marked().await).await;

    ask(&migrations, "of-nothing", "example.com", "nothings").await;
    eventually("a migration of nothing has failed", async || {
        condition(&migrations, "of-nothing", "Failed").await["status"] == "True"
    })
    .await;
}
