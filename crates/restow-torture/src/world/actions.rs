//! What administrators do: change the CRD, delete leases and reports, ask for migrations.

use super::setup::{self, CRD};
use super::{LIMITED, NAMESPACE, World};
use crate::checks::{ObjectKey, Outcome};
use crate::network::{Connection, Destination, NetworkError};
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How long a user waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often an administrator tries something again.
const TRIES: usize = 20;
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// An answer of a server.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

/// The administrator of a world.
pub(crate) struct Actions {
    world: Arc<World>,
    connection: Connection,
}

/// Sends a request and reads the whole answer; an error means that nobody knows what became of it.
pub(crate) async fn request(
    connection: &Connection,
    method: &str,
    path: &str,
    content_type: &str,
    body: Option<&Value>,
) -> Result<Answer, NetworkError> {
    let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let request = request.header("accept", "application/json").body(Body::from(bytes))?;
    let answered = async {
        let response = connection.clone().send(request).await?;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await?.to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        Ok::<_, NetworkError>(Answer { code, body })
    };
    tokio::time::timeout(TIMEOUT, answered).await?
}

impl Actions {
    pub(crate) fn new(world: &Arc<World>) -> Self {
        Actions { connection: world.network.connect("admin", Destination::Any), world: world.clone() }
    }

    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Option<Answer> {
        let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let answer = request(&self.connection, method, path, content_type, body).await;
        self.world.checker.tell(|| match &answer {
            Ok(answer) => format!("admin: {method} {path}: {} {}", answer.code, answer.body["message"]),
            Err(error) => format!("admin: {method} {path}: {error}"),
        });
        answer.ok()
    }

    /// Creates an object, and tries until it exists.
    pub(crate) async fn create(&self, collection: &str, object: &Value) {
        loop {
            let answer = self.send("POST", collection, Some(object)).await;
            if answer.is_some_and(|answer| [200, 201, 409].contains(&answer.code)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Deletes an object, and tries until it is gone.
    pub(crate) async fn remove(&self, path: &str) {
        loop {
            let answer = self.send("DELETE", path, None).await;
            if answer.is_some_and(|answer| [200, 404].contains(&answer.code)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Changes the CRD, and tries again after conflicts.
    async fn change_crd(&self, change: impl Fn(&mut Vec<Value>)) {
        let path = format!("{CRDS}/{CRD}");
        for _ in 0..TRIES {
            let Some(mut found) = self.send("GET", &path, None).await else { continue };
            let Some(versions) = found.body["spec"]["versions"].as_array_mut() else { return };
            change(versions);
            let answer = self.send("PUT", &path, Some(&found.body)).await;
            if answer.is_some_and(|answer| answer.code == 200) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    pub(crate) async fn flip_storage_version(self) {
        self.change_crd(|versions| {
            let stored = versions.iter().position(|version| version["storage"] == true).unwrap_or_default();
            let next = (stored + 1) % versions.len();
            for (number, version) in versions.iter_mut().enumerate() {
                version["storage"] = (number == next).into();
            }
        })
        .await;
    }

    pub(crate) async fn toggle_version(self) {
        self.change_crd(|versions| match versions.iter().position(|version| version["name"] == "v2") {
            Some(there) => drop(versions.remove(there)),
            None => versions.push(setup::version("v2", false)),
        })
        .await;
    }

    /// Deletes something, and records that somebody asked for it.
    async fn delete(&self, key: ObjectKey, path: &str) {
        let operation = self.world.checker.begin(&key, None);
        // Its objects may go at any time from now on.
        let _ = self.send("DELETE", path, None).await;
        self.world.checker.end(operation, Outcome::Unknown);
    }

    pub(crate) async fn delete_crd(self, pause: Duration) {
        let key = ObjectKey::new("apiextensions.k8s.io.customresourcedefinitions", "", CRD);
        self.delete(key, &format!("{CRDS}/{CRD}")).await;
        tokio::time::sleep(pause).await;
        self.create(CRDS, &setup::crd_of(self.world.shape)).await;
    }

    pub(crate) async fn delete_lease(self, identity: String) {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{identity}");
        self.world.checker.lease_may_be_deleted(&identity);
        let _ = self.send("DELETE", &path, None).await;
    }

    pub(crate) async fn spoil_report(self, identity: String) {
        let name = "example.com.widgets";
        let path = format!("/apis/internal.apiserver.k8s.io/v1alpha1/storageversions/{name}");
        let Some(mut found) = self.send("GET", &path, None).await else { return };
        found.body["status"] = json!({
            "storageVersions": [{"apiServerID": identity, "encodingVersion": "example.com/v7", "decodableVersions": ["example.com/v7"]}],
            "commonEncodingVersion": "example.com/v7",
        });
        let _ = self.send("PUT", &format!("{path}/status"), Some(&found.body)).await;
    }

    pub(crate) async fn delete_report(self) {
        let path = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions/example.com.widgets";
        let _ = self.send("DELETE", path, None).await;
    }

    /// Writes nonsense into the election of a resource whose version differs between the releases.
    pub(crate) async fn spoil_election(self) {
        let name = "discovery.k8s.io.endpointslices";
        let path = format!("/apis/kube-apiserver.internal.k8s.io/v1alpha1/storageversions/{name}");
        let Some(mut found) = self.send("GET", &path, None).await else { return };
        let before = found.body["selectedVersion"].as_str().unwrap_or_default();
        let other = if before.ends_with("/v1") { "discovery.k8s.io/v1beta1" } else { "discovery.k8s.io/v1" };
        found.body["selectedVersion"] = other.into();
        let _ = self.send("PUT", &path, Some(&found.body)).await;
    }

    pub(crate) async fn ask_for_migration(self) {
        let migration = json!({
            "apiVersion": "migration.k8s.io/v1alpha1", "kind": "StorageVersionMigration",
            "metadata": {"generateName": "by-hand-"},
            "spec": {"resource": {"group": "example.com", "version": "v1", "resource": "widgets"}},
        });
        let _ = self.send("POST", "/apis/migration.k8s.io/v1alpha1/storageversionmigrations", Some(&migration)).await;
    }

    pub(crate) async fn delete_namespace(self) {
        self.delete(ObjectKey::new("core.namespaces", "", NAMESPACE), &format!("/api/v1/namespaces/{NAMESPACE}")).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        self.create_again("/api/v1/namespaces", &setup::namespace(NAMESPACE)).await;
    }

    pub(crate) async fn compact(self) {
        let revision = self.world.store.read(|model| model.revision());
        // Another compaction may have been quicker.
        let _ = restow_store::Store::compact(self.world.store.as_ref(), revision).await;
    }

    /// Creates an object, also after an earlier one that is still being deleted.
    async fn create_again(&self, collection: &str, object: &Value) {
        let path = format!("{collection}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
        for _ in 0..60 {
            self.create(collection, object).await;
            let there = self.send("GET", &path, None).await;
            let stays = |answer: Answer| answer.code == 200 && answer.body["metadata"]["deletionTimestamp"].is_null();
            if there.is_some_and(stays) {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// What users may have deleted is there again.
    pub(crate) async fn restore_crd_and_namespace(self) {
        self.create_again(CRDS, &setup::crd_of(self.world.shape)).await;
        for name in [NAMESPACE, LIMITED] {
            self.create_again("/api/v1/namespaces", &setup::namespace(name)).await;
        }
    }
}
