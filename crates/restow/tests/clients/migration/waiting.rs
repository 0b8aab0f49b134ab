//! A migration that waits does not stop the others: unavailable webhooks, manual migrations, and migration objects that
//! people create.

use super::{Controller, GROUP, KIND, PLURAL, Widgets, eventually, install};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use restow_testkit::{Cluster, On, restow_binary};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};

const ALONE: [&str; 2] = ["--identity", "test"];
const SLOWLY: [&str; 4] = ["--identity", "test", "--max-in-flight", "1"];

/// A process of the command, which ends when this is dropped.
struct Running(Child);

impl Running {
    fn migrate(widgets: &Widgets, flags: &[&str]) -> Self {
        let mut command = Command::new(restow_binary());
        command.args(["migrate", &format!("{PLURAL}.{GROUP}"), "--kubeconfig"]).arg(&widgets.kubeconfig).args(flags);
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command, and returns its code with everything that it printed.
fn restow(widgets: &Widgets, arguments: &[&str]) -> (Option<i32>, String) {
    let output =
        Command::new(restow_binary()).args(arguments).arg("--kubeconfig").arg(&widgets.kubeconfig).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), text)
}

/// Pauses or resumes all migrations.
async fn pause_all(widgets: &Widgets, value: Value) {
    let patch = json!({"metadata": {"annotations": {"restow.dev/paused": value}}});
    let name = "storageversionmigrations.migration.k8s.io";
    widgets.crds().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

/// A custom resource with one object in v1 and the storage version v2, whose conversion webhook is down.
async fn broken(widgets: &Widgets, plural: &str) {
    let group = "broken.example.com";
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version =
        |name: &str, stored: &str| json!({"name": name, "served": true, "storage": name == stored, "schema": schema});
    let crd: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Cluster", "versions": [version("v1", "v1"), version("v2", "v1")],
                 "names": {"plural": plural, "singular": plural, "kind": plural.to_uppercase()}},
    }))
    .unwrap();
    widgets.crds().create(&PostParams::default(), &crd).await.unwrap();
    let objects = widgets.api(group, "v1", &plural.to_uppercase(), plural);
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": format!("{group}/v1"), "kind": plural.to_uppercase(), "metadata": {"name": "one"},
    }))
    .unwrap();
    eventually("the object is made", async || objects.create(&PostParams::default(), &object).await.is_ok()).await;
    let patch = json!({"spec": {
        "versions": [version("v1", "v2"), version("v2", "v2")],
        "conversion": {"strategy": "Webhook", "webhook": {
            "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/convert"},
        }},
    }});
    let name = format!("{plural}.{group}");
    widgets.crds().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

