//! Passes on servers that are overloaded, refuse objects, expire continue tokens, or do not respond.

use crate::server::{Server, Stored, instance, migrate, migrate_resource, widgets};
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use restow_api::StorageVersionHash;
use restow_api::migration::SettledObjects;
use restow_migrate::cluster::Instance;
use restow_migrate::discovery::StoredResource;
use restow_migrate::migration::{EarlierAttempt, MigrationTarget};
use restow_migrate::runner::{RunOptions, RunOutcome, RunReport};
use serde_json::Value;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::time::Instant;

/// Migrates with small pages, and checks that nothing old is left.
async fn check_all_is_rewritten(server: Server) -> (RunReport, Arc<Mutex<Server>>) {
    let server = Arc::new(Mutex::new(server));
    let options = RunOptions { page_size: 10, ..RunOptions::default() };
    let report = migrate(&[instance(&server)], options).await.unwrap();
    assert_eq!(report.ending, RunOutcome::Proven, "{report:?}");
    assert_eq!(server.lock().unwrap().old_objects(), 0);
    assert!(report.passes.last().unwrap().is_clean());
    (report, server)
}

#[tokio::test]
async fn every_object_is_rewritten_once_and_then_checked() {
    let (report, server) = check_all_is_rewritten(Server::with_objects(95)).await;
    assert_eq!(report.progress.counts.rewritten, 95);
    assert_eq!(report.passes.len(), 2);
    assert_eq!((report.progress.pass, report.progress.done_in_pass, report.progress.total_in_pass), (2, 95, 95));
    assert_eq!((report.progress.waiting, report.progress.overloads), (None, 0));
    assert_eq!(server.lock().unwrap().writes, 190);
}

#[tokio::test]
async fn many_429_responses_only_delay_the_run() {
    let (report, _) = check_all_is_rewritten(Server { overloads: 200, ..Server::with_objects(50) }).await;
    assert_eq!(report.progress.overloads, 200);
    assert_eq!(report.progress.counts.failed, 0);
}

