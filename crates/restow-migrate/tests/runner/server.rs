//! A simulated server with all faults that the tests need.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use restow_migrate::cluster::Instance;
use restow_migrate::discovery::StoredResource;
use restow_migrate::runner::{Progress, RunControl, RunError, RunOptions, RunReport, run};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// A server with objects, and its faults.
#[derive(Default)]
pub(crate) struct Server {
    pub(crate) objects: BTreeMap<String, Stored>,
    pub(crate) revision: u64,
    /// The number of following writes that get 429.
    pub(crate) overloads: u32,
    /// The number of following writes for which the conversion webhook is down.
    pub(crate) webhook_downs: u32,
    /// The number of following list requests whose continue token has expired.
    pub(crate) expiries: u32,
    /// The number of following writes that conflict with another client, which writes the old version.
    pub(crate) conflicts: u32,
    /// Objects with these names are refused.
    pub(crate) refused: Vec<String>,
    /// The conversion webhook closes the connection when it converts objects with these names.
    pub(crate) poison: Vec<String>,
    /// Whether list requests convert them too.
    pub(crate) poisons_listings: bool,
    /// Whether the CRD is deleted.
    pub(crate) is_gone: bool,
    /// Whether this server writes the old version.
    pub(crate) is_behind: bool,
    pub(crate) writes: u32,
    /// Objects that cannot be read, so that no page that one of them would be on can be listed.
    pub(crate) unreadable: Vec<String>,
    /// Whether it accepts only continue tokens of its own.
    pub(crate) accepts_only_own_tokens: bool,
    /// The number of following list requests with a continue token that is not its own for which it is not ready.
    pub(crate) search_failures: u32,
    /// Whether it never responds.
    pub(crate) is_unresponsive: bool,
    /// Which version those objects are stored in: listed in it, they need not be converted.
    pub(crate) unreadable_except_in: Option<&'static str>,
    /// Whether admission changes every object that is written.
    pub(crate) is_mutating: bool,
    /// Whether it responds with 429 after each change.
    pub(crate) is_soon_overloaded: bool,
    /// The number of following changes whose response is lost.
    pub(crate) lost_answers: u32,
    /// Objects in a namespace that is deleted.
    pub(crate) orphans: Vec<String>,
    /// The response to all requests for single objects.
    pub(crate) about_objects: Option<(u16, Value)>,
    /// The response to all list requests.
    pub(crate) about_lists: Option<(u16, Value)>,
    /// How many objects each listing says to remain.
    pub(crate) counts_remaining: bool,
    /// After so many writes, the response to all requests for single objects.
    pub(crate) breaks_after: Option<(u32, (u16, Value))>,
}

pub(crate) struct Stored {
    pub(crate) revision: u64,
    pub(crate) is_old: bool,
}

impl Server {
    pub(crate) fn with_objects(count: usize) -> Self {
        let object = |number| (format!("object-{number:04}"), Stored { revision: number as u64 + 1, is_old: true });
        Server { objects: (0..count).map(object).collect(), revision: count as u64, ..Server::default() }
    }

    pub(crate) fn answer(&mut self, request: &Request<()>, body: &Value) -> (u16, Value) {
        if self.is_gone {
            return status(404, "NotFound", "the server could not find the requested resource");
        }
        match *request.method() {
            Method::GET => self.read(request),
            Method::PATCH => {
                let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
                self.patch(path.rsplit('/').next().unwrap(), body, query.contains("dryRun=All"))
            }
            _ => status(405, "MethodNotAllowed", "no"),
        }
    }

