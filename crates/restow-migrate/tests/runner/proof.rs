//! Responses that must never count as a proof.

use crate::server::{Server, instance, migrate, not_found, status};
use restow_migrate::cluster::Instance;
use restow_migrate::runner::{CHANGED_BY_ADMISSION, RunError, RunOptions, RunOutcome, RunReport, WriteMode};
use restow_migrate::settling_time::SETTLING_TIME;
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Shared = Arc<Mutex<Server>>;

fn shared(server: Server) -> Shared {
    Arc::new(Mutex::new(server))
}

async fn run_on(servers: &[&Shared]) -> RunReport {
    let instances: Vec<Instance> = servers.iter().map(|server| instance(server)).collect();
    migrate(&instances, RunOptions { page_size: 10, ..RunOptions::default() }).await.unwrap()
}

#[tokio::test]
async fn a_404_for_the_resource_does_not_mean_that_its_objects_are_deleted() {
    let generic = status(404, "NotFound", "the server could not find the requested resource");
    let server = shared(Server { about_objects: Some(generic), ..Server::with_objects(5) });
    let report = run_on(&[&server]).await;
    let RunOutcome::NotServed { words, .. } = &report.ending else { panic!("{:?}", report.ending) };
    assert!(words.contains("does not serve the resource"), "{words}");
    assert_eq!(server.lock().unwrap().old_objects(), 5);
}

#[tokio::test]
async fn a_refusal_that_mentions_a_uid_is_a_refusal() {
    let message = "w is invalid: spec.template.metadata.uid: Invalid value";
    let server = shared(Server { about_objects: Some(status(422, "Invalid", message)), ..Server::with_objects(3) });
    let report = run_on(&[&server]).await;
    assert_eq!(report.ending, RunOutcome::SomeFailed);
    assert_eq!(report.failures.len(), 3);
    assert!(report.failures.iter().all(|failure| failure.code == 422 && failure.message == message));
}

#[tokio::test]
async fn a_rewritten_object_that_is_deleted_leaves_no_clean_pass() {
    let restless = shared(Server { is_behind: true, ..Server::with_objects(1) });
    let gone = shared(Server { about_objects: Some(not_found("object-0000")), ..Server::default() });
    let changes = Arc::clone(&restless);
    // One server changes the object with each request, and the other then responds that it does not exist.
    let unrest = tokio::spawn(async move {
        loop {
            changes.lock().unwrap().objects.values_mut().for_each(|stored| stored.is_old = false);
            tokio::task::yield_now().await;
        }
    });
    let report = run_on(&[&restless, &gone]).await;
    unrest.abort();
    assert_ne!(report.ending, RunOutcome::Proven, "{report:?}");
    assert!(report.passes.iter().skip(1).all(|pass| !pass.is_clean()), "{:?}", report.passes);
}

/// Stores an object in the old version after so many seconds. A request can do that: it began with an old handler, waited
/// for a webhook, and commits late.
fn write_late(server: &Shared, seconds: u64) {
    let late = Arc::clone(server);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let mut server = late.lock().unwrap();
        server.revision += 1;
        let revision = server.revision;
        let stored = server.objects.get_mut("object-0007").unwrap();
        (stored.is_old, stored.revision) = (true, revision);
    });
}