/// The existing migration of a resource.
async fn migration_of(widgets: &Widgets, plural: &str) -> Option<DynamicObject> {
    let list = widgets.migrations().list(&ListParams::default()).await.unwrap().items;
    list.into_iter().find(|migration| migration.data["spec"]["resource"]["resource"] == plural)
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_webhooks_delay_no_other_migration_on_the_embedded_store() {
    webhooks_that_are_down_hold_up_no_other_migration(On::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unavailable_webhooks_delay_no_other_migration_on_etcd() {
    webhooks_that_are_down_hold_up_no_other_migration(On::Etcd).await;
}

async fn webhooks_that_are_down_hold_up_no_other_migration(on: On) {
    let cluster = Cluster::one(on).await;
    install(&cluster.servers[0]);
    let widgets = Widgets::new(&cluster.servers[0], 0).await;
    let plurals = ["ants", "bees"];
    for plural in plurals {
        broken(&widgets, plural).await;
    }
    let mut controller = Controller::start(&widgets.kubeconfig, &[ALONE.as_slice(), &["--at-once", "2"]].concat());
    for plural in plurals {
        eventually("the broken one waits for its webhook, and neither runs nor marks meanwhile", async || {
            let Some(migration) = migration_of(&widgets, plural).await else { return false };
            let running = migration.data["status"]["conditions"][0].clone();
            let crd = widgets.crds().get(&format!("{plural}.broken.example.com")).await.unwrap();
            let annotations = crd.metadata.annotations.unwrap_or_default();
            running["status"] == "False"
                && running["reason"] == "Waiting"
                && running["message"].as_str().is_some_and(|words| words.contains("webhook"))
                && !annotations.contains_key("ksvm.sigs.k8s.io/migrating")
        })
        .await;
    }
    // Those took both slots. Now a migration without a webhook starts.
    widgets.create(0..20).await;
    widgets.store_in("v2").await;
    widgets.wait_for("v2", "while others wait for their webhooks").await;
    for plural in plurals {
        let migration = migration_of(&widgets, plural).await.unwrap();
        let conditions = migration.data["status"]["conditions"].as_array().unwrap();
        assert!(conditions.iter().all(|one| one["type"] == "Running"), "waiting is not failing: {conditions:?}");
    }
    // It runs briefly from time to time, to retry.
    eventually("status tells what the broken one waits for", async || {
        let (code, text) = restow(&widgets, &["status", "ants"]);
        assert_eq!(code, Some(0), "{text}");
        text.contains("Waiting") && text.contains("webhook cannot be reached")
    })
    .await;
    controller.kill();

    widgets.store_in("v1").await;
    let (code, text) = restow(&widgets, &["migrate", "--crds"]);
    assert_eq!(code, Some(4), "{text}");
    assert_eq!(text.matches("WebhookDown").count(), 2, "{text}");
    assert_eq!(widgets.stored_versions().await, json!(["v1"]), "the healthy one is migrated: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_keeps_the_mark_of_a_manual_migration_and_reports_its_refusals() {
    let cluster = Cluster::one(On::Embedded).await;
    install(&cluster.servers[0]);
    let widgets = Widgets::new(&cluster.servers[0], 400).await;
    pause_all(&widgets, json!("true")).await;
    widgets.store_in("v2").await;
    let mut by_hand = Running::migrate(&widgets, &["--max-in-flight", "1"]);
    eventually("some objects are rewritten by hand", async || widgets.census().await.contains_key("v2")).await;
    by_hand.signal(rustix::process::Signal::STOP);
    assert!(widgets.is_marked().await);
    let (_, text) = restow(&widgets, &["status", PLURAL]);
    assert!(text.contains("is being migrated by hand"), "{text}");
    assert!(!text.contains("nothing rewrites"), "{text}");

    // This controller knows of no running migration, and reconciles everything every second.
    let _controller = Controller::start(&widgets.kubeconfig, &[ALONE.as_slice(), &["--poll-interval", "1"]].concat());
    let states = widgets.api("migration.k8s.io", "v1alpha1", "StorageState", "storagestates");
    let heartbeat = async || {
        let state = states.get_opt(&format!("{PLURAL}.{GROUP}")).await.unwrap();
        state.map(|state| state.data["status"]["lastHeartbeatTime"].clone())
    };
    for _ in 0..3 {
        let before = heartbeat().await;
        eventually("the controller has looked", async || heartbeat().await != before).await;
    }
    assert!(widgets.is_marked().await, "the mark is not the controller's to take away");
    by_hand.signal(rustix::process::Signal::CONT);
    assert!(by_hand.0.wait().unwrap().success());
    assert!(!widgets.is_marked().await);
    assert_eq!(widgets.stored_versions().await, json!(["v2"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_objects_that_a_manual_migration_could_not_rewrite_until_it_could() {
    let cluster = Cluster::one(On::Embedded).await;
    let server = &cluster.servers[0];
    let widgets = Widgets::new(server, 5).await;
    let policy = cluster.file("policy.yaml", &super::faults::refusing("object.metadata.name == 'widget-00003'"));
    cluster.kubectl(&["apply", "-f", &policy]);
    let touch = json!({"metadata": {"annotations": {"touched": "yes"}}});
    eventually("the policy is in force", async || {
        let touched = widgets.objects().patch("widget-00003", &PatchParams::default(), &Patch::Merge(&touch)).await;
        touched.is_err()
    })
    .await;
    widgets.store_in("v2").await;
    let name = format!("{PLURAL}.{GROUP}");
    let (code, text) = restow(&widgets, &["migrate", &name]);
    assert_eq!(code, Some(3), "{text}");
    let (_, text) = restow(&widgets, &["status", PLURAL]);
    assert!(text.contains("1 objects were refused, the first being default/widget-00003"), "{text}");
    cluster.kubectl(&["delete", "-f", &policy]);
    eventually("the policy is gone", async || {
        widgets.objects().patch("widget-00003", &PatchParams::default(), &Patch::Merge(&touch)).await.is_ok()
    })
    .await;
    let (code, text) = restow(&widgets, &["migrate", &name]);
    assert_eq!(code, Some(0), "{text}");
    let (_, text) = restow(&widgets, &["status", PLURAL]);
    assert!(!text.contains("refused"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_object_applied_with_the_crd_change_succeeds_on_the_embedded_store() {
    a_migration_that_a_person_applies_succeeds(On::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_object_applied_with_the_crd_change_succeeds_on_etcd() {
    a_migration_that_a_person_applies_succeeds(On::Etcd).await;
}

async fn a_migration_that_a_person_applies_succeeds(on: On) {
    let cluster = Cluster::one(on).await;
    install(&cluster.servers[0]);
    let widgets = Widgets::new(&cluster.servers[0], 20).await;
    let _controller = Controller::start(&widgets.kubeconfig, &ALONE);
    widgets.wait_for("v1", "at the start").await;
    // So that the controller has seen both before either is carried out.
    pause_all(&widgets, json!("true")).await;
    widgets.store_in("v2").await;
    let mine: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "migration.k8s.io/v1alpha1", "kind": "StorageVersionMigration", "metadata": {"name": "mine"},
        "spec": {"resource": {"group": GROUP, "version": "v1", "resource": PLURAL}},
    }))
    .unwrap();
    let made = widgets.migrations().create(&PostParams::default(), &mine).await.unwrap();
    eventually("the change is seen", async || widgets.persisted().await.as_array().is_some_and(|list| list.len() > 1))
        .await;
    pause_all(&widgets, Value::Null).await;
    cluster.kubectl(&[
        "wait",
        "--for=condition=Succeeded",
        "storageversionmigrations.migration.k8s.io/mine",
        "--timeout=180s",
    ]);
    widgets.wait_for("v2", "by the migration of a person").await;
    // Another change does not remove it either.
    widgets.store_in("v1").await;
    widgets.wait_for("v1", "after another change").await;
    assert_eq!(widgets.migrations().get("mine").await.unwrap().metadata.uid, made.metadata.uid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_of_an_unknown_resource_fails_and_delays_no_other() {
    let cluster = Cluster::one(On::Embedded).await;
    install(&cluster.servers[0]);
    let widgets = Widgets::new(&cluster.servers[0], 3).await;
    let _controller = Controller::start(&widgets.kubeconfig, &ALONE);
    for (name, resource) in [("empty", json!({})), ("nameless", json!({"group": GROUP, "version": "v1"}))] {
        let migration: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "migration.k8s.io/v1alpha1", "kind": "StorageVersionMigration", "metadata": {"name": name},
            "spec": {"resource": resource},
        }))
        .unwrap();
        widgets.migrations().create(&PostParams::default(), &migration).await.unwrap();
        eventually("it has failed, and says why", async || {
            let status = widgets.migrations().get(name).await.unwrap().data["status"].clone();
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let failed = conditions.iter().find(|condition| condition["type"] == "Failed").cloned().unwrap_or_default();
            failed["status"] == "True" && status.to_string().contains("spec.resource does not name a resource")
        })
        .await;
    }
    widgets.store_in("v2").await;
    widgets.wait_for("v2", "beside migrations of nothing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_object_that_is_deleted_while_it_runs_is_replaced() {
    for on in [On::Embedded, On::Etcd] {
        let cluster = Cluster::one(on).await;
        install(&cluster.servers[0]);
        let widgets = Widgets::new(&cluster.servers[0], 300).await;
        let _controller = Controller::start(&widgets.kubeconfig, &SLOWLY);
        widgets.wait_for("v1", "at the start").await;
        let before = widgets.contents().await;
        widgets.store_in("v2").await;
        eventually("some objects are rewritten", async || widgets.census().await.contains_key("v2")).await;
        let first = migration_of(&widgets, PLURAL).await.unwrap().metadata;
        widgets.migrations().delete(&first.name.unwrap(), &DeleteParams::default()).await.unwrap();
        widgets.assert_nothing_is_hidden("after the migration was deleted").await;
        widgets.wait_for("v2", "in spite of the deletion").await;
        let second = migration_of(&widgets, PLURAL).await.unwrap().metadata;
        assert_ne!(first.uid, second.uid, "{on:?}: another one was made");
        assert_eq!(widgets.contents().await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_leader_does_no_harm_when_it_resumes() {
    for on in [On::Embedded, On::Etcd] {
        let cluster = Cluster::one(on).await;
        install(&cluster.servers[0]);
        let widgets = Widgets::new(&cluster.servers[0], 300).await;
        let flags = |name: &'static str| ["--identity", name, "--lease-duration", "3", "--max-in-flight", "1"];
        let suspended = Controller::start(&widgets.kubeconfig, &flags("one"));
        widgets.wait_for("v1", "at the start").await;
        let before = widgets.contents().await;
        widgets.store_in("v2").await;
        eventually("some objects are rewritten", async || widgets.census().await.contains_key("v2")).await;
        suspended.signal(rustix::process::Signal::STOP);
        let next = Controller::start(&widgets.kubeconfig, &flags("two"));
        widgets.wait_for("v2", "by the next leader").await;
        // The stopped leader was about to write towards v2; meanwhile the storage version changes back.
        widgets.store_in("v1").await;
        widgets.wait_for("v1", "by the next leader, again").await;
        suspended.signal(rustix::process::Signal::CONT);
        eventually("the one that woke leads no more", async || suspended.metric("restow_leading") == Some(0.0)).await;
        widgets.assert_nothing_is_hidden("after it woke").await;
        widgets.wait_for("v1", "after it woke").await;
        assert_eq!(widgets.contents().await, before, "{on:?}");
        assert_eq!(next.metric("restow_leading"), Some(1.0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn managed_fields_leave_a_deprecated_version_with_the_migration() {
    for on in [On::Embedded, On::Etcd] {
        let cluster = Cluster::one(on).await;
        let widgets = Widgets::new(&cluster.servers[0], 0).await;
        let object = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": KIND, "metadata": {"name": "applied"}, "spec": {"number": 1},
        });
        let apply = PatchParams::apply("somebody");
        widgets.objects().patch("applied", &apply, &Patch::Apply(&object)).await.unwrap();
        let owners = async || {
            let api: Api<DynamicObject> = widgets.objects();
            let entries = api.get("applied").await.unwrap().metadata.managed_fields.unwrap_or_default();
            let owner = |entry: k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
                (entry.manager.unwrap(), entry.api_version.unwrap())
            };
            entries.into_iter().map(owner).collect::<Vec<_>>()
        };
        assert_eq!(owners().await, [("somebody".to_owned(), format!("{GROUP}/v1"))]);
        let mut versions = super::versions("v2");
        versions[0]["deprecated"] = json!(true);
        let patch = json!({"spec": {"versions": versions}});
        let name = format!("{PLURAL}.{GROUP}");
        widgets.crds().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        let (code, text) = restow(&widgets, &["migrate", &name]);
        assert_eq!(code, Some(0), "{on:?} {text}");
        assert_eq!(owners().await, [("somebody".to_owned(), format!("{GROUP}/v2"))], "{on:?}");
        assert_eq!(widgets.contents().await["applied"][3]["number"], 1);
    }
}
