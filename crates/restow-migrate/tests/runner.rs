//! The runner against a server that is made of plain code, so that it can be as unhelpful as a test wants.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use restow_api::StorageVersionHash;
use restow_api::migration::SettledObjects;
use restow_migrate::cluster::Instance;
use restow_migrate::discovery::StoredResource;
use restow_migrate::migration::{Settled, Target};
use restow_migrate::runner::{Ending, Order, Progress, RunError, RunOptions, RunReport, run};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// A server with objects, and with what it does to those who ask.
#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Stored>,
    revision: u64,
    /// So many of the next requests to write are answered with 429.
    overloads: u32,
    /// So many of the next requests to write find the conversion webhook down.
    webhook_downs: u32,
    /// So many of the next continued listings find their token expired.
    expiries: u32,
    /// So many of the next requests to write find that someone was faster, and wrote the old version.
    intruders: u32,
    /// Objects with these names are refused.
    refused: Vec<String>,
    /// Whether the definition is gone.
    is_gone: bool,
    /// Whether this server writes the old version, whatever others do.
    is_behind: bool,
    writes: u32,
    /// Objects that cannot be read, so that no page that one of them would be on can be listed.
    unreadable: Vec<String>,
    /// Whether it answers nothing at all.
    is_silent: bool,
}

struct Stored {
    revision: u64,
    is_old: bool,
}

impl Server {
    fn with_objects(count: usize) -> Self {
        let object = |number| (format!("object-{number:04}"), Stored { revision: number as u64 + 1, is_old: true });
        Server { objects: (0..count).map(object).collect(), revision: count as u64, ..Server::default() }
    }

    fn answer(&mut self, request: &Request<()>, body: &Value) -> (u16, Value) {
        if self.is_gone {
            return status(404, "NotFound", "the server could not find the requested resource");
        }
        match *request.method() {
            Method::GET => self.read(request),
            Method::PATCH => self.patch(request.uri().path().rsplit('/').next().unwrap(), body),
            _ => status(405, "MethodNotAllowed", "no"),
        }
    }

    fn read(&mut self, request: &Request<()>) -> (u16, Value) {
        let path = request.uri().path();
        if path == "/api/v1/namespaces" {
            return (200, json!({"items": [{"metadata": {"name": "n"}}]}));
        }
        if !path.ends_with("/widgets") {
            let name = path.rsplit('/').next().unwrap();
            return match self.objects.get(name) {
                Some(stored) => (200, json!({ "metadata": metadata(name, stored) })),
                None => status(404, "NotFound", "gone"),
            };
        }
        let query = request.uri().query().unwrap_or_default();
        let parameter = |name: &str| query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let token = parameter("continue").unwrap_or_default().replace("%2D", "-").replace("%5F", "_");
        if !token.is_empty() && self.expiries > 0 {
            self.expiries -= 1;
            let (code, mut gone) = status(410, "Expired", "the token is too old");
            gone["metadata"] = json!({ "continue": token });
            return (code, gone);
        }
        let from = start_of(&token);
        let limit: usize = parameter("limit").unwrap().parse().unwrap();
        let mut rest = self.objects.iter().filter(|(name, _)| format!("n/{name}") >= from);
        if rest.clone().take(limit).any(|(name, _)| self.unreadable.contains(name)) {
            return status(500, "InternalError", "no kind \"Widget\" is registered for version \"example.com/v0\"");
        }
        let items: Vec<Value> =
            rest.by_ref().take(limit).map(|(name, stored)| json!({ "metadata": metadata(name, stored) })).collect();
        let next = rest.next().map(|(name, _)| token_for(&format!("n/{name}"))).unwrap_or_default();
        let metadata = json!({"continue": next, "resourceVersion": self.revision.to_string()});
        (200, json!({"metadata": metadata, "items": items}))
    }

