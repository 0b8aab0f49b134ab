//! Faults during a migration, with real servers and a real controller.

use super::{Controller, GROUP, PLURAL, Widgets, eventually, install};
use jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use restow_testkit::{Cluster, On, Server, eventually_blocking};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ALONE: [&str; 2] = ["--identity", "test"];

/// One object at a time, so that the test has time for its faults.
const SLOWLY: [&str; 4] = ["--identity", "test", "--max-in-flight", "1"];

/// Annotates the CRD of migrations, which concerns all of them.
async fn annotate_all(widgets: &Widgets, key: &str, value: Value) {
    let patch = json!({"metadata": {"annotations": {key: value}}});
    let name = "storageversionmigrations.migration.k8s.io";
    widgets.crds().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

/// The name and the status of the existing migration of the widgets.
async fn status(widgets: &Widgets) -> (String, Value) {
    let list = widgets.migrations().list(&ListParams::default()).await.unwrap().items;
    let mine = list.into_iter().find(|migration| migration.data["spec"]["resource"]["resource"] == PLURAL);
    mine.map(|found| (found.metadata.name.unwrap(), found.data["status"].clone())).unwrap_or_default()
}

async fn eventually_has_reason(widgets: &Widgets, words: &str) {
    eventually(&format!("the migration says: {words}"), async || {
        status(widgets).await.1["reason"].as_str().is_some_and(|reason| reason.contains(words))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_survives_a_killed_server_and_concurrent_writes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up(folder.path());
    install(&server);
    let widgets = Widgets::new(&server, 600).await;
    let _controller = Controller::start(&widgets.kubeconfig, &SLOWLY);
    widgets.wait_for("v1", "at the start").await;
    widgets.store_in("v2").await;
    eventually("some objects are rewritten", async || {
        widgets.census().await.get("v2").is_some_and(|count| *count > 30)
    })
    .await;
    let address = server.address.clone();
    server.kill();
    let _server = Server::up_at(folder.path(), &address, &["--controller=false"]);
    widgets.create(600..620).await;
    for number in [5, 300, 599] {
        let patch = json!({"spec": {"number": number + 1_000_000}});
        let name = format!("widget-{number:05}");
        widgets.objects().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }
    for number in [7, 301, 598] {
        widgets.objects().delete(&format!("widget-{number:05}"), &DeleteParams::default()).await.unwrap();
    }
    widgets.wait_for("v2", "after the server was killed").await;
    let contents = widgets.contents().await;
    assert_eq!(contents.len(), 617);
    assert_eq!(contents["widget-00300"][3]["number"], 1_000_300, "no update is lost");
    assert_eq!(contents["widget-00299"][3]["number"], 299);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_waits_for_a_pause_a_maintenance_window_and_an_unavailable_webhook() {
    let cluster = Cluster::one(On::Embedded).await;
    install(&cluster.servers[0]);
    let widgets = Widgets::new(&cluster.servers[0], 30).await;
    let hour = (Timestamp::now().as_second() / 3600 + 12) % 24;
    let window = format!("{hour:02}:00-{hour:02}:30");
    let mut controller = Controller::start(&widgets.kubeconfig, &[ALONE.as_slice(), &["--window", &window]].concat());
    eventually_has_reason(&widgets, "maintenance window").await;
    assert!(!widgets.is_marked().await, "what waits for hours marks nothing");
    controller.kill();

    annotate_all(&widgets, "restow.dev/paused", json!("true")).await;
    let controller = Controller::start(&widgets.kubeconfig, &ALONE);
    eventually_has_reason(&widgets, "paused").await;
    widgets.store_in("v2").await;
    eventually_has_reason(&widgets, "paused").await;
    assert_eq!(widgets.census().await.keys().collect::<Vec<_>>(), ["v1"], "nothing is rewritten");

    let webhooks = widgets.api(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    );
    let down: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "down"},
        "webhooks": [{
            "name": "down.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [PLURAL]}],
        }],
    }))
    .unwrap();
    webhooks.create(&PostParams::default(), &down).await.unwrap();
    eventually("the webhook is in force", async || {
        let patch = json!({"spec": {"number": 0}});
        widgets.objects().patch("widget-00000", &PatchParams::default(), &Patch::Merge(&patch)).await.is_err()
    })
    .await;
    let failed = format!("restow_migrations_total{{resource=\"{PLURAL}.{GROUP}\",result=\"Failed\"}}");
    let failed_before = controller.metric(&failed);
    annotate_all(&widgets, "restow.dev/paused", Value::Null).await;
    eventually_has_reason(&widgets, "a webhook cannot be reached").await;
    assert_eq!(widgets.stored_versions().await, json!(["v1", "v2"]));
    webhooks.delete("down", &DeleteParams::default()).await.unwrap();
    widgets.wait_for("v2", "after the webhook is gone").await;
    assert_eq!(controller.metric(&failed), failed_before, "waiting is not failing");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_refused_objects_are_tried_again() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    install(server);
    let widgets = Widgets::new(server, 40).await;
    let _controller = Controller::start(&widgets.kubeconfig, &ALONE);
    widgets.wait_for("v1", "at the start").await;
    let policy = cluster.file("policy.yaml", &refusing("object.metadata.name in ['widget-00003', 'widget-00017']"));
    cluster.kubectl(&["apply", "-f", &policy]);
    let touch = ["annotate", "widgets.widgets.example.com/widget-00003", "--overwrite"];
    eventually_blocking("the policy is in force", || {
        let stamp = format!("at={}", Timestamp::now().as_microsecond());
        !server.try_kubectl(&[touch.as_slice(), &[&stamp]].concat()).status.success()
    });
    widgets.store_in("v2").await;
    eventually("the migration has failed", async || {
        let conditions = status(&widgets).await.1["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Failed" && condition["status"] == "True")
    })
    .await;
    let (name, failed) = status(&widgets).await;
    let mut names: Vec<&str> =
        failed["failures"].as_array().unwrap().iter().map(|failure| failure["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["widget-00003", "widget-00017"], "{failed}");
    assert!(failed["failures"][0]["message"].as_str().unwrap().contains("not this one"), "{failed}");
    assert_eq!(widgets.stored_versions().await, json!(["v1", "v2"]), "nothing is claimed");
    eventually("the mark is gone", async || !widgets.is_marked().await).await;
    assert_eq!(widgets.census().await["v1"], 2);

    cluster.kubectl(&["delete", "-f", &policy]);
    eventually_blocking("the policy is gone", || {
        let stamp = format!("at={}", Timestamp::now().as_microsecond());
        server.try_kubectl(&[touch.as_slice(), &[&stamp]].concat()).status.success()
    });
    let before = patches(&widgets).await;
    cluster.kubectl(&["annotate", "storageversionmigrations.migration.k8s.io", &name, "restow.dev/retry="]);
    widgets.wait_for("v2", "after the second attempt").await;
    // The two of them, once to rewrite them and once to see that nothing is left; the other 38 are known.
    let tried = patches(&widgets).await - before;
    assert!(tried <= 10.0, "{tried} objects were patched");

    // More than the status of a migration can list.
    widgets.create(40..1_100).await;
    let policy = cluster.file("policy.yaml", &refusing("object.metadata.name != 'widget-00000'"));
    cluster.kubectl(&["apply", "-f", &policy]);
    eventually_blocking("the policy is in force", || {
        let stamp = format!("at={}", Timestamp::now().as_microsecond());
        !server.try_kubectl(&[touch.as_slice(), &[&stamp]].concat()).status.success()
    });
    widgets.store_in("v1").await;
    eventually("the migration has failed", async || {
        let conditions = status(&widgets).await.1["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Failed" && condition["status"] == "True")
    })
    .await;
    let (name, failed) = status(&widgets).await;
    assert_eq!(failed["counts"]["failed"], 1_099, "{}", failed["reason"]);
    let selector = format!("restow.dev/migration={name}");
    assert!(failed["reason"].as_str().unwrap().contains(&selector), "{}", failed["reason"]);
    let maps = cluster.kubectl(&["get", "configmaps", "-n", "restow-system", "-l", &selector, "-o", "json"]);
    let maps: Value = serde_json::from_str(&maps).unwrap();
    let rest = maps["items"].as_array().unwrap().iter().flat_map(|map| {
        let list: Vec<Value> = serde_json::from_str(map["data"]["failures.json"].as_str().unwrap()).unwrap();
        list
    });
    let names: BTreeSet<String> = failed["failures"]
        .as_array()
        .unwrap()
        .iter()
        .cloned()
        .chain(rest)
        .map(|failure| {
            assert!(failure["message"].as_str().unwrap().contains("not this one"), "{failure}");
            failure["name"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(names.len(), 1_099, "every one of them can be looked up");
}

/// A policy that refuses updates of the widgets that match this expression.
pub(super) fn refusing(what: &str) -> String {
    format!(
        "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: refusing}}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {{apiGroups: [{GROUP}], apiVersions: ['*'], operations: [UPDATE], resources: [{PLURAL}]}}
  validations:
  - {{expression: \"!({what})\", message: not this one}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: refusing}}
spec: {{policyName: refusing, validationActions: [Deny]}}
"
    )
}

/// How many widgets have been patched, as the server counts them.
async fn patches(widgets: &Widgets) -> f64 {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let text = widgets.client.request_text(request).await.unwrap();
    let of_widgets = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && line.contains("verb=\"PATCH\"")
            && line.contains(&format!("resource=\"{PLURAL}\""))
    };
    text.lines().filter(of_widgets).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// A kubeconfig of the service account that `restow install` creates. Unlike an administrator, it can get 429.
fn as_service_account(server: &Server) -> PathBuf {
    let token = server.kubectl(&["create", "token", "restow-controller", "-n", "restow-system"]);
    let mut config: Value = serde_json::from_str(&server.kubectl(&["config", "view", "--raw", "-o", "json"])).unwrap();
    config["users"][0]["user"] = json!({"token": token.trim()});
    let path = server.kubeconfig.with_extension("service-account");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_slows_down_during_429_responses() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up_with(folder.path(), &["--controller=false", "--max-mutating-requests-inflight", "1"]);
    let widgets = Widgets::new(&server, 400).await;
    // It grants access to the resources that the cluster has now.
    install(&server);
    let account = as_service_account(&server);
    let controller = Controller::start(&account, &SLOWLY);
    widgets.wait_for("v1", "at the start").await;
    // A write of a ConfigMap waits for a webhook that never responds, and occupies the only slot for writes.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", silent.local_addr().unwrap());
    let webhook = cluster_file(&server, "webhook.json", &slow_webhook(&url));
    server.kubectl(&["apply", "-f", &webhook]);
    let is_over = Arc::new(AtomicBool::new(false));
    let storm = {
        let (account, is_over) = (account.clone(), Arc::clone(&is_over));
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let map = ["create", "configmap", "slow", "-n", "restow-system", "--dry-run=server"];
                // The request itself may get 429; then another request occupies the only slot.
                let output = Command::new("kubectl").env("KUBECONFIG", &account).args(map).output();
                output.unwrap();
            }
        })
    };
    widgets.store_in("v2").await;
    let overloads = format!("restow_migration_overloads{{resource=\"{PLURAL}.{GROUP}\"}}");
    eventually("the server has asked the migration to wait", async || {
        controller.metric(&overloads).is_some_and(|count| count > 0.0)
    })
    .await;
    is_over.store(true, Ordering::Relaxed);
    storm.join().unwrap();
    server.kubectl(&["delete", "-f", &webhook]);
    widgets.wait_for("v2", "in spite of the storm").await;
}

fn cluster_file(server: &Server, name: &str, text: &str) -> String {
    let path = server.kubeconfig.with_file_name(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A webhook for ConfigMaps with `failurePolicy: Ignore`: without its response they are written after the timeout.
fn slow_webhook(url: &str) -> String {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "slow"},
        "webhooks": [{
            "name": "slow.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Ignore", "timeoutSeconds": 2, "clientConfig": {"url": url},
            "rules": [{"apiGroups": [""], "apiVersions": ["*"], "operations": ["*"], "resources": ["configmaps"]}],
        }],
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_controller_takes_over_and_a_deleted_crd_ends_its_migration() {
    let cluster = Cluster::one(On::Etcd).await;
    install(&cluster.servers[0]);
    let widgets = Widgets::new(&cluster.servers[0], 300).await;
    let flags = |name: &'static str| ["--identity", name, "--lease-duration", "3", "--max-in-flight", "1"];
    let mut controllers =
        [Controller::start(&widgets.kubeconfig, &flags("one")), Controller::start(&widgets.kubeconfig, &flags("two"))];
    widgets.wait_for("v1", "at the start").await;
    let leads = |controller: &Controller| controller.metric("restow_leading") == Some(1.0);
    let leader = usize::from(!leads(&controllers[0]));
    assert!(leads(&controllers[leader]) && !leads(&controllers[1 - leader]), "one of them acts");
    let before = widgets.contents().await;
    widgets.store_in("v2").await;
    eventually("some objects are rewritten", async || widgets.census().await.contains_key("v2")).await;
    controllers[leader].kill();
    widgets.wait_for("v2", "after the other took over").await;
    assert_eq!(widgets.contents().await, before);
    assert!(leads(&controllers[1 - leader]));

    widgets.store_in("v1").await;
    eventually("some objects are rewritten", async || widgets.census().await.contains_key("v1")).await;
    let name = format!("{PLURAL}.{GROUP}");
    widgets.crds().delete(&name, &DeleteParams::default()).await.unwrap();
    eventually("the CRD is gone", async || widgets.crds().get_opt(&name).await.unwrap().is_none()).await;
    eventually("nothing runs any more, and nothing is claimed", async || {
        let (_, status) = status(&widgets).await;
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let holds = |kind: &str| conditions.iter().any(|one| one["type"] == kind && one["status"] == "True");
        !holds("Running") && !holds("Succeeded") && widgets.persisted().await == Value::Null
    })
    .await;
    // The controller continues: a resource of the same name is managed like any other.
    let again = Widgets::new(&cluster.servers[0], 10).await;
    tokio::time::timeout(Duration::from_secs(120), again.wait_for("v1", "after it was defined again")).await.unwrap();
}
