//! Requests to reconcile, and the versions that watches have shown. The watches themselves run in the simulation.

use super::*;

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