    fn patch(&mut self, name: &str, body: &Value) -> (u16, Value) {
        self.writes += 1;
        if take_one(&mut self.overloads) {
            return status(429, "TooManyRequests", "slow down");
        }
        if take_one(&mut self.webhook_downs) {
            let message = "conversion webhook for example.com/v1, Kind=Widget failed: Post \"https://w\": refused";
            return status(500, "InternalError", message);
        }
        if self.refused.iter().any(|refused| refused == name) {
            return status(422, "Invalid", "spec.size: Required value");
        }
        let intrudes = take_one(&mut self.intruders);
        self.revision += u64::from(intrudes);
        let revision = self.revision + 1;
        let Some(stored) = self.objects.get_mut(name) else { return status(404, "NotFound", "gone") };
        if intrudes {
            *stored = Stored { revision: revision - 1, is_old: true };
        }
        if body["metadata"]["resourceVersion"].as_str() != Some(&stored.revision.to_string()) {
            return status(409, "Conflict", "the object has been modified");
        }
        if stored.is_old != self.is_behind {
            *stored = Stored { revision, is_old: self.is_behind };
            self.revision = revision;
        }
        (200, json!({ "metadata": metadata(name, stored) }))
    }

    fn old_objects(&self) -> usize {
        self.objects.values().filter(|stored| stored.is_old).count()
    }
}

/// A token in the form of Kubernetes.
fn token_for(start: &str) -> String {
    URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": 7, "start": start}).to_string())
}

fn start_of(token: &str) -> String {
    let token: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token).unwrap()).unwrap_or(Value::Null);
    token["start"].as_str().unwrap_or_default().to_owned()
}

fn take_one(count: &mut u32) -> bool {
    let some = *count > 0;
    *count = count.saturating_sub(1);
    some
}

fn metadata(name: &str, stored: &Stored) -> Value {
    json!({"namespace": "n", "name": name, "uid": format!("uid-{name}"), "resourceVersion": stored.revision.to_string()})
}

fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}))
}

fn instance(server: &Arc<Mutex<Server>>) -> Instance {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            if server.lock().unwrap().is_silent {
                std::future::pending::<()>().await;
            }
            let (code, answer) = server.lock().unwrap().answer(&Request::from_parts(parts, ()), &body);
            let response = Response::builder().status(code).header("Retry-After", "0");
            let response = if code == 429 { response } else { Response::builder().status(code) };
            Ok::<_, Infallible>(response.body(Body::from(answer.to_string().into_bytes())).unwrap())
        }
    });
    Instance { name: "10.0.0.1:6443".into(), client: Client::new(service, "default") }
}

async fn migrate(servers: &[Instance], options: RunOptions) -> Result<RunReport, RunError> {
    let resource = StoredResource {
        resource: "widgets.v1.example.com".parse().unwrap(),
        kind: "Widget".into(),
        is_namespaced: true,
        hash: None,
    };
    let (_order, orders) = watch::channel(Order::Run);
    let (progress, _seen) = watch::channel(Progress::default());
    run(servers, &resource, options, orders, &progress).await
}

/// Migrates with small pages, and checks that nothing old is left.
async fn check_all_is_rewritten(server: Server) -> (RunReport, Arc<Mutex<Server>>) {
    let server = Arc::new(Mutex::new(server));
    let options = RunOptions { page_size: 10, ..RunOptions::default() };
    let report = migrate(&[instance(&server)], options).await.unwrap();
    assert_eq!(report.ending, Ending::Proven, "{report:?}");
    assert_eq!(server.lock().unwrap().old_objects(), 0);
    assert!(report.passes.last().unwrap().is_clean());
    (report, server)
}

#[tokio::test]
async fn every_object_is_rewritten_once_and_then_checked() {
    let (report, server) = check_all_is_rewritten(Server::with_objects(95)).await;
    assert_eq!(report.progress.counts.rewritten, 95);
    assert_eq!(report.passes.len(), 2);
    assert_eq!(server.lock().unwrap().writes, 190);
}

