//! A user who creates, reads, changes and deletes objects, and records what was asked for and what was answered.

use super::actions::{Answer, request};
use super::{LIMITED, NAMESPACE, World};
use crate::checks::{ObjectKey, Outcome};
use crate::network::{Connection, Destination};
use crate::plan::Crowd;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A user.
pub(crate) struct User {
    world: Arc<World>,
    name: String,
    connection: Connection,
    random: StdRng,
    /// How many tokens it has used.
    tokens: u64,
}

/// A kind of object that users write.
pub(crate) struct Kind {
    pub(crate) resource: &'static str,
    pub(crate) path: &'static str,
    pub(crate) versions: &'static [&'static str],
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespace: &'static str,
    pub(crate) names: usize,
    pub(crate) body: fn(&mut StdRng) -> Value,
}

impl Kind {
    fn name(&self, number: usize) -> String {
        format!("{}-{number}", self.kind.to_lowercase())
    }
}

pub(crate) const WIDGETS: Kind = Kind {
    resource: "example.com.widgets",
    path: "/apis/example.com",
    versions: &["v1", "v1beta1"],
    plural: "widgets",
    kind: "Widget",
    namespace: NAMESPACE,
    names: 5,
    body: |random| json!({"spec": {"size": random.random_range(0..100)}}),
};

pub(crate) const SLICES: Kind = Kind {
    resource: "discovery.k8s.io.endpointslices",
    path: "/apis/discovery.k8s.io",
    versions: &["v1"],
    plural: "endpointslices",
    kind: "EndpointSlice",
    namespace: NAMESPACE,
    names: 3,
    body: |_| json!({"addressType": "IPv4", "endpoints": []}),
};

pub(crate) const CONFIG_MAPS: Kind = Kind {
    resource: "core.configmaps",
    path: "/api",
    versions: &["v1"],
    plural: "configmaps",
    kind: "ConfigMap",
    namespace: LIMITED,
    names: 8,
    body: |random| json!({"data": {"number": random.random_range(0..100).to_string()}}),
};

pub(crate) const SERVICES: Kind = Kind {
    resource: "core.services",
    path: "/api",
    versions: &["v1"],
    plural: "services",
    kind: "Service",
    namespace: NAMESPACE,
    names: 4,
    body: |random| {
        let port = 30_000 + random.random_range(0..3);
        json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP", "nodePort": port}]}})
    },
};

/// Config maps that belong to a widget.
const DEPENDENTS: Kind = Kind { namespace: NAMESPACE, names: 4, ..CONFIG_MAPS };

/// Codes with which a server says that nothing was or will be changed.
pub(crate) const REFUSALS: &[u16] = &[400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429];

impl User {
    pub(crate) fn new(world: &Arc<World>, number: usize) -> Self {
        let name = format!("user-{number}");
        User {
            connection: world.network.connect(&name, Destination::Any),
            random: StdRng::seed_from_u64(world.seed.wrapping_add(number as u64 + 100)),
            world: world.clone(),
            name,
            tokens: 0,
        }
    }

    /// Lets many users write at the same moment.
    pub(crate) fn write_at_once(world: &Arc<World>, crowd: Crowd) {
        let (kind, users) = match crowd {
            Crowd::ConfigMaps => (&CONFIG_MAPS, CONFIG_MAPS.names),
            Crowd::Services => (&SERVICES, SERVICES.names),
            Crowd::EndpointSlices => (&SLICES, 3 * SLICES.names),
        };
        for number in 0..users {
            let mut user = User::new(world, 1_000 + world.crowd.fetch_add(1, Ordering::Relaxed));
            let key = ObjectKey::new(kind.resource, kind.namespace, &kind.name(number % kind.names));
            tokio::spawn(async move {
                match crowd {
                    Crowd::EndpointSlices => user.apply(kind, &key).await,
                    Crowd::ConfigMaps | Crowd::Services => user.create(kind, &key).await,
                }
            });
        }
    }

