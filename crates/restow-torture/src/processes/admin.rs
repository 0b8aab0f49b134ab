//! What administrators do: create what the writers need, and change the storage version of the CRD.

use super::api::{Answer, request};
use super::history::History;
use super::stock::{Migrator, StockOptions};
use crate::checks::{ObjectKey, Outcome};
use crate::world::setup::{self, CRD};
use crate::world::{LIMITED, NAMESPACE};
use kube::Client;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const NAMESPACES: &str = "/api/v1/namespaces";
/// How long it is tried to create again what was deleted.
const RESTORES_WITHIN: Duration = Duration::from_secs(60);
/// How often a change is tried again.
const TRIES: usize = 10;

/// An administrator, who tries one server after the other.
#[derive(Clone)]
pub(crate) struct Admin {
    history: Arc<History>,
    servers: Vec<Client>,
    /// Stock API servers, and who migrates on them.
    stock: Option<StockOptions>,
}

impl Admin {
    pub(crate) fn new(history: Arc<History>, servers: Vec<Client>) -> Self {
        Admin { history, servers, stock: None }
    }

    /// The same, of stock API servers.
    pub(crate) fn of_stock(self, stock: Option<StockOptions>) -> Self {
        Admin { stock, ..self }
    }

    async fn send(&self, turn: usize, method: &str, path: &str, body: Option<&Value>) -> Option<Answer> {
        let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let answer = request(&self.servers[turn % self.servers.len()], (method, path, content_type), body).await;
        self.history.note(match &answer {
            Ok(answer) => format!("admin: {method} {path}: {} {}", answer.code, answer.body["message"]),
            Err(error) => format!("admin: {method} {path}: {error}"),
        });
        answer.ok()
    }

    /// Creates what the writers need. Returns whether all of it exists in time.
    pub(crate) async fn set_up(&self, within: Duration) -> bool {
        let began = Instant::now();
        while restow_migrate::install::install_at_own_server(&self.servers[0]).await.is_err() {
            if began.elapsed() > within {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": LIMITED},
            "spec": {"hard": {"count/configmaps": "4"}},
        });
        let objects = [
            (CRDS.to_owned(), setup::crd()),
            (NAMESPACES.to_owned(), setup::namespace(NAMESPACE)),
            (NAMESPACES.to_owned(), setup::namespace(LIMITED)),
            (format!("{NAMESPACES}/{LIMITED}/resourcequotas"), quota),
        ];
        // On stock API servers only custom resources are written.
        let needed = if self.stock.is_some() { 2 } else { objects.len() };
        for (collection, object) in &objects[..needed] {
            while !self.create(collection, object).await {
                if began.elapsed() > within {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        true
    }

    async fn create(&self, collection: &str, object: &Value) -> bool {
        let answer = self.send(0, "POST", collection, Some(object)).await;
        answer.is_some_and(|answer| [200, 201, 409].contains(&answer.code))
    }

    /// Makes the other version of the CRD its storage version.
    pub(crate) async fn flip_storage_version(self, first: usize) {
        let path = format!("{CRDS}/{CRD}");
        for turn in first..first + TRIES {
            if self.try_to_flip(turn, &path).await {
                self.history.count(|counts| counts.flips += 1);
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn try_to_flip(&self, turn: usize, path: &str) -> bool {
        let Some(mut found) = self.send(turn, "GET", path, None).await else { return false };
        let Some(versions) = found.body["spec"]["versions"].as_array_mut() else { return false };
        for version in versions {
            version["storage"] = (version["storage"] != true).into();
        }
        self.send(turn, "PUT", path, Some(&found.body)).await.is_some_and(|answer| answer.code == 200)
    }

    /// Deletes the CRD, and creates it again after a while.
    pub(crate) async fn delete_crd(self, turn: usize, pause: Duration) {
        let key = ObjectKey::new("apiextensions.k8s.io.customresourcedefinitions", "", CRD);
        self.delete_and_restore(turn, &key, &format!("{CRDS}/{CRD}"), pause).await;
    }

    /// Deletes the namespace of the writers, and creates it again after a while.
    pub(crate) async fn delete_namespace(self, turn: usize, pause: Duration) {
        let key = ObjectKey::new("core.namespaces", "", NAMESPACE);
        self.delete_and_restore(turn, &key, &format!("{NAMESPACES}/{NAMESPACE}"), pause).await;
    }

    async fn delete_and_restore(&self, turn: usize, key: &ObjectKey, path: &str, pause: Duration) {
        let operation = self.history.begin(key, None, "admin", "DELETE");
        let _ = self.send(turn, "DELETE", path, None).await;
        // Its objects may go at any time from now on.
        self.history.end(operation, Outcome::Unknown, path);
        tokio::time::sleep(pause).await;
        let began = Instant::now();
        while !self.restore().await && began.elapsed() < RESTORES_WITHIN {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Creates what was deleted. Returns whether all of it is there, and stays.
    pub(crate) async fn restore(&self) -> bool {
        let turn = self.history.counts().operations as usize;
        let mut all = true;
        for (collection, name, object) in
            [(CRDS, CRD, setup::crd()), (NAMESPACES, NAMESPACE, setup::namespace(NAMESPACE))]
        {
            let found = self.send(turn, "GET", &format!("{collection}/{name}"), None).await;
            let is_there = found
                .as_ref()
                .is_some_and(|found| found.code == 200 && found.body["metadata"]["deletionTimestamp"].is_null());
            if found.is_some_and(|found| found.code == 404) {
                let _ = self.send(turn, "POST", collection, Some(&object)).await;
            }
            all &= is_there;
        }
        all
    }

    /// Asks for a migration of the writers' custom resources.
    pub(crate) async fn ask_for_migration(self, first: usize) {
        let is_in_tree = matches!(&self.stock, Some(StockOptions { migrator: Migrator::InTree { .. }, .. }));
        // The API of Kubernetes itself migrates all versions, and takes none.
        let (version, resource) = match is_in_tree {
            true => ("storagemigration.k8s.io/v1", json!({"group": "example.com", "resource": "widgets"})),
            false => {
                let resource = json!({"group": "example.com", "version": "v1", "resource": "widgets"});
                ("migration.k8s.io/v1alpha1", resource)
            }
        };
        let migration = json!({
            "apiVersion": version, "kind": "StorageVersionMigration",
            "metadata": {"generateName": "by-hand-"}, "spec": {"resource": resource},
        });
        let path = format!("/apis/{version}/storageversionmigrations");
        // Nobody but an administrator asks the migrator of Kubernetes, so it is worth trying again.
        for turn in first..first + if is_in_tree { TRIES } else { 1 } {
            let answer = self.send(turn, "POST", &path, Some(&migration)).await;
            if answer.is_some_and(|answer| answer.code == 201) {
                return;
            }
        }
    }

    /// The servers that do not say that they are ready for writes.
    pub(crate) async fn who_is_not_ready(&self) -> Vec<usize> {
        let mut waiting = Vec::new();
        for (number, server) in self.servers.iter().enumerate() {
            let answer = request(server, ("GET", "/readyz", "application/json"), None).await;
            if !answer.is_ok_and(|answer| answer.code == 200) {
                waiting.push(number);
            }
        }
        waiting
    }

    /// Deletes the identity lease of a server.
    pub(crate) async fn delete_lease(self, identity: String, turn: usize) {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{identity}");
        let _ = self.send(turn, "DELETE", &path, None).await;
    }
}
