//! Which migrations have a worker, and which of them run.

use super::*;
use crate::controller::fake_api::FakeApi;
use crate::controller::migration_api;
use restow_rules::trigger::PAUSED_ANNOTATION;
use serde_json::{Value, json};
use std::time::Duration;

fn migration(uid: &str, plural: &str, annotations: Value) -> MigrationObject {
    let spec = serde_json::from_value(json!({"resource": {"group": "example.com", "resource": plural}})).unwrap();
    let mut object = MigrationObject::new(uid, &migration_api(), spec);
    object.metadata.uid = Some(uid.to_owned());
    object.metadata.annotations = serde_json::from_value(annotations).unwrap();
    object
}

fn run(uid: &str, plural: &str) -> MigrationObject {
    migration(uid, plural, json!({}))
}

fn paused(uid: &str, plural: &str) -> MigrationObject {
    migration(uid, plural, json!({PAUSED_ANNOTATION: "true"}))
}

/// The workers of a server, and their queue.
fn workers(api: &FakeApi) -> (Workers, Arc<ReconcileQueue>) {
    let queue = Arc::new(ReconcileQueue::default());
    (Workers::new(api.context(), Arc::clone(&queue)), queue)
}

/// A server that cannot write, so that a worker runs until it is stopped.
fn stuck() -> FakeApi {
    FakeApi::new(|_| (503, json!("no store")))
}

/// A server of which nothing can be found out, so that migrations fail.
fn failing() -> FakeApi {
    FakeApi::new(|_| (404, json!("not served")))
}

/// The uid of each migration with a worker, and the worker's last command.
fn commands(workers: &Workers) -> Vec<(&str, RunControl)> {
    workers.running.iter().map(|(uid, worker)| (uid.as_str(), *worker.command.borrow())).collect()
}

fn names(workers: &Workers) -> Vec<String> {
    workers.resources().iter().map(ToString::to_string).collect()
}

/// Waits until a worker has ended.
async fn has_ended(queue: &ReconcileQueue, name: &str) {
    let request = tokio::time::timeout(Duration::from_secs(600), queue.next()).await.expect("a worker ends");
    assert_eq!(request, ReconcileRequest::resource(name.parse().unwrap()), "others may wait for this resource");
}

#[tokio::test(start_paused = true)]
async fn each_live_migration_has_a_worker_and_one_of_each_resource_runs() {
    let (api, all) = (stuck(), RunControl::Run);
    let (mut workers, _queue) = workers(&api);
    workers.reconcile(vec![run("a", "widgets"), run("b", "gadgets"), run("c", "widgets")], all);
    assert_eq!(commands(&workers), [("a", RunControl::Run), ("b", RunControl::Run)]);
    assert_eq!(names(&workers), ["gadgets.example.com", "widgets.example.com"]);
    // A paused migration does not block one that is not paused, but another paused one.
    workers.reconcile(vec![paused("a", "widgets"), run("b", "gadgets"), paused("c", "widgets")], all);
    assert_eq!(commands(&workers), [("a", RunControl::Pause), ("b", RunControl::Run)]);
    workers.reconcile(vec![paused("a", "widgets"), run("b", "gadgets"), run("c", "widgets")], all);
    let both = [("a", RunControl::Pause), ("b", RunControl::Run), ("c", RunControl::Run)];
    assert_eq!(commands(&workers), both);
    workers.reconcile(vec![run("a", "widgets"), run("b", "gadgets"), run("c", "widgets")], RunControl::Pause);
    assert!(commands(&workers).iter().all(|(_, command)| *command == RunControl::Pause), "all are paused");
    tokio::time::timeout(Duration::from_secs(600), workers.stop_all()).await.expect("stopped workers end");
}