fn settling_for(seconds: u64) -> RunOptions {
    let settles_at = Some(tokio::time::Instant::now() + Duration::from_secs(seconds));
    RunOptions { settles_at, ..RunOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn a_rewritten_object_that_gets_a_429_response_leaves_no_clean_pass() {
    let server = shared(Server { is_soon_overloaded: true, ..Server::with_objects(20) });
    write_late(&server, 30);
    let report = migrate(&[instance(&server), instance(&server)], settling_for(35)).await.unwrap();
    assert_eq!(report.ending, RunOutcome::Proven);
    let changed: Vec<u64> = report.passes.iter().map(|pass| pass.rewritten).collect();
    assert_eq!(changed, [20, 1, 0], "the pass that had to change one object is followed by another");
}

#[tokio::test(start_paused = true)]
async fn a_write_in_flight_when_the_servers_agreed_is_found() {
    for is_old in [true, false] {
        let server = shared(Server::with_objects(20));
        server.lock().unwrap().objects.values_mut().for_each(|stored| stored.is_old = is_old);
        write_late(&server, 30);
        let report = migrate(&[instance(&server)], settling_for(35)).await.unwrap();
        assert_eq!(report.ending, RunOutcome::Proven);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(server.lock().unwrap().old_objects(), 0, "the late write was found");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_in_the_last_pass_is_no_proof() {
    let server = shared(Server::with_objects(20));
    let late = Arc::clone(&server);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(30)).await;
        // Another client writes the old version before the next write of the run.
        late.lock().unwrap().conflicts = 1;
    });
    let report = migrate(&[instance(&server)], settling_for(35)).await.unwrap();
    assert_eq!(report.ending, RunOutcome::Proven);
    assert_eq!(server.lock().unwrap().old_objects(), 0);
    let changed: Vec<u64> = report.passes.iter().map(|pass| pass.rewritten).collect();
    assert_eq!(changed, [20, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn objects_between_two_that_cannot_be_converted_are_rewritten() {
    let unreadable = ["object-0003", "object-0030"].map(str::to_owned).to_vec();
    for page_size in [500, 16, 1] {
        let server = shared(Server {
            unreadable: unreadable.clone(),
            unreadable_except_in: Some("/v0/"),
            refused: unreadable.clone(),
            ..Server::with_objects(50)
        });
        let options = RunOptions { page_size, other_versions: vec!["v0".to_owned()], ..RunOptions::default() };
        let report = migrate(&[instance(&server)], options).await.unwrap();
        assert_eq!(report.ending, RunOutcome::SomeFailed);
        assert_eq!(server.lock().unwrap().old_objects(), 2, "all others are rewritten");
        let mut named: Vec<&str> = report.failures.iter().map(|failure| failure.name.as_str()).collect();
        named.sort_unstable();
        assert_eq!(named, unreadable, "each under its own name");
        assert!(report.failures.iter().all(|failure| failure.message.contains("Required value")), "{report:?}");
        assert_eq!(report.progress.counts.seen, 50);
    }
}

#[tokio::test(start_paused = true)]
async fn objects_that_could_not_be_reached_are_counted() {
    let unreadable = ["object-0013", "object-0020"].map(str::to_owned).to_vec();
    let server = shared(Server { unreadable, counts_remaining: true, ..Server::with_objects(50) });
    let report = run_on(&[&server]).await;
    assert_eq!(report.ending, RunOutcome::SomeFailed);
    let last = report.passes.last().unwrap();
    let old = server.lock().unwrap().old_objects() as u64;
    assert!(last.unreached > 0 && last.unreached + last.failed == old, "{old} old objects, but {last:?}");
}

#[tokio::test]
async fn objects_that_admission_changes_on_every_write_are_reported_and_not_rewritten_again() {
    let server = shared(Server { is_mutating: true, ..Server::with_objects(200) });
    let report = run_on(&[&server]).await;
    assert_eq!(report.ending, RunOutcome::SomeFailed);
    assert_eq!(report.failures.len(), 200);
    for failure in &report.failures {
        assert_eq!(failure.reason, CHANGED_BY_ADMISSION);
        assert!(failure.message.contains("changes spec on every write"), "{}", failure.message);
    }
    let writes = server.lock().unwrap().writes;
    assert!(writes < 2 * 200, "{writes} writes: once for each object, and a few until it was clear");
}

#[tokio::test]
async fn a_response_that_is_not_a_list_is_not_an_empty_list() {
    for answer in [
        json!({}),
        json!({"kind": "Status", "status": "Success", "metadata": {"resourceVersion": "1"}}),
        json!({"kind": "WidgetList", "metadata": {}, "items": []}),
        json!({"metadata": {"resourceVersion": "1"}, "items": []}),
        json!({"kind": "WidgetList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "a"}}]}),
        json!({"kind": "WidgetList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "a", "uid": "u"}}]}),
        json!({"kind": "WidgetList", "metadata": {"resourceVersion": "1"},
            "items": [{"metadata": {"name": "a", "resourceVersion": "1"}}]}),
    ] {
        let server = shared(Server { about_lists: Some((200, answer.clone())), ..Server::with_objects(5) });
        tokio::time::pause();
        let report = migrate(&[instance(&server)], RunOptions::default()).await;
        tokio::time::resume();
        match report {
            Ok(report) => {
                assert!(matches!(report.ending, RunOutcome::Unresponsive { .. }), "{answer}: {:?}", report.ending)
            }
            Err(error) => assert!(matches!(error, RunError::List(_)), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_response_with_another_uid_proves_nothing() {
    let other = json!({"metadata": {"uid": "another", "resourceVersion": "1", "name": "object-0000"}});
    let server = shared(Server { about_objects: Some((200, other)), ..Server::with_objects(1) });
    tokio::time::pause();
    let report = run_on(&[&server]).await;
    assert_ne!(report.ending, RunOutcome::Proven);
    assert_eq!(server.lock().unwrap().old_objects(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_of_a_deletion_that_began_before_the_agreement_is_found() {
    let server = shared(Server::with_objects(20));
    // A namespace is deleted, and the object with a finalizer is marked by the handler that the deletion began with.
    write_late(&server, 55);
    let report = migrate(&[instance(&server)], settling_for(SETTLING_TIME.as_secs())).await.unwrap();
    assert_eq!(report.ending, RunOutcome::Proven);
    assert_eq!(server.lock().unwrap().old_objects(), 0);
}

#[tokio::test(start_paused = true)]
async fn objects_that_were_not_written_since_the_run_began_are_counted() {
    let server = shared(Server::with_objects(10));
    for number in 1..10 {
        server.lock().unwrap().objects.get_mut(&format!("object-{number:04}")).unwrap().is_old = false;
    }
    write_late(&server, 5);
    let report = migrate(&[instance(&server)], settling_for(10)).await.unwrap();
    assert_eq!(report.ending, RunOutcome::Proven);
    let last = report.passes.last().unwrap();
    assert_eq!(last.unwritten, 8, "one was rewritten, and one was written by another client");
}

#[tokio::test(start_paused = true)]
async fn objects_that_a_webhook_denies_are_refused_with_any_code() {
    for code in [429, 409, 404, 401] {
        let denied = status(code, "", "admission webhook \"v.example.com\" denied the request: too many of them");
        let server = shared(Server { about_objects: Some(denied), ..Server::with_objects(3) });
        let report = run_on(&[&server]).await;
        assert_eq!(report.ending, RunOutcome::SomeFailed, "{code}");
        assert_eq!(report.failures.len(), 3, "{code}: each is named");
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_without_dry_run_support_ends_the_dry_run() {
    let unsupported = status(400, "BadRequest", "admission webhook \"v.example.com\" does not support dry run");
    let server = shared(Server { about_objects: Some(unsupported), ..Server::with_objects(3) });
    let options = RunOptions { mode: WriteMode::DryRun, ..RunOptions::default() };
    let ended = migrate(&[instance(&server)], options).await;
    assert!(matches!(&ended, Err(RunError::NoDryRun(_))), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_without_a_response_leaves_no_clean_pass() {
    for is_soon_overloaded in [false, true] {
        let server = shared(Server { lost_answers: 1, is_soon_overloaded, ..Server::with_objects(1) });
        let report = run_on(&[&server]).await;
        assert_eq!(report.ending, RunOutcome::Proven);
        let changed: Vec<u64> = report.passes.iter().map(|pass| pass.rewritten).collect();
        assert_eq!(changed, [1, 0], "the lost response may have been one of the run's own writes");
        assert_eq!(report.progress.counts.rewritten, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_in_a_deleted_namespace_is_reported() {
    let orphans = vec!["object-0007".to_owned()];
    let server =
        Server { unreadable: orphans.clone(), orphans, accepts_only_own_tokens: true, ..Server::with_objects(20) };
    let server = shared(server);
    let report = run_on(&[&server]).await;
    assert_eq!(report.ending, RunOutcome::SomeFailed, "{report:?}");
    assert_eq!(server.lock().unwrap().old_objects(), 1, "all others are rewritten");
    let [failure] = report.failures.as_slice() else { panic!("{:?}", report.failures) };
    assert!(failure.message.contains("lies in no namespace which exists"), "{failure:?}");
}