#[tokio::test]
async fn a_storm_of_refusals_for_lack_of_time_costs_nothing_but_time() {
    let (report, _) = check_all_is_rewritten(Server { overloads: 200, ..Server::with_objects(50) }).await;
    assert_eq!(report.progress.overloads, 200);
    assert_eq!(report.progress.counts.failed, 0);
}

#[tokio::test]
async fn a_webhook_that_is_down_for_a_while_is_waited_for() {
    let (report, _) = check_all_is_rewritten(Server { webhook_downs: 3, ..Server::with_objects(20) }).await;
    assert_eq!(report.progress.counts.failed, 0);
}

#[tokio::test]
async fn a_webhook_that_stays_away_ends_the_run_which_can_go_on_later() {
    let server = Arc::new(Mutex::new(Server { webhook_downs: u32::MAX, ..Server::with_objects(40) }));
    let options =
        RunOptions { page_size: 10, webhook_patience: std::time::Duration::from_millis(1), ..RunOptions::default() };
    let report = migrate(&[instance(&server)], options.clone()).await.unwrap();
    assert!(matches!(&report.ending, Ending::WebhookDown { words, .. } if words.contains("refused")), "{report:?}");
    assert_eq!((report.failures.len(), report.progress.counts.failed), (0, 0), "no object is to blame");
    server.lock().unwrap().webhook_downs = 0;
    let Ending::WebhookDown { continue_token, .. } = report.ending else { unreachable!() };
    let report = migrate(&[instance(&server)], RunOptions { continue_token, ..options }).await.unwrap();
    assert_eq!(report.ending, Ending::Proven, "{report:?}");
    assert_eq!(server.lock().unwrap().old_objects(), 0);
}

#[tokio::test]
async fn expired_tokens_are_gone_on_from_and_listed_again() {
    let (report, _) = check_all_is_rewritten(Server { expiries: 2, ..Server::with_objects(60) }).await;
    assert!(report.passes[0].has_gaps);
}

#[tokio::test]
async fn a_conflict_is_no_proof() {
    let (report, _) = check_all_is_rewritten(Server { intruders: 30, ..Server::with_objects(40) }).await;
    assert_eq!(report.progress.counts.failed, 0);
}

#[tokio::test]
async fn refused_objects_are_recorded_and_the_rest_go_on() {
    let refused = vec!["object-0003".to_owned(), "object-0017".to_owned()];
    let server = Arc::new(Mutex::new(Server { refused, ..Server::with_objects(30) }));
    let report = migrate(&[instance(&server)], RunOptions::default()).await.unwrap();
    assert_eq!(report.ending, Ending::SomeFailed);
    assert_eq!(server.lock().unwrap().old_objects(), 2);
    let mut names: Vec<(&str, i64, &str)> =
        report.failures.iter().map(|failure| (failure.name.as_str(), failure.code, failure.reason.as_str())).collect();
    names.sort_unstable();
    assert_eq!(names, [("object-0003", 422, "Invalid"), ("object-0017", 422, "Invalid")]);
}

#[tokio::test]
async fn a_server_that_stores_the_old_version_keeps_anything_from_being_proven() {
    let objects = Arc::new(Mutex::new(Server::with_objects(30)));
    let behind = Arc::clone(&objects);
    // The same objects, behind a server that has not been told.
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
    assert_eq!(report.ending, Ending::NeverSettles);
}

#[tokio::test]
async fn a_resource_that_is_gone_ends_the_run() {
    let server = Arc::new(Mutex::new(Server { is_gone: true, ..Server::with_objects(1) }));
    let report = migrate(&[instance(&server)], RunOptions::default()).await.unwrap();
    assert_eq!(report.ending, Ending::ResourceGone);
}