    fn read(&mut self, request: &Request<()>) -> (u16, Value) {
        let path = request.uri().path();
        if path == "/api/v1/namespaces" {
            let namespace = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
            return (200, json!({"kind": "NamespaceList", "metadata": {"resourceVersion": "1"}, "items": [namespace]}));
        }
        if !path.ends_with("/widgets") {
            if let Some(answer) = self.about_objects() {
                return answer;
            }
            let name = path.rsplit('/').next().unwrap();
            return match self.objects.get(name) {
                Some(stored) => (200, json!({ "metadata": metadata(name, stored) })),
                None => not_found(name),
            };
        }
        if let Some(answer) = &self.about_lists {
            return answer.clone();
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
        let is_own = !from.ends_with('\u{7f}');
        // An API server takes no key with an empty part.
        if from.starts_with('/') || from.contains("//") || (self.accepts_only_own_tokens && !is_own) {
            return status(400, "BadRequest", "continue key is not valid");
        }
        if !is_own && take_one(&mut self.search_failures) {
            return status(503, "ServiceUnavailable", "starting");
        }
        let limit: usize = parameter("limit").unwrap().parse().unwrap();
        let is_listed = |name: &String| !path.contains("/namespaces/") || !self.orphans.contains(name);
        let mut rest = self.objects.iter().filter(|(name, _)| format!("n/{name}") >= from && is_listed(name));
        let needs_conversion = !self.unreadable_except_in.is_some_and(|version| path.contains(version));
        if needs_conversion && rest.clone().take(limit).any(|(name, _)| self.unreadable.contains(name)) {
            return status(500, "InternalError", "no kind \"Widget\" is registered for version \"example.com/v0\"");
        }
        if self.poisons_listings && rest.clone().take(limit).any(|(name, _)| self.poison.contains(name)) {
            return hung_up();
        }
        let items: Vec<Value> =
            rest.by_ref().take(limit).map(|(name, stored)| json!({ "metadata": metadata(name, stored) })).collect();
        let next = rest.next().map(|(name, _)| token_for(&format!("n/{name}"))).unwrap_or_default();
        let mut metadata = json!({"continue": next, "resourceVersion": self.revision.to_string()});
        if self.counts_remaining && !next.is_empty() {
            metadata["remainingItemCount"] = json!(1 + rest.count());
        }
        (200, json!({"kind": "PartialObjectMetadataList", "metadata": metadata, "items": items}))
    }

    fn about_objects(&self) -> Option<(u16, Value)> {
        let broken = self.breaks_after.as_ref().filter(|(writes, _)| self.writes >= *writes);
        self.about_objects.clone().or_else(|| broken.map(|(_, answer)| answer.clone()))
    }

    fn patch(&mut self, name: &str, body: &Value, is_dry_run: bool) -> (u16, Value) {
        if let Some(answer) = self.about_objects() {
            return answer;
        }
        if let (true, Some(stored)) = (is_dry_run, self.objects.get(name)) {
            let spec = if self.is_mutating { json!({"seen": self.revision}) } else { Value::Null };
            return (200, json!({ "metadata": metadata(name, stored), "spec": spec }));
        }
        self.writes += 1;
        if take_one(&mut self.overloads) {
            return status(429, "TooManyRequests", "slow down");
        }
        if take_one(&mut self.webhook_downs) {
            let message =
                "conversion webhook for example.com/v1, Kind=Widget failed: Post \"https://w\": dial tcp: refused";
            return status(500, "InternalError", message);
        }
        if self.poison.iter().any(|poison| poison == name) {
            return hung_up();
        }
        if self.refused.iter().any(|refused| refused == name) {
            return status(422, "Invalid", "spec.size: Required value");
        }
        let conflicts = take_one(&mut self.conflicts);
        self.revision += u64::from(conflicts);
        let revision = self.revision + 1;
        let Some(stored) = self.objects.get_mut(name) else { return not_found(name) };
        if conflicts {
            *stored = Stored { revision: revision - 1, is_old: true };
        }
        if body["metadata"]["resourceVersion"].as_str() != Some(&stored.revision.to_string()) {
            return status(409, "Conflict", "the object has been modified");
        }
        if stored.is_old != self.is_behind || self.is_mutating {
            *stored = Stored { revision, is_old: self.is_behind };
            self.revision = revision;
            self.overloads += u32::from(self.is_soon_overloaded);
            if take_one(&mut self.lost_answers) {
                return status(504, "Timeout", "no answer in time");
            }
        }
        (200, json!({ "metadata": metadata(name, stored) }))
    }

    pub(crate) fn old_objects(&self) -> usize {
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

/// The response of an API server for an object that does not exist.
pub(crate) fn not_found(name: &str) -> (u16, Value) {
    let (code, mut status) = status(404, "NotFound", &format!("widgets.example.com {name:?} not found"));
    status["details"] = json!({"name": name, "group": "example.com", "kind": "widgets"});
    (code, status)
}

fn hung_up() -> (u16, Value) {
    let message = "conversion webhook for example.com/v1, Kind=Widget failed: Post \"https://w/convert\": EOF";
    status(500, "InternalError", message)
}

pub(crate) fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}))
}

pub(crate) fn instance(server: &Arc<Mutex<Server>>) -> Instance {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            if server.lock().unwrap().is_unresponsive {
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

pub(crate) fn widgets() -> StoredResource {
    StoredResource {
        resource: "widgets.v1.example.com".parse().unwrap(),
        kind: "Widget".into(),
        is_namespaced: true,
        hash: None,
    }
}

pub(crate) async fn migrate(servers: &[Instance], options: RunOptions) -> Result<RunReport, RunError> {
    migrate_resource(servers, widgets(), options).await
}

pub(crate) async fn migrate_resource(
    servers: &[Instance],
    resource: StoredResource,
    options: RunOptions,
) -> Result<RunReport, RunError> {
    let (_order, control) = watch::channel(RunControl::Run);
    let (progress, _seen) = watch::channel(Progress::default());
    run(servers, &resource, options, control, &progress).await
}