#[tokio::test(start_paused = true)]
async fn the_worker_of_a_deleted_migration_stops_and_the_next_one_of_its_resource_starts() {
    let (api, all) = (stuck(), RunControl::Run);
    let (mut workers, queue) = workers(&api);
    workers.reconcile(vec![run("a", "widgets"), run("b", "widgets")], all);
    workers.reconcile(vec![run("b", "widgets")], all);
    assert_eq!(commands(&workers), [("a", RunControl::Stop)], "they do not run at the same time");
    workers.reconcile(vec![run("a", "widgets"), run("b", "widgets")], all);
    assert_eq!(commands(&workers), [("a", RunControl::Stop)], "a stopped worker does not go on");
    has_ended(&queue, "widgets.example.com").await;
    assert_eq!(names(&workers), Vec::<String>::new());
    workers.reconcile(vec![run("b", "widgets")], all);
    assert_eq!(commands(&workers), [("b", RunControl::Run)]);
    workers.stop_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_migration_that_has_ended_runs_again_after_a_resync_only() {
    let (api, all) = (failing(), RunControl::Run);
    let (mut workers, queue) = workers(&api);
    let seen = || vec![run("a", "widgets")];
    workers.reconcile(seen(), all);
    has_ended(&queue, "widgets.example.com").await;
    let writes = || api.calls().iter().filter(|call| call.starts_with("PATCH") && call.contains("/a/status")).count();
    assert_eq!(writes(), 2, "running, and failed: {:?}", api.calls());
    workers.reconcile(seen(), all);
    assert_eq!(commands(&workers), [], "its status may have been read before it was written");
    workers.reconcile(seen(), all);
    assert_eq!(commands(&workers), []);
    workers.forget_ended();
    workers.reconcile(seen(), all);
    assert_eq!(commands(&workers), [("a", RunControl::Run)]);
    workers.stop_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_migration_that_has_ended_and_is_deleted_is_forgotten() {
    let (api, all) = (failing(), RunControl::Run);
    let (mut workers, queue) = workers(&api);
    workers.reconcile(vec![run("a", "widgets")], all);
    has_ended(&queue, "widgets.example.com").await;
    workers.reconcile(vec![run("a", "widgets")], all);
    assert_eq!(workers.ended, BTreeSet::from(["a".to_owned()]));
    let mut over = run("a", "widgets");
    over.status = serde_json::from_value(json!({"conditions": [{"type": "Failed", "status": "True"}]})).unwrap();
    workers.reconcile(vec![over], all);
    assert!(workers.ended.is_empty() && workers.running.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_migration_that_names_no_resource_fails_and_is_refused_once() {
    let api = FakeApi::new(|_| (200, json!({"metadata": {}, "spec": {}})));
    let (mut workers, _queue) = workers(&api);
    for _ in 0..3 {
        workers.reconcile(vec![run("a", "no name")], RunControl::Run);
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let requests = api.requests();
    assert_eq!((requests.len(), requests[0].method.as_str()), (1, "PATCH"), "{requests:?}");
    let body = &requests[0].body;
    assert_eq!((&body["metadata"]["uid"], &body["status"]["conditions"][0]["type"]), (&json!("a"), &json!("Failed")));
    assert!(workers.running.is_empty());
}

#[test]
fn a_migration_need_not_name_a_version_but_has_to_name_a_resource() {
    let spec = |resource: serde_json::Value| {
        serde_json::from_value::<StorageVersionMigrationSpec>(json!({ "resource": resource })).unwrap()
    };
    let widgets: GroupResource = "widgets.example.com".parse().unwrap();
    for named_version in [json!(""), json!("v1"), json!("not a version")] {
        let one = json!({"group": "example.com", "version": named_version, "resource": "widgets"});
        assert_eq!(named(&spec(one)).unwrap(), widgets, "{named_version}");
    }
    assert_eq!(named(&spec(json!({"group": "example.com", "resource": "widgets"}))).unwrap(), widgets);
    for wrong in [json!({}), json!({"group": "example.com"}), json!({"group": "A b", "resource": "widgets"})] {
        assert!(named(&spec(wrong.clone())).is_err(), "{wrong}");
    }
}