#[tokio::test]
async fn objects_that_cannot_be_read_are_found_by_name_and_all_others_are_rewritten() {
    for unreadable in [&["object-0030"][..], &["object-0000"], &["object-0039"], &["object-0003", "object-0035"]] {
        let unreadable: Vec<String> = unreadable.iter().map(ToString::to_string).collect();
        let server = Server { unreadable: unreadable.clone(), ..Server::with_objects(40) };
        let server = Arc::new(Mutex::new(server));
        let options = RunOptions { page_size: 16, ..RunOptions::default() };
        let report = migrate(&[instance(&server)], options).await.unwrap();
        assert_eq!(report.ending, Ending::SomeFailed);
        assert_eq!(server.lock().unwrap().old_objects(), unreadable.len(), "only those stay as they were");
        let named: Vec<&str> = report.failures.iter().map(|failure| failure.name.as_str()).collect();
        assert_eq!(named, unreadable);
        for failure in &report.failures {
            assert_eq!((failure.namespace.as_str(), failure.code), ("n", 500));
            assert!(failure.message.contains("cannot read it: no kind"), "{failure:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_ends_the_run_and_is_named_and_the_next_run_goes_on() {
    let (awake, hung) = (Server::with_objects(60), Server { is_silent: true, ..Server::with_objects(60) });
    let (awake, hung) = (Arc::new(Mutex::new(awake)), Arc::new(Mutex::new(hung)));
    let options = RunOptions { page_size: 10, ..RunOptions::default() };
    let silent = Instance { name: "10.0.0.2:6443".into(), ..instance(&hung) };
    let report = migrate(&[instance(&awake), silent], options.clone()).await.unwrap();
    let Ending::Silent { words, .. } = &report.ending else { panic!("{:?}", report.ending) };
    assert!(words.contains("10.0.0.2:6443 does not answer"), "{words}");
    assert_eq!(report.progress.counts.failed, 0, "that says nothing about any object");
    let report = migrate(&[instance(&awake)], options).await.unwrap();
    assert_eq!(report.ending, Ending::Proven);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_while_it_lists_ends_the_run_too() {
    let hung = Arc::new(Mutex::new(Server { is_silent: true, ..Server::with_objects(5) }));
    let report = migrate(&[instance(&hung)], RunOptions::default()).await.unwrap();
    assert!(matches!(report.ending, Ending::Silent { .. }), "{:?}", report.ending);
}

#[tokio::test]
async fn all_that_fail_are_known_and_a_second_run_tries_only_them_and_what_is_new() {
    let refused: Vec<String> = (0..1_500).map(|number| format!("object-{number:04}")).collect();
    let server = Arc::new(Mutex::new(Server { refused, ..Server::with_objects(2_000) }));
    let first = migrate(&[instance(&server)], RunOptions::default()).await.unwrap();
    assert_eq!(first.ending, Ending::SomeFailed);
    assert_eq!(first.failures.len(), 1_500, "all of them are known");
    assert_eq!(first.progress.counts.failed, 1_500, "each of them counts once");
    let settled = Settled {
        target: Target { hash: StorageVersionHash::new("v2"), revision: None },
        objects: SettledObjects { resource_version: first.settled_at, definition_generation: 1 },
        except: Arc::new(first.failures.iter().map(|failure| failure.uid.clone()).collect()),
    };
    {
        let mut server = server.lock().unwrap();
        server.refused.clear();
        server.writes = 0;
        let revision = server.revision + 1;
        server.revision = revision;
        server.objects.insert("new".into(), Stored { revision, is_old: true });
    }
    let options = RunOptions { settled: Some(settled), ..RunOptions::default() };
    let second = migrate(&[instance(&server)], options).await.unwrap();
    assert_eq!(second.ending, Ending::Proven);
    let server = server.lock().unwrap();
    assert_eq!(server.old_objects(), 0);
    assert_eq!(server.writes, 2 * 1_501, "once to rewrite them, once to see that nothing is left");
}
