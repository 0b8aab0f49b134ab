//! Migrations by the controller, as a process of its own or inside `restow up`, on Restow API servers.

mod crashes;
mod faults;
mod in_tree;
mod ksvm;
mod memory;
mod silence;
mod waiting;
mod webhook;
mod whole;

use futures::StreamExt;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use restow_api::storage_version_hash;
use restow_testkit::{Server, drain, eventually, next_line, restow_binary};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const GROUP: &str = "widgets.example.com";
const PLURAL: &str = "widgets";
const KIND: &str = "Widget";

/// `restow controller`. It ends when this is dropped.
pub(crate) struct Controller {
    child: Child,
    metrics: String,
}

impl Controller {
    /// Starts it, to manage custom resources.
    pub(crate) fn start(kubeconfig: &PathBuf, flags: &[&str]) -> Self {
        let mut child = Command::new(restow_binary())
            .args(["controller", "--crds-only", "--metrics-listen", "127.0.0.1:0", "--kubeconfig"])
            .arg(kubeconfig)
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (line, rest) = next_line(BufReader::new(child.stdout.take().unwrap()));
        let metrics = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let metrics = metrics.unwrap_or_else(|| panic!("the controller said {line:?}")).to_string();
        drain(rest);
        Controller { child, metrics }
    }