#[tokio::test]
async fn a_server_that_stays_overloaded_ends_the_run_and_the_next_run_continues() {
    let busy = crate::server::status(429, "TooManyRequests", "slow down");
    for server in [
        Server { overloads: u32::MAX, ..Server::with_objects(40) },
        Server { about_lists: Some(busy), ..Server::with_objects(40) },
    ] {
        let server = Arc::new(Mutex::new(server));
        let overload_timeout = std::time::Duration::from_millis(300);
        let options = RunOptions { page_size: 10, overload_timeout, ..RunOptions::default() };
        let report = migrate(&[instance(&server)], options.clone()).await.unwrap();
        let RunOutcome::Overloaded { words, continue_token } = report.ending else { panic!("{report:?}") };
        assert!(words.contains("overloaded"), "{words}");
        assert_eq!((report.failures.len(), report.progress.counts.failed), (0, 0), "no object is to blame");
        {
            let mut server = server.lock().unwrap();
            (server.overloads, server.about_lists) = (0, None);
        }
        let report = migrate(&[instance(&server)], RunOptions { continue_token, ..options }).await.unwrap();
        assert_eq!(report.ending, RunOutcome::Proven, "{report:?}");
        assert_eq!(server.lock().unwrap().old_objects(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_waits_for_a_webhook_that_is_down_for_a_while() {
    let (report, _) = check_all_is_rewritten(Server { webhook_downs: 3, ..Server::with_objects(20) }).await;
    assert_eq!(report.progress.counts.failed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_stays_down_ends_the_run_and_the_next_run_continues() {
    let server = Arc::new(Mutex::new(Server { webhook_downs: u32::MAX, ..Server::with_objects(40) }));
    let options =
        RunOptions { page_size: 10, webhook_timeout: std::time::Duration::from_millis(1), ..RunOptions::default() };
    let report = migrate(&[instance(&server)], options.clone()).await.unwrap();
    assert!(matches!(&report.ending, RunOutcome::WebhookDown { words, .. } if words.contains("refused")), "{report:?}");
    assert_eq!((report.failures.len(), report.progress.counts.failed), (0, 0), "no object is to blame");
    server.lock().unwrap().webhook_downs = 0;
    let RunOutcome::WebhookDown { continue_token, .. } = report.ending else { unreachable!() };
    let report = migrate(&[instance(&server)], RunOptions { continue_token, ..options }).await.unwrap();
    assert_eq!(report.ending, RunOutcome::Proven, "{report:?}");
    assert_eq!(server.lock().unwrap().old_objects(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pass_continues_after_an_expired_continue_token_and_has_a_gap() {
    let (report, _) = check_all_is_rewritten(Server { expiries: 2, ..Server::with_objects(60) }).await;
    assert!(report.passes[0].has_gaps);
}

#[tokio::test]
async fn a_conflict_is_no_proof() {
    let (report, _) = check_all_is_rewritten(Server { conflicts: 30, ..Server::with_objects(40) }).await;
    assert_eq!(report.progress.counts.failed, 0);
}

#[tokio::test]
async fn refused_objects_are_recorded_and_the_others_are_rewritten() {
    let refused = vec!["object-0003".to_owned(), "object-0017".to_owned()];
    let server = Arc::new(Mutex::new(Server { refused, ..Server::with_objects(30) }));
    let report = migrate(&[instance(&server)], RunOptions::default()).await.unwrap();
    assert_eq!(report.ending, RunOutcome::SomeFailed);
    assert_eq!(server.lock().unwrap().old_objects(), 2);
    let mut names: Vec<(&str, i64, &str)> =
        report.failures.iter().map(|failure| (failure.name.as_str(), failure.code, failure.reason.as_str())).collect();
    names.sort_unstable();
    assert_eq!(names, [("object-0003", 422, "Invalid"), ("object-0017", 422, "Invalid")]);
}

#[tokio::test]
async fn nothing_is_proven_while_a_server_stores_the_old_version() {
    let objects = Arc::new(Mutex::new(Server::with_objects(30)));
    let behind = Arc::clone(&objects);
    // The same objects, through a server that still writes the old version.
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&behind);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let mut server = server.lock().unwrap();
            server.is_behind = true;
            let (code, answer) = server.answer(&Request::from_parts(parts, ()), &body);
            server.is_behind = false;
            let response = Response::builder().status(code);
            Ok::<_, Infallible>(response.body(Body::from(answer.to_string().into_bytes())).unwrap())
        }
    });
    let late = Instance { name: "late".into(), client: Client::new(service, "default") };
    let report = migrate(&[instance(&objects), late], RunOptions::default()).await.unwrap();
    assert_eq!(report.ending, RunOutcome::NeverSettles);
}

#[tokio::test]
async fn a_resource_that_is_not_served_ends_the_run() {
    let server = Arc::new(Mutex::new(Server { is_gone: true, ..Server::with_objects(1) }));
    let report = migrate(&[instance(&server)], RunOptions::default()).await.unwrap();
    assert!(matches!(report.ending, RunOutcome::NotServed { .. }), "{:?}", report.ending);
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_be_read_are_found_by_name_and_all_others_are_rewritten() {
    for unreadable in [&["object-0030"][..], &["object-0000"], &["object-0039"], &["object-0003", "object-0035"]] {
        let unreadable: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
        let server = Server { unreadable: unreadable.clone(), ..Server::with_objects(40) };
        let server = Arc::new(Mutex::new(server));
        let options = RunOptions { page_size: 16, ..RunOptions::default() };
        let report = migrate(&[instance(&server)], options).await.unwrap();
        assert_eq!(report.ending, RunOutcome::SomeFailed);
        assert_eq!(server.lock().unwrap().old_objects(), unreadable.len(), "only those stay as they were");
        let named: Vec<&str> = report.failures.iter().map(|failure| failure.name.as_str()).collect();
        assert_eq!(named, unreadable);
        // Without a token, the list continues at the latest revision, which is another one.
        assert_eq!(report.passes[0].has_gaps, unreadable == ["object-0000"]);
        for failure in &report.failures {
            assert_eq!((failure.namespace.as_str(), failure.code), ("n", 500));
            assert!(failure.message.contains("cannot read it: no kind"), "{failure:?}");
        }
    }
}

/// Migrates with an object of this name that cannot be read, and returns the namespaces and names of the failures.
async fn failures_without(name: &str, server: Server) -> Vec<(String, String)> {
    let mut server = Server { unreadable: vec![name.to_owned()], ..server };
    server.objects.entry(name.to_owned()).or_insert(Stored { revision: 1, is_old: true });
    let server = Arc::new(Mutex::new(server));
    let report = migrate(&[instance(&server)], RunOptions::default()).await.unwrap();
    assert_eq!(report.ending, RunOutcome::SomeFailed, "{name:?}");
    report.failures.into_iter().map(|failure| (failure.namespace, failure.name)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_is_found_whatever_characters_its_name_has() {
    // Among them are the first and the last one of keys, and those beside the slash.
    for name in ["a b", "a ", "~", "a~", ".a", "0a", "a.0", "-", "z"] {
        let found = failures_without(name, Server::with_objects(5)).await;
        assert_eq!(found, [("n".to_owned(), name.to_owned())]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_is_searched_again_after_an_error() {
    let unreadable = vec!["object-0007".to_owned()];
    let server = Arc::new(Mutex::new(Server { unreadable, search_failures: 1, ..Server::with_objects(20) }));
    let report = migrate(&[instance(&server)], RunOptions::default()).await.unwrap();
    let named: Vec<&str> = report.failures.iter().map(|failure| failure.name.as_str()).collect();
    assert_eq!(named, ["object-0007"]);
    assert!(!report.passes[0].has_gaps, "it was found in the first pass: {:?}", report.passes);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_that_is_not_found_is_reported_with_its_namespace() {
    let server = Server { accepts_only_own_tokens: true, ..Server::with_objects(20) };
    assert_eq!(failures_without("object-0007", server).await, [("n".to_owned(), String::new())]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_named_and_ends_the_run_and_the_next_run_continues() {
    let (awake, hung) = (Server::with_objects(60), Server { is_unresponsive: true, ..Server::with_objects(60) });
    let (awake, hung) = (Arc::new(Mutex::new(awake)), Arc::new(Mutex::new(hung)));
    let options = RunOptions { page_size: 10, ..RunOptions::default() };
    let silent = Instance { name: "10.0.0.2:6443".into(), ..instance(&hung) };
    let report = migrate(&[instance(&awake), silent], options.clone()).await.unwrap();
    let RunOutcome::Unresponsive { words, .. } = &report.ending else { panic!("{:?}", report.ending) };
    assert!(words.contains("10.0.0.2:6443 does not answer"), "{words}");
    assert_eq!(report.progress.counts.failed, 0, "that says nothing about any object");
    let report = migrate(&[instance(&awake)], options).await.unwrap();
    assert_eq!(report.ending, RunOutcome::Proven);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_while_it_lists_ends_the_run_too() {
    let hung = Arc::new(Mutex::new(Server { is_unresponsive: true, ..Server::with_objects(5) }));
    let began = Instant::now();
    let report = migrate(&[instance(&hung)], RunOptions::default()).await.unwrap();
    assert!(matches!(report.ending, RunOutcome::Unresponsive { .. }), "{:?}", report.ending);
    assert_eq!(began.elapsed().as_secs(), 20, "the list and a liveness check, and nothing again");
}

fn settled_by(report: &RunReport) -> Option<EarlierAttempt> {
    let target = MigrationTarget { hash: StorageVersionHash::new("v2"), revision: None };
    EarlierAttempt::new(target, EarlierAttempt::by_run(report, 1)?, &report.failures)
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_is_checked_again_when_it_is_readable() {
    let unreadable = vec!["object-0007".to_owned()];
    let server = Arc::new(Mutex::new(Server { unreadable, ..Server::with_objects(20) }));
    let first = migrate(&[instance(&server)], RunOptions::default()).await.unwrap();
    assert_eq!(first.ending, RunOutcome::SomeFailed);
    // Its uid could not be read, so it cannot be excluded from the settled objects.
    let settled = settled_by(&first);
    server.lock().unwrap().unreadable.clear();
    let second = migrate(
        &[instance(&server)],
        RunOptions { verified: settled.map(|earlier| earlier.verified()), ..RunOptions::default() },
    )
    .await
    .unwrap();
    assert_eq!(second.ending, RunOutcome::Proven);
    assert_eq!(server.lock().unwrap().old_objects(), 0);
    let objects = SettledObjects { resource_version: first.settled_at, definition_generation: 1 };
    let target = MigrationTarget { hash: StorageVersionHash::new("v2"), revision: None };
    assert_eq!(
        EarlierAttempt::new(target, objects, &first.failures),
        None,
        "an earlier attempt with a failure without a uid is not used"
    );
}

#[tokio::test(start_paused = true)]
async fn objects_after_an_unreadable_object_without_a_known_name_are_a_gap() {
    let unreadable = vec!["object-0007".to_owned()];
    let server = Server { unreadable, accepts_only_own_tokens: true, ..Server::with_objects(20) };
    let server = Arc::new(Mutex::new(server));
    let resource = StoredResource { is_namespaced: false, ..widgets() };
    let report = migrate_resource(&[instance(&server)], resource, RunOptions::default()).await.unwrap();
    assert_eq!(report.ending, RunOutcome::SomeFailed);
    assert!(report.passes.last().unwrap().has_gaps, "{report:?}");
    assert_eq!(settled_by(&report), None);
}

#[tokio::test]
async fn a_second_run_tries_only_failed_and_new_objects() {
    let refused: Vec<String> = (0..1_500).map(|number| format!("object-{number:04}")).collect();
    let server = Arc::new(Mutex::new(Server { refused, ..Server::with_objects(2_000) }));
    let first = migrate(&[instance(&server)], RunOptions::default()).await.unwrap();
    assert_eq!(first.ending, RunOutcome::SomeFailed);
    assert_eq!(first.failures.len(), 1_500, "all of them are known");
    assert_eq!(first.progress.counts.failed, 1_500, "each of them counts once");
    let settled = settled_by(&first).expect("all that failed are known");
    {
        let mut server = server.lock().unwrap();
        server.refused.clear();
        server.writes = 0;
        let revision = server.revision + 1;
        server.revision = revision;
        server.objects.insert("new".into(), Stored { revision, is_old: true });
    }
    let options = RunOptions { verified: Some(settled.verified()), ..RunOptions::default() };
    let second = migrate(&[instance(&server)], options).await.unwrap();
    assert_eq!(second.ending, RunOutcome::Proven);
    let server = server.lock().unwrap();
    assert_eq!(server.old_objects(), 0);
    assert_eq!(server.writes, 2 * 1_501, "once to rewrite them, once to see that nothing is left");
}

#[tokio::test(start_paused = true)]
async fn an_object_for_which_a_webhook_closes_the_connection_is_named_and_all_others_are_rewritten() {
    for poisons_listings in [false, true] {
        let poison = vec!["object-0013".to_owned()];
        let server = Server { poison: poison.clone(), poisons_listings, ..Server::with_objects(40) };
        let server = Arc::new(Mutex::new(server));
        // The run does not wait for a webhook that is down.
        let webhook_timeout = std::time::Duration::ZERO;
        let options = RunOptions { page_size: 16, webhook_timeout, ..RunOptions::default() };
        let report = migrate(&[instance(&server)], options).await.unwrap();
        assert_eq!(report.ending, RunOutcome::SomeFailed, "{report:?}");
        assert_eq!(server.lock().unwrap().old_objects(), 1, "all others are rewritten");
        let named: Vec<&str> = report.failures.iter().map(|failure| failure.name.as_str()).collect();
        assert_eq!(named, poison);
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_closes_the_connection_for_every_object_is_down() {
    let poison = (0..30).map(|number| format!("object-{number:04}")).collect();
    let server = Arc::new(Mutex::new(Server { poison, ..Server::with_objects(30) }));
    let report = migrate(&[instance(&server)], RunOptions::default()).await.unwrap();
    assert!(matches!(&report.ending, RunOutcome::WebhookDown { words, .. } if words.contains("EOF")), "{report:?}");
    assert_eq!(report.progress.counts.failed, 0, "no object is to blame");
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_stops_to_answer_is_down_unless_it_answers_for_others() {
    // It answers for the first half, and then for none; or not for one object of eight.
    for (is_poison, is_down) in
        [((|number| number >= 40) as fn(usize) -> bool, true), (|number| number % 8 == 7, false)]
    {
        let poison: Vec<String> =
            (0..80).filter(|number| is_poison(*number)).map(|number| format!("object-{number:04}")).collect();
        let server = Arc::new(Mutex::new(Server { poison: poison.clone(), ..Server::with_objects(80) }));
        let webhook_timeout = std::time::Duration::ZERO;
        let options = RunOptions { webhook_timeout, ..RunOptions::default() };
        let report = migrate(&[instance(&server)], options).await.unwrap();
        assert_eq!(matches!(report.ending, RunOutcome::WebhookDown { .. }), is_down, "{:?}", report.ending);
        assert_eq!(server.lock().unwrap().old_objects(), poison.len());
        match is_down {
            true => assert!(report.failures.len() < 10, "the other objects are not to blame: {:?}", report.failures),
            false => assert_eq!(report.failures.len(), poison.len()),
        }
    }
}
