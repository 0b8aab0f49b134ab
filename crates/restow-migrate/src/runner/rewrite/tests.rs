//! What is sent to rewrite one object, and what the answers amount to.

use super::*;
use crate::controller::fake_api::{ApiRequest, FakeApi};
use std::sync::atomic::{AtomicUsize, Ordering};

fn rewriting(resource: &str) -> Rewriting {
    Rewriting {
        resource: StoredResource {
            resource: resource.parse().unwrap(),
            kind: "Widget".to_owned(),
            is_namespaced: true,
            hash: None,
        },
        mode: WriteMode::Write,
        method: RewriteMethod::Patch,
        owners: None,
        other_versions: Vec::new(),
    }
}

fn widgets() -> Rewriting {
    rewriting("widgets.v1.example.com")
}

fn listed() -> ListedObject {
    ListedObject {
        namespace: "n".to_owned(),
        name: "a".to_owned(),
        uid: "u".to_owned(),
        resource_version: "5".to_owned(),
        managed_fields: Vec::new(),
    }
}

/// The object at this resource version, as a server returns it.
fn at(resource_version: &str) -> (u16, Value) {
    (200, json!({"metadata": {"namespace": "n", "name": "a", "uid": "u", "resourceVersion": resource_version}}))
}

/// The result of rewriting an object of resource version 5 on these servers, and all requests.
async fn result(
    rewriting: &Rewriting,
    servers: usize,
    answer: impl Fn(&ApiRequest, usize) -> (u16, Value) + Send + Sync + 'static,
) -> (ObjectResult, Vec<ApiRequest>) {
    let writes = AtomicUsize::new(0);
    let api = FakeApi::new(move |request| {
        let before = writes.fetch_add(usize::from(request.method != "GET"), Ordering::Relaxed);
        answer(request, before)
    });
    let instance = |number: usize| Instance { name: format!("server {number}"), client: api.client.clone() };
    let task = RewriteTask { object: listed(), ..RewriteTask::default() };
    let result = rewriting.rewrite_on_each((0..servers).map(instance).collect(), task).await;
    (result, api.requests())
}

fn busy() -> (u16, Value) {
    (503, json!("starting"))
}

