//! A client that creates, reads, changes and deletes objects through one server after another, and records every request and answer.

use super::api::{Answer, request};
use super::history::{History, VIA};
use crate::checks::{ObjectKey, Outcome};
use crate::world::user::{CONFIG_MAPS, Kind, REFUSALS, SERVICES, SLICES, WIDGETS};
use kube::Client;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

/// A writer.
pub(crate) struct Writer {
    name: String,
    history: Arc<History>,
    /// The servers, each with its name.
    servers: Vec<(String, Client)>,
    random: StdRng,
    /// Whether it writes custom resources only.
    custom_only: bool,
    /// How many tokens it has used.
    tokens: u64,
}

/// A request of a writer: which server, which object, and as which version.
struct Target {
    via: String,
    client: Client,
    key: ObjectKey,
    collection: String,
    version: &'static str,
}

impl Writer {
    pub(crate) fn new(number: usize, seed: u64, history: Arc<History>, servers: Vec<(String, Client)>) -> Self {
        let random = StdRng::seed_from_u64(seed.wrapping_add(number as u64 + 1_000));
        Writer { name: format!("writer-{number}"), history, servers, random, custom_only: false, tokens: 0 }
    }

    /// The same, for custom resources only.
    pub(crate) fn of_custom_resources(self) -> Self {
        Writer { custom_only: true, ..self }
    }

    /// Writes until it is dropped.
    pub(crate) async fn write(mut self, pause: Duration) {
        loop {
            self.act().await;
            let pause = pause.mul_f64(self.random.random_range(0.1..1.9));
            tokio::time::sleep(pause).await;
        }
    }

    async fn act(&mut self) {
        let kind = match self.random.random_range(0..10) {
            _ if self.custom_only => &WIDGETS,
            0..5 => &WIDGETS,
            5..8 => &SLICES,
            8 => &CONFIG_MAPS,
            _ => &SERVICES,
        };
        let target = self.target(kind);
        match self.random.random_range(0..12) {
            0..4 => self.create(kind, &target).await,
            4..6 => self.update(&target).await,
            6..8 => self.patch(&target).await,
            8 => self.apply(kind, &target).await,
            9 => self.delete(&target).await,
            _ => drop(self.read(&target).await),
        }
    }

    fn target(&mut self, kind: &Kind) -> Target {
        let (via, client) = self.servers[self.random.random_range(0..self.servers.len())].clone();
        let name = format!("{}-{}", kind.kind.to_lowercase(), self.random.random_range(0..kind.names));
        let version = kind.versions[self.random.random_range(0..kind.versions.len())];
        let collection = format!("{}/{version}/namespaces/{}/{}", kind.path, kind.namespace, kind.plural);
        Target { via, client, key: ObjectKey::new(kind.resource, kind.namespace, &name), collection, version }
    }

    fn token(&mut self) -> String {
        self.tokens += 1;
        format!("{}-{}", self.name, self.tokens)
    }

    fn object(&mut self, kind: &Kind, target: &Target, token: &str) -> Value {
        let mut object = (kind.body)(&mut self.random);
        let group = kind.path.strip_prefix("/apis/").map(|group| format!("{group}/")).unwrap_or_default();
        object["apiVersion"] = format!("{group}{}", target.version).into();
        object["kind"] = kind.kind.into();
        object["metadata"] = json!({"name": target.key.name, "annotations": {"token": token, VIA: target.via}});
        object
    }

    /// Sends a write, and records what is known about it afterwards.
    async fn send(&self, target: &Target, token: Option<&str>, line: (&str, &str, &str), body: Option<&Value>) {
        let operation = self.history.begin(&target.key, token, &target.via, line.0);
        let answer = request(&target.client, line, body).await;
        let outcome = match &answer {
            Ok(Answer { code: 200 | 201, body }) if token.is_some() => {
                Outcome::Acknowledged(body["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()))
            }
            Ok(Answer { code: 200, body }) if body["kind"] == "Status" => Outcome::Acknowledged(None),
            Ok(Answer { code, .. }) if REFUSALS.contains(code) => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        let words = match &answer {
            Ok(answer) => format!("{token:?} {}: {} {}", target.key, answer.code, answer.body["message"]),
            Err(error) => format!("{token:?} {}: {error}", target.key),
        };
        self.history.end(operation, outcome, &words);
    }

    async fn create(&mut self, kind: &Kind, target: &Target) {
        let token = self.token();
        let object = self.object(kind, target, &token);
        self.send(target, Some(&token), ("POST", &target.collection, JSON), Some(&object)).await;
    }

    async fn update(&mut self, target: &Target) {
        let Some(mut object) = self.read(target).await else { return };
        let token = self.token();
        object["metadata"]["annotations"]["token"] = token.as_str().into();
        object["metadata"]["annotations"][VIA] = target.via.as_str().into();
        self.send(target, Some(&token), ("PUT", &target.path(), JSON), Some(&object)).await;
    }

    async fn patch(&mut self, target: &Target) {
        let token = self.token();
        let patch = json!({"metadata": {"annotations": {"token": token, VIA: target.via}}});
        self.send(target, Some(&token), ("PATCH", &target.path(), MERGE_PATCH), Some(&patch)).await;
    }

    async fn apply(&mut self, kind: &Kind, target: &Target) {
        let token = self.token();
        let object = self.object(kind, target, &token);
        let path = format!("{}?fieldManager={}&force=true", target.path(), self.name);
        self.send(target, Some(&token), ("PATCH", &path, "application/apply-patch+yaml"), Some(&object)).await;
    }

    async fn delete(&mut self, target: &Target) {
        self.send(target, None, ("DELETE", &target.path(), JSON), None).await;
    }

    /// Reads an object: what it finds must be current.
    async fn read(&mut self, target: &Target) -> Option<Value> {
        let not_before = self.history.begin_read(&target.key);
        let answer = request(&target.client, ("GET", &target.path(), JSON), None).await.ok()?;
        let metadata = &answer.body["metadata"];
        let revision = metadata["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        match (answer.code, metadata["annotations"]["token"].as_str(), revision) {
            (200, Some(token), Some(revision)) => {
                self.history.end_read(&target.key, not_before, Some((token.to_owned(), revision)));
            }
            // A resource that is not served is not found, whatever is stored.
            (404, ..) if answer.body["details"]["name"].is_string() => {
                self.history.end_read(&target.key, not_before, None)
            }
            _ => {}
        }
        (answer.code == 200).then_some(answer.body)
    }
}

impl Target {
    fn path(&self) -> String {
        format!("{}/{}", self.collection, self.key.name)
    }
}
