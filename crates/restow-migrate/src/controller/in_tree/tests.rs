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

/// The statuses that were written: the type and status of their conditions.
fn written(api: &FakeApi) -> Vec<Vec<[String; 2]>> {
    let patches = api.requests().into_iter().filter(|request| request.method == "PATCH");
    let conditions = |body: Value| -> Vec<[String; 2]> {
        let conditions = body["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let said = |one: &Value| ["type", "status"].map(|field| one[field].as_str().unwrap_or_default().to_owned());
        conditions.iter().map(said).collect()
    };
    patches.map(|request| conditions(request.body)).collect()
}

fn conditions(expected: &[[&str; 2]]) -> Vec<[String; 2]> {
    expected.iter().map(|condition| condition.map(str::to_owned)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_migration_waits_for_another_one_of_its_resource_and_says_how_it_ended() {
    let api = FakeApi::new(|request| match request.method.as_str() {
        "PATCH" => (200, json!({"metadata": {}, "spec": {"resource": {"resource": "widgets"}}})),
        _ => (404, json!("not served")),
    });
    let (context, queue) = (api.context(), Arc::new(ReconcileQueue::default()));
    let widgets: GroupResource = "widgets.example.com".parse().unwrap();
    let other = context.in_tree.take(&widgets).unwrap();
    let task = tokio::spawn(carry_out(context.clone(), Arc::clone(&queue), migration(json!([]))));
    tokio::time::sleep(WAIT * 10).await;
    assert_eq!(api.calls(), Vec::<String>::new(), "another one has the resource");
    drop(other);
    tokio::time::timeout(WAIT * 10, task).await.expect("it ends").unwrap();
    let ended = conditions(&[["Running", "False"], ["Failed", "True"]]);
    assert_eq!(written(&api), [conditions(&[["Running", "True"]]), ended]);
    assert!(context.in_tree.resources().is_empty(), "the next one can begin");
    assert_eq!(queue.next().await, ReconcileRequest::resource(widgets));
}

#[tokio::test]
async fn a_migration_that_names_no_resource_fails_at_once() {
    let api = FakeApi::new(|_| (200, json!({"metadata": {}, "spec": {"resource": {"resource": "widgets"}}})));
    let mut nameless = migration(json!([]));
    nameless.spec = serde_json::from_value(json!({"resource": {"group": "A b", "resource": ""}})).unwrap();
    carry_out(api.context(), Arc::default(), nameless).await;
    assert_eq!(written(&api), [conditions(&[["Running", "False"], ["Failed", "True"]])]);
}

#[tokio::test(start_paused = true)]
async fn live_migrations_are_carried_out_once_and_a_deleted_one_is_stopped() {
    // A watch that fails between two events lets time pass.
    let watches = std::sync::atomic::AtomicUsize::new(0);
    let over = json!([{"type": "Failed", "status": "True"}]);
    let named = |uid: &str, conditions: &Value| {
        let mut migration = json!(migration(conditions.clone()));
        migration["metadata"] = json!({"name": uid, "uid": uid, "resourceVersion": "2"});
        migration
    };
    let live = json!([]);
    let events =
        [("MODIFIED", named("listed", &live)), ("ADDED", named("over", &over)), ("DELETED", named("listed", &live))];
    let listed = named("listed", &live);
    let api = FakeApi::new(move |request| match (request.method.as_str(), request.path.as_str()) {
        (_, "/version") => (200, version_info("v1.37.0+restow")),
        ("GET", path) if path.contains("watch=") => {
            let watch = watches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            match events.get(watch / 2) {
                Some((kind, object)) if watch % 2 == 1 => (200, json!({"type": kind, "object": object})),
                _ => (500, json!("no watch")),
            }
        }
        ("GET", path) if path.contains("/storageversionmigrations?") && !path.contains("limit=1") => {
            let metadata = json!({"resourceVersion": "1"});
            (200, json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": [listed]}))
        }
        ("GET", _) => (404, json!("not served")),
        // The status cannot be written, so the migration is under way until it is deleted.
        _ => (500, json!("no store")),
    });
    let (context, queue) = (api.context(), Arc::new(ReconcileQueue::default()));
    let following = tokio::spawn(follow(context.clone(), Arc::clone(&queue)));
    let resync = tokio::time::timeout(Duration::from_secs(600), queue.next()).await.expect("it was deleted");
    assert!(resync.is_all(), "its mark has to be removed");
    // An aborted task releases its resource.
    tokio::time::sleep(WAIT).await;
    assert!(context.in_tree.resources().is_empty());
    let paths: BTreeSet<String> =
        api.requests().into_iter().filter(|request| request.method == "PATCH").map(|request| request.path).collect();
    assert!(paths.len() == 1 && paths.iter().all(|path| path.contains("/listed/status")), "{paths:?}");
    following.abort();
}