    /// Writes until the plan is over.
    pub(crate) async fn write_until_the_end(mut self) {
        while !self.world.is_over.load(Ordering::Relaxed) {
            self.act().await;
            let pause = self.random.random_range(1..700);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn act(&mut self) {
        let kind = match self.random.random_range(0..10) {
            0..6 => &WIDGETS,
            6..8 => &SLICES,
            8 => &CONFIG_MAPS,
            _ => &SERVICES,
        };
        let name = kind.name(self.random.random_range(0..kind.names));
        let key = ObjectKey::new(kind.resource, kind.namespace, &name);
        match self.random.random_range(0..10) {
            0 if kind.resource == WIDGETS.resource => self.create_dependent(&key).await,
            0..4 => self.create(kind, &key).await,
            4..6 => self.update(kind, &key).await,
            6 => self.patch(kind, &key).await,
            7 => self.apply(kind, &key).await,
            8 if self.random.random_bool(0.5) => self.touch(kind, &key).await,
            8 => self.delete(kind, &key).await,
            _ => drop(self.read(kind, &key).await),
        }
    }

    fn collection(&mut self, kind: &Kind) -> (String, &'static str) {
        let version = kind.versions[self.random.random_range(0..kind.versions.len())];
        (format!("{}/{version}/namespaces/{}/{}", kind.path, kind.namespace, kind.plural), version)
    }

    fn token(&mut self) -> String {
        self.tokens += 1;
        format!("{}-{}", self.name, self.tokens)
    }

    fn object(&mut self, kind: &Kind, version: &str, key: &ObjectKey, token: &str) -> Value {
        let mut object = (kind.body)(&mut self.random);
        let group = kind.path.strip_prefix("/apis/").map(|group| format!("{group}/")).unwrap_or_default();
        object["apiVersion"] = format!("{group}{version}").into();
        object["kind"] = kind.kind.into();
        object["metadata"] = json!({"name": key.name, "annotations": {"token": token}});
        object
    }

    /// Sends a write, and records what is known about it afterwards.
    async fn write(
        &self,
        key: &ObjectKey,
        token: Option<&str>,
        request_line: (&str, &str, &str),
        body: Option<&Value>,
    ) {
        let checker = &self.world.checker;
        let operation = checker.begin(key, token);
        let (method, path, content_type) = request_line;
        let answer = request(&self.connection, method, path, content_type, body).await;
        checker.tell(|| match &answer {
            Ok(answer) => {
                format!("{}: {method} {key} {token:?}: {} {}", self.name, answer.code, answer.body["message"])
            }
            Err(error) => format!("{}: {method} {key} {token:?}: {error}", self.name),
        });
        let outcome = match &answer {
            Ok(Answer { code: 200..=202, body }) if token.is_some() => {
                Outcome::Acknowledged(body["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()))
            }
            Ok(Answer { code: 200, body }) if body["kind"] == "Status" => Outcome::Acknowledged(None),
            Ok(Answer { code, .. }) if REFUSALS.contains(code) => Outcome::Refused,
            _ => Outcome::Unknown,
        };
        checker.end(operation, outcome);
    }

    async fn create(&mut self, kind: &Kind, key: &ObjectKey) {
        let ((path, version), token) = (self.collection(kind), self.token());
        let object = self.object(kind, version, key, &token);
        self.write(key, Some(&token), ("POST", &path, "application/json"), Some(&object)).await;
    }

    /// Creates a config map that belongs to a widget.
    async fn create_dependent(&mut self, owner: &ObjectKey) {
        let Some((_, owner)) = self.read(&WIDGETS, owner).await else { return };
        let name = format!("dependent-{}", self.random.random_range(0..DEPENDENTS.names));
        let key = ObjectKey::new(DEPENDENTS.resource, DEPENDENTS.namespace, &name);
        let ((path, version), token) = (self.collection(&DEPENDENTS), self.token());
        let mut object = self.object(&DEPENDENTS, version, &key, &token);
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": owner["apiVersion"], "kind": owner["kind"],
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        }]);
        self.write(&key, Some(&token), ("POST", &path, "application/json"), Some(&object)).await;
    }

    async fn update(&mut self, kind: &Kind, key: &ObjectKey) {
        let Some((path, mut object)) = self.read(kind, key).await else { return };
        let token = self.token();
        object["metadata"]["annotations"]["token"] = token.as_str().into();
        self.write(key, Some(&token), ("PUT", &path, "application/json"), Some(&object)).await;
    }

    async fn patch(&mut self, kind: &Kind, key: &ObjectKey) {
        let ((path, _), token) = (self.collection(kind), self.token());
        let patch = json!({"metadata": {"annotations": {"token": token}}});
        let path = format!("{path}/{}", key.name);
        self.write(key, Some(&token), ("PATCH", &path, "application/merge-patch+json"), Some(&patch)).await;
    }

    /// A patch that changes nothing, as the migrator sends it: the answer must be as current as that of a read.
    async fn touch(&mut self, kind: &Kind, key: &ObjectKey) {
        let (path, _) = self.collection(kind);
        let path = format!("{path}/{}", key.name);
        let checker = self.world.checker.clone();
        let not_before = checker.begin_read(key);
        let patch = json!({});
        let answer = request(&self.connection, "PATCH", &path, "application/merge-patch+json", Some(&patch)).await;
        let Ok(Answer { code: 200, body }) = answer else { return };
        let revision = body["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        let token = body["metadata"]["annotations"]["token"].as_str();
        if let (Some(token), Some(revision)) = (token, revision) {
            checker.end_read(key, not_before, Some((token, revision)));
        }
    }

    async fn apply(&mut self, kind: &Kind, key: &ObjectKey) {
        let ((path, version), token) = (self.collection(kind), self.token());
        let object = self.object(kind, version, key, &token);
        let path = format!("{path}/{}?fieldManager={}&force=true", key.name, self.name);
        self.write(key, Some(&token), ("PATCH", &path, "application/apply-patch+yaml"), Some(&object)).await;
    }

    async fn delete(&mut self, kind: &Kind, key: &ObjectKey) {
        let (path, _) = self.collection(kind);
        let path = format!("{path}/{}", key.name);
        self.write(key, None, ("DELETE", &path, "application/json"), None).await;
    }

    /// Reads an object: what it finds must be current.
    async fn read(&mut self, kind: &Kind, key: &ObjectKey) -> Option<(String, Value)> {
        let (path, _) = self.collection(kind);
        let path = format!("{path}/{}", key.name);
        let checker = &self.world.checker;
        let not_before = checker.begin_read(key);
        let answer = request(&self.connection, "GET", &path, "application/json", None).await.ok()?;
        let revision = answer.body["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        match (answer.code, answer.body["metadata"]["annotations"]["token"].as_str(), revision) {
            (200, Some(token), Some(revision)) => checker.end_read(key, not_before, Some((token, revision))),
            // A resource that is not served is not found, whatever is stored.
            (404, ..) if answer.body["details"]["name"].is_string() => checker.end_read(key, not_before, None),
            _ => {}
        }
        (answer.code == 200).then_some((path, answer.body))
    }
}
