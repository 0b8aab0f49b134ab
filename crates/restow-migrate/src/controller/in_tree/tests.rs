//! Conditions of in-tree migrations, and that a resource is migrated by one of them at a time.

use super::*;
use crate::controller::fake_api::FakeApi;

fn migration(conditions: Value) -> InTreeMigration {
    serde_json::from_value(json!({
        "apiVersion": "storagemigration.k8s.io/v1", "kind": "StorageVersionMigration",
        "metadata": {"name": "m", "uid": "u", "generation": 4},
        "spec": {"resource": {"group": "example.com", "resource": "widgets"}},
        "status": {"conditions": conditions},
    }))
    .unwrap()
}

#[test]
fn a_migration_is_live_until_it_has_succeeded_or_failed() {
    for (conditions, expected) in [
        (json!([]), true),
        (json!([{"type": "Running", "status": "True"}]), true),
        (json!([{"type": "Succeeded", "status": "False"}]), true),
        (json!([{"type": "Running", "status": "False"}, {"type": "Succeeded", "status": "True"}]), false),
        (json!([{"type": "Failed", "status": "True"}]), false),
    ] {
        assert_eq!(is_live(&migration(conditions.clone())), expected, "{conditions}");
    }
    let mut new = migration(json!([]));
    new.status = None;
    assert!(is_live(&new));
}

#[test]
fn the_conditions_of_the_end_are_those_of_kubernetes() {
    let status = ended(&migration(json!([])), MigrationCondition::FAILED, "why");
    let said = |number: usize| {
        let condition = &status["conditions"][number];
        assert_eq!(condition["observedGeneration"], 4);
        assert!(condition["lastTransitionTime"].is_string());
        ["type", "status", "reason", "message"].map(|field| condition[field].as_str().unwrap().to_owned())
    };
    assert_eq!(said(0), ["Running", "False", "MigrationCompleted", "Migration completed"]);
    assert_eq!(said(1), ["Failed", "True", "StorageVersionMigrationFailed", "why"]);
}

#[test]
fn a_resource_is_claimed_by_one_migration_at_a_time() {
    let (in_tree, widgets) = (InTree::default(), "widgets.example.com".parse().unwrap());
    let taken = in_tree.take(&widgets);
    assert!(taken.is_some() && in_tree.clone().take(&widgets).is_none());
    assert_eq!(in_tree.resources(), BTreeSet::from([widgets.clone()]));
    drop(taken);
    assert!(in_tree.resources().is_empty() && in_tree.take(&widgets).is_some());
}

#[tokio::test(start_paused = true)]
async fn the_in_tree_api_is_reconciled_on_restow_api_servers_only() {
    for (version, expected) in [("v1.37.0+restow", true), ("v1.37.0", false), ("v1.37.0+restow.1", false)] {
        let tries = std::sync::atomic::AtomicUsize::new(0);
        let api = FakeApi::new(move |_| match tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => (503, json!("starting")),
            _ => (200, version_info(version)),
        });
        assert_eq!(is_ours(&api.context()).await, expected, "{version}");
        assert_eq!(api.calls(), ["GET /version", "GET /version"]);
    }
}

fn version_info(git_version: &str) -> Value {
    json!({"major": "1", "minor": "37", "gitVersion": git_version, "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": ""})
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_again_until_the_server_has_answered() {
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let api = FakeApi::new(move |_| match tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => (500, json!("no store")),
        1 => (429, json!("later")),
        _ => (404, json!("it was deleted")),
    });
    write(&api.context(), &migration(json!([])), json!({"resourceVersion": "9"})).await;
    let requests = api.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests[0].path.starts_with("/apis/storagemigration.k8s.io/v1/storageversionmigrations/m/status"));
    assert_eq!(requests[0].body, json!({"metadata": {"uid": "u"}, "status": {"resourceVersion": "9"}}));
}

#[tokio::test]
async fn the_status_shows_the_resource_version_of_the_start() {
    let list = json!({"apiVersion": "storagemigration.k8s.io/v1", "kind": "StorageVersionMigrationList",
        "metadata": {"resourceVersion": "71"}, "items": []});
    let api = FakeApi::new(move |_| (200, list.clone()));
    assert_eq!(revision(&api.context()).await, "71");
    assert!(api.calls()[0].ends_with("limit=1"), "{:?}", api.calls());
    let unavailable = FakeApi::new(|_| (500, json!("no store")));
    assert_eq!(revision(&unavailable.context()).await, "");
}
