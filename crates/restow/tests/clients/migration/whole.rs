//! A storage version is changed, and everything happens without a further command.

use super::{GROUP, KIND, PLURAL, Widgets, eventually, value_of};
use kube::api::ListParams;
use restow_api::storage_version_hash;
use restow_testkit::Server;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_storage_version_is_migrated_proven_and_reported_without_a_further_command() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up_with(folder.path(), &[]);
    let widgets = Widgets::new(&server, 1_000).await;
    let before = widgets.contents().await;
    widgets.wait_for("v1", "before the change").await;
    let guard = widgets.api(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
    );
    eventually("the guard is there", async || {
        guard.get_opt("storage-version-guard.restow.dev").await.unwrap().is_some()
    })
    .await;
    widgets.store_in("v2").await;
    widgets.wait_for("v2", "after the change").await;
    assert_eq!(widgets.census().await["v2"], 1_000);
    assert_eq!(widgets.contents().await, before);

    let resource = format!("{PLURAL}.{GROUP}");
    let metrics = async || {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        widgets.client.request_text(request).await.unwrap()
    };
    let rewritten = format!("restow_migration_objects{{resource=\"{resource}\",state=\"rewritten\"}}");
    let unmigrated = format!("restow_unmigrated_since_seconds{{resource=\"{resource}\"}}");
    eventually("the metrics of the server say so", async || {
        let text = metrics().await;
        value_of(&text, &rewritten) == Some(1_000.0) && value_of(&text, &unmigrated) == Some(0.0)
    })
    .await;

    let events = widgets.api("events.k8s.io", "v1", "Event", "events");
    eventually("events tell of it at the CRD and at the migration", async || {
        let list = events.list(&ListParams::default()).await.unwrap().items;
        let has = |reason: &str, kind: &str| {
            list.iter().any(|event| event.data["reason"] == reason && event.data["regarding"]["kind"] == kind)
        };
        ["MigrationStarted", "MigrationSucceeded", "StoredVersionsTrimmed"]
            .iter()
            .all(|reason| has(reason, "CustomResourceDefinition") && has(reason, "StorageVersionMigration"))
    })
    .await;
    let migrations = widgets.migrations().list(&ListParams::default()).await.unwrap().items;
    let mine = migrations.iter().find(|migration| migration.data["spec"]["resource"]["resource"] == PLURAL).unwrap();
    assert_eq!(mine.data["status"]["targetStorageVersionHash"], json!(storage_version_hash(GROUP, "v2", KIND)));
    assert_eq!(mine.data["status"]["counts"]["rewritten"], 1_000);
}