#[test]
fn events_are_written_through_the_group_that_their_managed_fields_name() {
    let by = |version: &str| vec![json!({"apiVersion": version, "manager": "m"})];
    for (resource, managed_fields, expected) in [
        ("events.v1", by("events.k8s.io/v1"), "/apis/events.k8s.io/v1/namespaces/n/events/a"),
        ("events.v1", by("v1"), "/api/v1/namespaces/n/events/a"),
        ("events.v1", Vec::new(), "/api/v1/namespaces/n/events/a"),
        ("pods.v1", by("events.k8s.io/v1"), "/api/v1/namespaces/n/pods/a"),
        ("events.v1.example.com", by("events.k8s.io/v1"), "/apis/example.com/v1/namespaces/n/events/a"),
    ] {
        let listed = ListedObject { managed_fields, ..listed() };
        assert_eq!(rewriting(resource).path(&listed), expected, "{listed:?}");
    }
    for (resource, expected) in [
        ("events.v1", Detail::ManagedFields),
        ("pods.v1", Detail::Identity),
        ("events.v1.example.com", Detail::Identity),
    ] {
        assert_eq!(rewriting(resource).detail(), expected, "{resource}");
    }
    let owners = Some(ManagedFieldsPlan { staying: Default::default(), target: "example.com/v2".to_owned() });
    assert_eq!(Rewriting { owners, ..widgets() }.detail(), Detail::ManagedFields);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_current_if_its_resource_version_stays_and_rewritten_otherwise() {
    for (mode, returned, changed) in [
        (WriteMode::Write, "5", Changed::No),
        (WriteMode::Write, "6", Changed::Yes),
        (WriteMode::DryRun, "5", Changed::No),
        (WriteMode::DryRun, "6", Changed::No),
    ] {
        let rewriting = Rewriting { mode, ..widgets() };
        let (found, requests) = result(&rewriting, 1, move |_, _| at(returned)).await;
        assert_eq!(found, ObjectResult::Done(ObjectOutcome::Current, changed), "{mode:?} {returned}");
        let [request] = requests.as_slice() else { panic!("{requests:?}") };
        assert_eq!(request.path.contains("dryRun=All"), mode == WriteMode::DryRun);
        assert_eq!(request.body, json!({"metadata": {"uid": "u", "resourceVersion": "5"}}), "preconditions");
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_can_be_read_and_written_back() {
    for (mode, parameter) in [(WriteMode::Write, false), (WriteMode::DryRun, true)] {
        let rewriting = Rewriting { method: RewriteMethod::Put, mode, ..widgets() };
        let (found, requests) = result(&rewriting, 1, |_, _| at("5")).await;
        assert_eq!(found, ObjectResult::Done(ObjectOutcome::Current, Changed::No));
        let sent: Vec<(&str, bool)> =
            requests.iter().map(|one| (one.method.as_str(), one.path.contains("dryRun=All"))).collect();
        assert_eq!(sent, [("GET", false), ("PUT", parameter)]);
        assert_eq!(requests[1].body, at("5").1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_busy_is_asked_again_but_not_forever() {
    let (found, requests) = result(&widgets(), 1, |_, before| if before < 3 { busy() } else { at("5") }).await;
    assert_eq!((found, requests.len()), (ObjectResult::Done(ObjectOutcome::Current, Changed::No), 4));
    let (found, requests) = result(&widgets(), 1, |_, _| busy()).await;
    assert!(
        matches!(&found, ObjectResult::Done(ObjectOutcome::Failed(failure), Changed::No) if failure.code == 503),
        "{found:?}"
    );
    assert_eq!(requests.len(), 1 + MAX_RETRIES as usize);
    // An answer about another object is none.
    let other = || (200, json!({"metadata": {"name": "a", "uid": "other", "resourceVersion": "5"}}));
    let (found, requests) = result(&widgets(), 1, move |_, _| other()).await;
    assert!(matches!(&found, ObjectResult::Unresponsive(words) if words.contains("server 0")), "{found:?}");
    assert_eq!(requests.len(), 1 + MAX_RETRIES as usize);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_others_write_is_read_again_and_left_to_the_next_pass_in_the_end() {
    let conflict = || (409, json!("changed"));
    let (found, requests) = result(&widgets(), 1, move |request, before| match request.method.as_str() {
        "GET" => at("7"),
        _ if before == 0 => conflict(),
        _ => at("7"),
    })
    .await;
    assert_eq!(found, ObjectResult::Done(ObjectOutcome::Current, Changed::No));
    assert_eq!(requests[2].body["metadata"]["resourceVersion"], "7");
    let (found, requests) =
        result(&widgets(), 1, move |request, _| if request.method == "GET" { at("5") } else { conflict() }).await;
    assert_eq!(found, ObjectResult::Done(ObjectOutcome::Unsettled, Changed::No));
    assert_eq!(requests.len(), 2 * (1 + MOST_MOVES as usize));
    let (found, _) =
        result(&widgets(), 1, move |request, _| if request.method == "GET" { busy() } else { conflict() }).await;
    assert_eq!(found, ObjectResult::Done(ObjectOutcome::Unsettled, Changed::No), "that says nothing about the object");
    let (found, _) =
        result(&widgets(), 1, move |request, _| if request.method == "GET" { (404, json!("")) } else { conflict() })
            .await;
    assert!(matches!(&found, ObjectResult::NotServed(words) if words.contains("server 0")), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_after_a_lost_answer_may_be_due_to_the_own_write() {
    for (mode, changed) in [(WriteMode::Write, Changed::Yes), (WriteMode::DryRun, Changed::No)] {
        let rewriting = Rewriting { mode, ..widgets() };
        let (found, _) = result(&rewriting, 1, |request, before| match (request.method.as_str(), before) {
            ("GET", _) => at("6"),
            (_, 0) => (504, json!("no answer in time")),
            (_, 1) => (409, json!("changed")),
            _ => at("6"),
        })
        .await;
        assert_eq!(found, ObjectResult::Done(ObjectOutcome::Current, changed), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_server_has_to_leave_the_object_alone_in_the_same_state() {
    let (found, requests) = result(&widgets(), 3, |_, _| at("5")).await;
    assert_eq!((found, requests.len()), (ObjectResult::Done(ObjectOutcome::Current, Changed::No), 3));
    // Someone else writes it after the first server has confirmed it.
    let (found, requests) = result(&widgets(), 2, |request, before| match (request.method.as_str(), before) {
        ("GET", _) => at("8"),
        (_, 0) => at("5"),
        (_, 1) => (409, json!("changed")),
        _ => at("8"),
    })
    .await;
    assert_eq!(found, ObjectResult::Done(ObjectOutcome::Current, Changed::No));
    assert_eq!(requests.iter().filter(|request| request.method == "PATCH").count(), 4, "both servers again");
}

#[test]
fn a_failure_is_recorded_with_the_beginning_of_its_message() {
    let failure = RequestError { code: 422, message: "ä".repeat(1_001), ..RequestError::default() };
    let recorded = record(&listed(), &failure);
    assert_eq!((recorded.code, recorded.reason.as_str(), recorded.message.chars().count()), (422, "Unknown", 1_000));
    assert_eq!([&*recorded.namespace, &*recorded.name, &*recorded.uid], ["n", "a", "u"]);
    let failure = RequestError { reason: "Invalid".to_owned(), ..failure };
    assert_eq!(record(&listed(), &failure).reason, "Invalid");
}
