//! `restow install` grants the permissions that a migration needs, and no others.

use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use restow_testkit::{Cluster, Crd, On, Process, Server, api, crds, eventually, restow_binary, run};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ACCOUNT: &str = "--as=system:serviceaccount:restow-system:restow-controller";
const CRD: &str = "widgets.example.com";

/// Starts `restow controller`, with the rights of this kubeconfig.
fn start_controller(kubeconfig: &Path, flags: &[&str]) -> Process {
    let mut command = Command::new(restow_binary());
    command.args(["controller", "--settling-time", "0", "--kubeconfig"]).arg(kubeconfig).args(flags);
    Process::spawn(command.stdout(Stdio::null()))
}

fn install(server: &Server, flags: &[&str]) -> String {
    run(Command::new(restow_binary()).args(["install", "--kubeconfig"]).arg(&server.kubeconfig).args(flags))
}

/// A kubeconfig of the controller's service account.
fn of_the_account(cluster: &Cluster) -> PathBuf {
    let server = &cluster.servers[0];
    let token = cluster.kubectl(&["-n", "restow-system", "create", "token", "restow-controller"]);
    let text = std::fs::read_to_string(&server.kubeconfig).unwrap();
    let mut kubeconfig: Value = serde_saphyr::from_str(&text).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": token.trim()});
    PathBuf::from(cluster.file("account.kubeconfig", &kubeconfig.to_string()))
}

/// A custom resource with two versions.
fn widgets() -> Crd {
    Crd::new(CRD, "Widget").cluster_scoped().versions(&["v1", "v2"])
}

/// Creates the CRD, stored in v1, and a few objects.
async fn create_widgets(client: &kube::Client) {
    let crd: DynamicObject = serde_json::from_value(widgets().manifest()).unwrap();
    crds(client).create(&PostParams::default(), &crd).await.unwrap();
    let objects = widgets().api(client, "v1");
    eventually("the resource is served", async || objects.list(&ListParams::default()).await.is_ok()).await;
    for number in 0..20 {
        let object = widgets().object("v1", &format!("w{number}"), json!({}));
        objects.create(&PostParams::default(), &object).await.unwrap();
    }
}

async fn stored_versions(client: &kube::Client) -> Value {
    crds(client).get(CRD).await.unwrap().data["status"]["storedVersions"].clone()
}

async fn migrates(cluster: &Cluster, client: &kube::Client, flags: &[&str]) {
    let _controller = start_controller(&of_the_account(cluster), flags);
    let states = api(client, "migration.k8s.io", "v1alpha1", "StorageState", "storagestates");
    eventually("the controller keeps a record", async || states.get_opt(CRD).await.unwrap().is_some()).await;
    let patch = json!({"spec": {"versions": widgets().stored_in("v2").spec_versions()}});
    // While the controller checks the stored versions, the guard refuses another storage version.
    eventually("the storage version may change", async || {
        crds(client).patch(CRD, &PatchParams::default(), &Patch::Merge(&patch)).await.is_ok()
    })
    .await;
    eventually("the objects are migrated", async || stored_versions(client).await == json!(["v2"])).await;
    let events = api(client, "events.k8s.io", "v1", "Event", "events");
    eventually("an event reports it", async || {
        let list = events.list(&ListParams::default()).await.unwrap().items;
        list.iter().any(|event| event.data["reason"] == "MigrationSucceeded")
    })
    .await;
}

/// Whether the controller's account may do this.
fn may(server: &Server, arguments: &[&str]) -> bool {
    let asked = server.try_kubectl(&[&["auth", "can-i", ACCOUNT], arguments].concat());
    String::from_utf8(asked.stdout).unwrap().trim() == "yes"
}

#[tokio::test(flavor = "multi_thread")]
async fn install_with_crds_only_grants_no_access_to_secrets() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    let client = server.client().await;
    create_widgets(&client).await;
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
async fn install_for_all_resources_grants_only_existing_ones() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    let client = server.client().await;
    create_widgets(&client).await;
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