    /// The value of a metric, with its labels as they are written.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let mut connection = TcpStream::connect(&self.metrics).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).unwrap();
        value_of(&text, name)
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Its peak resident memory in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value in a line of Prometheus' text that begins with this name and these labels.
pub(crate) fn value_of(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// A custom resource with two versions, and objects of it.
pub(crate) struct Widgets {
    pub(crate) client: kube::Client,
    pub(crate) kubeconfig: PathBuf,
}

impl Widgets {
    /// Defines it, stored in v1, with so many objects.
    pub(crate) async fn new(server: &Server, count: usize) -> Self {
        let widgets = Widgets { client: server.client().await, kubeconfig: server.kubeconfig.clone() };
        let crd: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{PLURAL}.{GROUP}")},
            "spec": {"group": GROUP, "scope": "Namespaced", "versions": versions("v1"),
                     "names": {"plural": PLURAL, "singular": "widget", "kind": KIND}},
        }))
        .unwrap();
        widgets.crds().create(&PostParams::default(), &crd).await.unwrap();
        eventually("the resource is served", async || {
            widgets.objects().list(&ListParams::default().limit(1)).await.is_ok()
        })
        .await;
        widgets.create(0..count).await;
        widgets
    }

    pub(crate) async fn create(&self, numbers: std::ops::Range<usize>) {
        let create = |number: usize| async move {
            let object: DynamicObject = serde_json::from_value(json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": KIND,
                "metadata": {"name": format!("widget-{number:05}")}, "spec": {"number": number, "text": "x".repeat(100)},
            }))
            .unwrap();
            self.objects().create(&PostParams::default(), &object).await.unwrap();
        };
        futures::stream::iter(numbers).map(create).buffer_unordered(16).collect::<Vec<()>>().await;
    }

    pub(crate) fn api(&self, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let api = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        Api::all_with(self.client.clone(), &api)
    }

    pub(crate) fn crds(&self) -> Api<DynamicObject> {
        self.api("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
    }

    pub(crate) fn migrations(&self) -> Api<DynamicObject> {
        self.api("migration.k8s.io", "v1alpha1", "StorageVersionMigration", "storageversionmigrations")
    }

    pub(crate) fn objects(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(GROUP, "v1", KIND);
        let api = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        Api::namespaced_with(self.client.clone(), "default", &api)
    }

    /// Changes the storage version, as soon as the guard allows it.
    pub(crate) async fn store_in(&self, version: &str) {
        let patch = json!({"spec": {"versions": versions(version)}});
        let name = format!("{PLURAL}.{GROUP}");
        eventually("the storage version is changed", async || {
            match self.crds().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => true,
                Err(kube::Error::Api(status)) if status.message.contains("objects are being migrated") => false,
                Err(error) => panic!("{error}"),
            }
        })
        .await;
    }

    async fn crd(&self) -> DynamicObject {
        self.crds().get(&format!("{PLURAL}.{GROUP}")).await.unwrap()
    }

    pub(crate) async fn stored_versions(&self) -> Value {
        self.crd().await.data["status"]["storedVersions"].clone()
    }

    pub(crate) async fn is_marked(&self) -> bool {
        let annotations = self.crd().await.metadata.annotations.unwrap_or_default();
        annotations.contains_key("ksvm.sigs.k8s.io/migrating")
    }

    /// The persisted hashes in the StorageState.
    pub(crate) async fn persisted(&self) -> Value {
        let states = self.api("migration.k8s.io", "v1alpha1", "StorageState", "storagestates");
        let state = states.get_opt(&format!("{PLURAL}.{GROUP}")).await.unwrap();
        state.map(|state| state.data["status"]["persistedStorageVersionHashes"].clone()).unwrap_or(Value::Null)
    }

    /// The number of objects that are stored in each version.
    pub(crate) async fn census(&self) -> BTreeMap<String, u64> {
        let request = http::Request::get("/debug/stored-versions").body(Vec::new()).unwrap();
        let census: Value = self.client.request(request).await.unwrap();
        let rows = census["rows"].as_array().unwrap().iter().filter(|row| row["kind"] == KIND);
        rows.map(|row| (row["version"].as_str().unwrap().to_string(), row["count"].as_u64().unwrap())).collect()
    }

    /// The content of each object that a migration must not change.
    pub(crate) async fn contents(&self) -> BTreeMap<String, Value> {
        let list = self.objects().list(&ListParams::default()).await.unwrap();
        let content = |object: DynamicObject| {
            let metadata = object.metadata;
            let name = metadata.name.unwrap();
            (name, json!([metadata.uid, metadata.generation, metadata.creation_timestamp, object.data["spec"]]))
        };
        list.items.into_iter().map(content).collect()
    }

    /// The reported stored versions include every version that is really stored.
    pub(crate) async fn assert_nothing_is_hidden(&self, when: &str) {
        let (stored, persisted, real) = (self.stored_versions().await, self.persisted().await, self.census().await);
        for version in real.keys() {
            let says = |list: &Value, value: &str| list.as_array().unwrap().iter().any(|entry| entry == value);
            assert!(says(&stored, version), "{when}: {version} is stored, but storedVersions is {stored}");
            if persisted.is_array() {
                let hash = storage_version_hash(GROUP, version, KIND);
                let is_said = says(&persisted, &hash) || says(&persisted, "Unknown");
                assert!(is_said, "{when}: {version} ({hash}) is stored, but the state says {persisted}");
            }
        }
    }

    /// Waits until all reports name only this version, and checks that it is true.
    pub(crate) async fn wait_for(&self, version: &str, when: &str) {
        let hash = json!([storage_version_hash(GROUP, version, KIND)]);
        eventually(&format!("{when}: stored versions are trimmed"), async || {
            self.stored_versions().await == json!([version])
        })
        .await;
        eventually(&format!("{when}: the StorageState names only this version"), async || {
            self.persisted().await == hash
        })
        .await;
        eventually(&format!("{when}: the mark is gone"), async || !self.is_marked().await).await;
        let real = self.census().await;
        assert_eq!(real.keys().collect::<Vec<_>>(), [version], "{when}: {real:?}");
    }
}

fn versions(stored: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str| json!({"name": name, "served": true, "storage": name == stored, "schema": schema});
    json!([version("v1"), version("v2")])
}

/// Installs the objects that the controller needs.
pub(crate) fn install(server: &Server) {
    let output =
        Command::new(restow_binary()).args(["install", "--kubeconfig"]).arg(&server.kubeconfig).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
