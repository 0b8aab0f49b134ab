//! Requests to reconcile, the versions that watches have shown, and which events of a watch request what.

use super::*;
use crate::controller::fake_api::{ApiRequest, FakeApi};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};

fn resource(name: &str) -> GroupResource {
    name.parse().unwrap()
}

#[test]
fn a_request_includes_the_resources_that_it_names() {
    let (widgets, gadgets) = (resource("widgets.example.com"), resource("gadgets.example.com"));
    let one = ReconcileRequest::resource(widgets.clone());
    assert!(one.includes(&widgets) && !one.includes(&gadgets) && !one.is_all());
    assert_eq!(one.resources(), &BTreeSet::from([widgets.clone()]));
    assert!(ReconcileRequest::all().includes(&gadgets) && ReconcileRequest::all().is_all());
    assert!(ReconcileRequest::default().is_empty() && !one.is_empty() && !ReconcileRequest::all().is_empty());
    assert!(!ReconcileRequest::default().includes(&widgets));
}

#[test]
fn a_request_for_everything_includes_all_others() {
    let mut with_all = ReconcileRequest::resource(resource("widgets.example.com"));
    with_all.add(ReconcileRequest::resource(resource("pods")));
    assert_eq!(with_all.resources(), &["pods", "widgets.example.com"].map(resource).into());
    assert!(!with_all.is_all());
    with_all.add(ReconcileRequest::all());
    assert!(with_all.is_all() && with_all.includes(&resource("gadgets.example.com")));
    with_all.add(ReconcileRequest::default());
    assert!(with_all.is_all(), "another request does not make it smaller");
}

