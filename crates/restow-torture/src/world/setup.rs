//! The objects that exist before anything happens.

use super::{LIMITED, NAMESPACE, World};
use crate::network::Destination;
use crate::plan::Shape;
use crate::webhooks;
use kube::Client;
use restow_store::{Key, RangeRequest, Txn};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The CRD of the users.
pub(crate) const CRD: &str = "widgets.example.com";
/// The versions that the CRD has at the beginning.
const VERSIONS: [&str; 2] = ["v1beta1", "v1"];

/// The CRD as it is created in a world of this shape.
pub(crate) fn crd_of(shape: Shape) -> Value {
    let mut crd = crd();
    if shape.webhooks {
        crd["spec"]["conversion"] = webhooks::conversion();
    }
    crd
}

/// The CRD as it is created, with its first version stored.
pub(crate) fn crd() -> Value {
    let versions: Vec<Value> = VERSIONS.iter().map(|name| version(name, *name == VERSIONS[0])).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": versions,
        },
    })
}

/// A version of the CRD.
pub(crate) fn version(name: &str, storage: bool) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    // What names a deprecated version in managedFields is moved to another one by migrations.
    let deprecated = name == VERSIONS[0];
    json!({
        "name": name, "served": true, "storage": storage, "deprecated": deprecated, "schema": {"openAPIV3Schema": schema},
    })
}

/// A namespace.
pub(crate) fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// Creates them, through a server.
pub(crate) async fn create_objects(world: &Arc<World>) {
    let actions = world.actions();
    let client = Client::new(world.network.connect("admin", Destination::Any), "default");
    while restow_migrate::install::install_at_own_server(&client).await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": LIMITED},
        "spec": {"hard": {"count/configmaps": "4"}},
    });
    actions.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd_of(world.shape)).await;
    for name in [NAMESPACE, LIMITED] {
        actions.create("/api/v1/namespaces", &namespace(name)).await;
    }
    actions.create(&format!("/api/v1/namespaces/{LIMITED}/resourcequotas"), &quota).await;
    if !world.shape.guarded {
        let bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
        actions.remove(&format!("{bindings}/storage-version-guard.restow.dev")).await;
    }
    if world.shape.webhooks {
        for (collection, configuration) in webhooks::configurations() {
            actions.create(collection, &configuration).await;
        }
    }
}

/// Removes the locks of leaders, which expire when nobody renews them: in a copy of the store nothing expires.
pub(crate) async fn forget_leaders(world: &Arc<World>) {
    let keys: Vec<Key> = world.store.read(|model| {
        let found = model.range(&RangeRequest::prefix("/restow/leaders/".to_owned()));
        found.map(|found| found.entries.into_iter().map(|entry| entry.key).collect()).unwrap_or_default()
    });
    for key in keys {
        // A delete of an existing key cannot fail.
        let _ = world.store.apply(Txn::new().delete(&key));
    }
}
