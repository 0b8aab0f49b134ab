//! What `restow install` grants is enough to migrate, and no more than that.

use crate::cluster::{Cluster, On, RESTOW, Server};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use restow_testkit::output;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ACCOUNT: &str = "--as=system:serviceaccount:restow-system:restow-controller";
const DEFINITION: &str = "widgets.example.com";

/// `restow controller`, as whoever the kubeconfig says. It ends when this is dropped.
struct Controller(Child);

impl Controller {
    fn start(kubeconfig: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new(RESTOW);
        command.args(["controller", "--settling-time", "0", "--kubeconfig"]).arg(kubeconfig).args(flags);
        Controller(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn install(server: &Server, flags: &[&str]) -> String {
    let installed = output(Command::new(RESTOW).args(["install", "--kubeconfig"]).arg(&server.kubeconfig).args(flags));
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    String::from_utf8(installed.stdout).unwrap()
}

/// A kubeconfig of the controller's service account, and of nobody else.
fn of_the_account(cluster: &Cluster) -> PathBuf {
    let server = &cluster.servers[0];
    let token = cluster.kubectl(&["-n", "restow-system", "create", "token", "restow-controller"]);
    let text = std::fs::read_to_string(&server.kubeconfig).unwrap();
    let mut kubeconfig: Value = serde_saphyr::from_str(&text).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": token.trim()});
    PathBuf::from(cluster.file("account.kubeconfig", &kubeconfig.to_string()))
}

fn versions(stored: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str| json!({"name": name, "served": true, "storage": name == stored, "schema": schema});
    json!([version("v1"), version("v2")])
}

fn api(client: &kube::Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let api = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::all_with(client.clone(), &api)
}

fn definitions(client: &kube::Client) -> Api<DynamicObject> {
    api(client, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
}

/// Defines a resource with a few objects, stored in v1.
async fn widgets(client: &kube::Client) {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": DEFINITION},
        "spec": {"group": "example.com", "scope": "Cluster", "versions": versions("v1"),
                 "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"}},
    });
    let definition: DynamicObject = serde_json::from_value(definition).unwrap();
    definitions(client).create(&PostParams::default(), &definition).await.unwrap();
    let objects = api(client, "example.com", "v1", "Widget", "widgets");
    eventually("the resource is served", async || objects.list(&ListParams::default()).await.is_ok()).await;
    for number in 0..20 {
        let object =
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": format!("w{number}")}});
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        objects.create(&PostParams::default(), &object).await.unwrap();
    }
}

async fn stored_versions(client: &kube::Client) -> Value {
    definitions(client).get(DEFINITION).await.unwrap().data["status"]["storedVersions"].clone()
}

async fn migrates(cluster: &Cluster, client: &kube::Client, flags: &[&str]) {
    let _controller = Controller::start(&of_the_account(cluster), flags);
    let states = api(client, "migration.k8s.io", "v1alpha1", "StorageState", "storagestates");
    eventually("the controller keeps a record", async || states.get_opt(DEFINITION).await.unwrap().is_some()).await;
    let patch = json!({"spec": {"versions": versions("v2")}});
    // While the controller makes sure of what is stored, the guard refuses another storage version.
    eventually("the storage version may change", async || {
        definitions(client).patch(DEFINITION, &PatchParams::default(), &Patch::Merge(&patch)).await.is_ok()
    })
    .await;
    eventually("the objects are migrated", async || stored_versions(client).await == json!(["v2"])).await;
    let events = api(client, "events.k8s.io", "v1", "Event", "events");
    eventually("that is told in an event", async || {
        let list = events.list(&ListParams::default()).await.unwrap().items;
        list.iter().any(|event| event.data["reason"] == "MigrationSucceeded")
    })
    .await;
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(300), "still not so after five minutes: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether the controller's account may do this.
fn may(server: &Server, arguments: &[&str]) -> bool {
    let asked = server.try_kubectl(&[&["auth", "can-i", ACCOUNT], arguments].concat());
    String::from_utf8(asked.stdout).unwrap().trim() == "yes"
}

#[tokio::test(flavor = "multi_thread")]
async fn with_custom_resources_only_no_secret_can_be_read() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    let client = server.client().await;
    widgets(&client).await;
    let shown = install(server, &["--crds-only", "--dry-run"]);
    assert!(shown.contains("the custom resources that this cluster defines now"), "{shown}");
    assert!(!shown.contains("secrets") && !shown.contains("resources: [\"*\"]"), "{shown}");
    install(server, &["--crds-only"]);
    assert!(!install(server, &["--crds-only"]).contains(" changed\n"), "installing twice changes nothing");
    migrates(&cluster, &client, &["--crds-only"]).await;

    cluster.kubectl(&["-n", "default", "create", "secret", "generic", "s", "--from-literal=a=b"]);
    let refused = server.kubectl_fails(&["-n", "default", "get", "secret", "s", ACCOUNT]);
    assert!(refused.contains("forbidden"), "{refused}");
    for arguments in [
        &["get", "secrets", "-A"][..],
        &["list", "configmaps", "-A"],
        &["patch", "pods", "-A"],
        &["patch", "deployments", "-A"],
        &["update", "widgets.example.com"],
        &["delete", "widgets.example.com"],
        &["create", "customresourcedefinitions"],
        &["delete", "customresourcedefinitions"],
        &["get", "leases", "-A"],
        &["create", "configmaps", "-n", "default"],
        &["impersonate", "users"],
        &["escalate", "clusterroles"],
    ] {
        assert!(!may(server, arguments), "{arguments:?}");
    }
    for arguments in [&["patch", "widgets.example.com"][..], &["list", "customresourcedefinitions"]] {
        assert!(may(server, arguments), "{arguments:?}");
    }
    install(server, &["--crds-only", "--group", "later.example.com"]);
    let granted = cluster.kubectl(&["get", "clusterrole", "restow-controller-objects", "-o", "json"]);
    assert!(granted.contains("later.example.com"), "{granted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_resources_those_are_granted_that_are_there() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    let client = server.client().await;
    widgets(&client).await;
    let shown = install(server, &["--dry-run", "--image", "example.com/restow"]);
    assert!(shown.contains("Secrets among them"), "{shown}");
    assert!(!shown.contains("\"*\"") && !shown.contains("[*]"), "{shown}");
    assert!(shown.contains("--metrics-listen=127.0.0.1:9443"), "{shown}");
    install(server, &[]);
    assert!(!install(server, &[]).contains(" changed\n"), "installing twice changes nothing");
    migrates(&cluster, &client, &[]).await;
    for arguments in [
        &["update", "secrets", "-A"][..],
        &["create", "pods", "-A"],
        &["delete", "secrets", "-A"],
        &["get", "pods", "--subresource=log", "-A"],
        &["create", "pods", "--subresource=exec", "-A"],
        &["patch", "pods", "--subresource=status", "-A"],
    ] {
        assert!(!may(server, arguments), "{arguments:?}");
    }
    assert!(may(server, &["patch", "secrets", "-A"]));
}