#[tokio::test(start_paused = true)]
async fn requests_at_the_same_time_are_merged() {
    let queue = ReconcileQueue::default();
    let names = ["widgets.example.com", "gadgets.example.com"].map(resource);
    names.iter().for_each(|name| queue.enqueue(ReconcileRequest::resource(name.clone())));
    assert_eq!(queue.next().await.resources(), &BTreeSet::from(names));
    let more = tokio::time::timeout(Duration::from_secs(3600), queue.next()).await;
    assert!(more.is_err(), "nothing is requested twice: {more:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_request_is_returned_at_once_and_the_next_ones_with_a_pause() {
    let queue = ReconcileQueue::default();
    let began = Instant::now();
    let mut times = Vec::new();
    for _ in 0..3 {
        queue.enqueue(ReconcileRequest::all());
        queue.next().await;
        times.push(began.elapsed());
    }
    assert_eq!(times, [MERGED, MERGED + PAUSE, MERGED + 2 * PAUSE]);
}

#[tokio::test(start_paused = true)]
async fn everything_is_reconciled_once_at_the_earliest_time_that_was_asked_for() {
    let queue = ReconcileQueue::default();
    let later = |seconds: i64| restow_host::now().checked_add(jiff::SignedDuration::from_secs(seconds)).ok();
    for due in [later(600), later(60), None, later(6000)] {
        queue.requeue_at(due);
    }
    let began = tokio::time::Instant::now();
    assert!(queue.next().await.is_all());
    let waited = began.elapsed().as_secs();
    assert!((50..=61).contains(&waited), "{waited} s");
    assert!(tokio::time::timeout(Duration::from_secs(10_000), queue.next()).await.is_err());
}

#[test]
fn the_versions_that_watches_have_shown_are_taken_once() {
    let (queue, widgets) = (ReconcileQueue::default(), resource("widgets.example.com"));
    let first = queue.take_observed(&widgets, "Widget");
    assert!(first.encodings.is_empty() && first.looked_at.is_none());
    assert!(!first.is_unbroken, "what was stored before the first reconcile is unknown");
    queue.saw(&widgets, "example.com/v1".to_owned());
    queue.saw(&widgets, "example.com/v2".to_owned());
    queue.looked(widgets.clone(), Moment::now());
    let second = queue.take_observed(&widgets, "Widget");
    assert_eq!(second.encodings, BTreeSet::from(["example.com/v1", "example.com/v2"].map(String::from)));
    assert_eq!(second.hashes, ["example.com/v1", "example.com/v2"].map(|version| hash_of(version, "Widget")));
    assert!(second.is_unbroken && second.looked_at.is_some());
    assert!(queue.take_observed(&widgets, "Widget").encodings.is_empty());
    queue.restore_observed(&widgets, second.encodings.clone());
    assert_eq!(queue.take_observed(&widgets, "Widget").encodings, second.encodings, "they could not be written");
    queue.forget_watched();
    assert!(!queue.take_observed(&widgets, "Widget").is_unbroken, "the watch began again");
}

#[test]
fn the_name_of_a_storage_version_names_its_resource() {
    for (name, expected) in [
        ("core.pods", Some("pods")),
        ("apps.deployments", Some("deployments.apps")),
        ("example.com.widgets", Some("widgets.example.com")),
        ("pods", None),
    ] {
        assert_eq!(resource_of_report(name), expected.map(resource), "{name}");
    }
}

/// A server that lists this object, and then sends these events, each after a watch that failed.
fn watched(listed: Value, events: Vec<(&'static str, Value)>) -> FakeApi {
    let watches = AtomicUsize::new(0);
    FakeApi::new(move |request: &ApiRequest| {
        if !request.path.contains("watch=") {
            let metadata = json!({"resourceVersion": "1"});
            return (200, json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": [listed]}));
        }
        let watch = watches.fetch_add(1, Ordering::Relaxed);
        match events.get(watch / 2) {
            Some((kind, object)) if watch % 2 == 1 => (200, json!({"type": kind, "object": object})),
            _ => (500, json!("no watch")),
        }
    })
}

/// What a watch requests, in order: everything, or the names of resources.
async fn requested(queue: &ReconcileQueue, watch: impl Future<Output = ()> + Send + 'static) -> Vec<String> {
    let watch = tokio::spawn(watch);
    let mut found = Vec::new();
    while let Ok(request) = tokio::time::timeout(Duration::from_secs(300), queue.next()).await {
        let names: Vec<String> = request.resources().iter().map(ToString::to_string).collect();
        found.push(if request.is_all() { "all".to_owned() } else { names.join(" ") });
    }
    watch.abort();
    found
}

#[tokio::test(start_paused = true)]
async fn a_crd_that_is_listed_or_changed_is_reconciled_and_a_deleted_one_needs_a_resync() {
    let crd = |plural: &str, version: &str| {
        let versions = json!([{"name": "v0", "served": true}, {"name": version, "served": true, "storage": true}]);
        json!({
            "metadata": {"name": format!("{plural}.example.com"), "resourceVersion": "2"},
            "spec": {"group": "example.com", "names": {"plural": plural, "kind": "Widget"}, "versions": versions},
        })
    };
    let changed = vec![("MODIFIED", crd("gadgets", "v2")), ("DELETED", crd("gadgets", "v2"))];
    let (api, queue) = (watched(crd("widgets", "v1"), changed), Arc::new(ReconcileQueue::default()));
    let watch = watch_crds(crds(&api.context()), Arc::clone(&queue));
    assert_eq!(requested(&queue, watch).await, ["widgets.example.com", "gadgets.example.com", "all"]);
    for (name, version) in [("widgets.example.com", "example.com/v1"), ("gadgets.example.com", "example.com/v2")] {
        let seen = queue.take_observed(&resource(name), "Widget").encodings;
        assert_eq!(seen, BTreeSet::from([version.to_owned()]), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_migration_that_is_listed_changed_or_deleted_is_reconciled() {
    let migration = |plural: &str| {
        json!({
            "apiVersion": "migration.k8s.io/v1alpha1", "kind": "StorageVersionMigration",
            "metadata": {"name": plural, "resourceVersion": "2"},
            "spec": {"resource": {"group": "example.com", "resource": plural}},
        })
    };
    let events =
        vec![("ADDED", migration("gadgets")), ("DELETED", migration("gizmos")), ("ADDED", migration("NO NAME"))];
    let (api, queue) = (watched(migration("widgets"), events), Arc::new(ReconcileQueue::default()));
    let watch = watch_migrations(api.context().migrations(), Arc::clone(&queue));
    let expected = ["widgets.example.com", "gadgets.example.com", "gizmos.example.com"];
    assert_eq!(requested(&queue, watch).await, expected);
}

#[tokio::test(start_paused = true)]
async fn the_versions_in_a_report_are_seen_and_a_new_list_may_have_missed_some() {
    let report = |name: &str, version: &str| {
        let entry = json!({"apiServerID": "a", "encodingVersion": version, "decodableVersions": []});
        json!({
            "apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion",
            "metadata": {"name": name, "resourceVersion": "2"}, "spec": {}, "status": {"storageVersions": [entry]},
        })
    };
    let changed = vec![("MODIFIED", report("apps.deployments", "apps/v2"))];
    let (api, queue) = (watched(report("core.pods", "v1"), changed), Arc::new(ReconcileQueue::default()));
    let pods = resource("pods");
    queue.take_observed(&pods, "Pod");
    assert!(queue.take_observed(&pods, "Pod").is_unbroken);
    let reported = Api::all_with(api.client.clone(), &storage_version_api());
    let watch = watch_reports(reported, Arc::clone(&queue));
    assert_eq!(requested(&queue, watch).await, ["pods", "deployments.apps"]);
    let seen = queue.take_observed(&pods, "Pod");
    assert_eq!((seen.encodings, seen.is_unbroken), (BTreeSet::from(["v1".to_owned()]), false));
    let seen = queue.take_observed(&resource("deployments.apps"), "Deployment");
    assert_eq!(seen.encodings, BTreeSet::from(["apps/v2".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_joins_restarts_or_leaves_needs_a_resync_and_a_renewed_lease_does_not() {
    let lease = |holder: &str, renewed: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "server", "namespace": "kube-system", "uid": "u", "resourceVersion": "2"},
            "spec": {"holderIdentity": holder, "renewTime": renewed},
        })
    };
    let (early, late) = ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:10.000000Z");
    for (events, expected) in [
        (vec![], vec!["all"]),
        (vec![("MODIFIED", lease("first", late))], vec!["all"]),
        (vec![("MODIFIED", lease("second", late))], vec!["all", "all"]),
        (vec![("DELETED", lease("first", early))], vec!["all", "all"]),
        (vec![("DELETED", lease("first", early)), ("ADDED", lease("first", early))], vec!["all", "all", "all"]),
    ] {
        let (api, queue) = (watched(lease("first", early), events.clone()), Arc::new(ReconcileQueue::default()));
        let leases: Api<Lease> = Api::namespaced(api.client.clone(), "kube-system");
        let sign = |lease: &Lease| format!("{:?}", lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()));
        let watch = watch_names(leases, API_SERVER_LEASES, sign, Arc::clone(&queue));
        assert_eq!(requested(&queue, watch).await, expected, "{events:?}");
        assert!(api.calls().iter().all(|call| call.contains("labelSelector=")), "{:?}", api.calls());
    }
}

#[tokio::test(start_paused = true)]
async fn crds_migrations_reports_endpoints_and_leases_are_watched() {
    let api = FakeApi::new(|_| (403, json!("forbidden")));
    let watching = watch_cluster(&api.context(), Arc::default());
    tokio::time::sleep(Duration::from_secs(60)).await;
    watching.abort();
    for path in [
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?",
        "/apis/migration.k8s.io/v1alpha1/storageversionmigrations?",
        "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions?",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?",
    ] {
        assert!(api.requests().iter().any(|request| request.path.starts_with(path)), "{path}: {:?}", api.calls());
    }
}
