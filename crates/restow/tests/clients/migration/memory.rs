//! The memory of the controller in a cluster with many large CRDs.

use super::{Controller, Widgets, eventually, install};
use futures::StreamExt;
use kube::api::{DynamicObject, ListParams, PostParams};
use restow_testkit::Server;
use serde_json::{Value, json};

const CRDS: usize = 400;
/// The size of each, in bytes.
const SIZE: usize = 80_000;
/// The number of migrated CRDs to wait for. More take no more memory: only some are migrated at once.
const MIGRATED: usize = 20;
/// The maximum memory of the controller in bytes. Its manifest has a limit of twice that.
const MOST: u64 = 64 * 1024 * 1024;

fn crd(number: usize) -> DynamicObject {
    let (group, plural) = ("large.example.com", format!("large{number:03}s"));
    let property =
        |number: usize| (format!("field{number:04}"), json!({"type": "string", "description": "x".repeat(120)}));
    let schema = |count: usize| {
        let properties: serde_json::Map<String, Value> = (0..count).map(property).collect();
        json!({"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": properties},
        }}})
    };
    // As large as after kubectl apply, which stores the applied object again in an annotation.
    let schema = schema(SIZE / 2 / 175);
    let applied = schema.to_string();
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied},
        },
        "spec": {"group": group, "scope": "Cluster",
                 "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
                 "names": {"plural": plural, "singular": plural, "kind": format!("Large{number:03}")}},
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_large_crds_fit_into_the_memory_that_the_controller_is_given() {
    let size = serde_json::to_string(&crd(0)).unwrap().len();
    assert!(size > SIZE * 9 / 10, "a CRD has {size} bytes");
    let folder = tempfile::tempdir().unwrap();
    let server = Server::up(folder.path());
    install(&server);
    let widgets = Widgets::new(&server, 1).await;
    let crds = widgets.crds();
    let create = |number: usize| {
        let crds = crds.clone();
        async move { crds.create(&PostParams::default(), &crd(number)).await.unwrap() }
    };
    futures::stream::iter(0..CRDS).map(create).buffer_unordered(4).for_each(|_| async {}).await;
    let controller = Controller::start(&widgets.kubeconfig, &["--identity", "test"]);
    let states = widgets.api("migration.k8s.io", "v1alpha1", "StorageState", "storagestates");
    eventually("all CRDs have been read, and some of them migrated", async || {
        let settled = |state: &DynamicObject| {
            let persisted = state.data["status"]["persistedStorageVersionHashes"].as_array();
            persisted.is_some_and(|list| list.len() == 1 && list[0] != "Unknown")
        };
        let list = states.list(&ListParams::default()).await.unwrap().items;
        list.iter().filter(|state| settled(state)).count() >= MIGRATED
    })
    .await;
    let peak = controller.peak_memory();
    println!("{CRDS} CRDs of {size} bytes: the controller took {} MiB at most, of {}", peak >> 20, MOST >> 20);
    assert!(peak <= MOST, "{peak} bytes are more than {MOST}");
}
