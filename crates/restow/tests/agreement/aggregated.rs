//! Reports of aggregated servers through the API: the main server claims agreement only if all identity leases allow it.

use crate::fleet::Fleet;
use crate::writers::client_at;
use http::{Method, Request};
use restow_store::{Key, Revision, StoreExt};
use serde_json::{Value, json};

const PATH: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
const NAME: &str = "garden.example.com.plants";

async fn send(client: &kube::Client, method: Method, path: &str, object: &Value) -> Value {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    client.request(request.body(object.to_string().into_bytes()).unwrap()).await.unwrap()
}

async fn take_lease(client: &kube::Client, id: &str) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": id, "labels": {"apiserver.kubernetes.io/identity": "garden"}},
        "spec": {"holderIdentity": id, "leaseDurationSeconds": 3600},
    });
    send(client, Method::POST, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", &lease).await;
}

async fn last_joined(fleet: &Fleet) -> Revision {
    let key = Key::try_from("/restow/identity-lease-taken").unwrap();
    fleet.store.get(&key).await.unwrap().unwrap().mod_revision
}

/// Reports for these servers, and claims that all agree, as a server does that does not know of any other.
async fn report(client: &kube::Client, servers: &[&str]) -> Value {
    let request = Request::get(format!("{PATH}/{NAME}")).body(Vec::new()).unwrap();
    let mut object: Value = client.request(request).await.unwrap();
    let (version, time) = ("garden.example.com/v1", "2026-01-01T00:00:00Z");
    let entry = |id: &&str| json!({"apiServerID": id, "encodingVersion": version, "decodableVersions": [version]});
    let condition = json!({
        "type": "AllEncodingVersionsEqual", "status": "True", "reason": "CommonEncodingVersionSet",
        "message": "Common encoding version set", "lastTransitionTime": time,
    });
    object["status"] = json!({
        "storageVersions": servers.iter().map(entry).collect::<Vec<_>>(), "commonEncodingVersion": version,
        "conditions": [condition],
    });
    send(client, Method::PUT, &format!("{PATH}/{NAME}/status"), &object).await["status"].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_agreement_until_every_aggregated_server_has_reported() {
    let mut fleet = Fleet::of(1).await;
    fleet.start(0, "1.31", &["--runtime-config", "api/all=true"]);
    let config = fleet.client_config().await;
    let address = fleet.addresses.read().unwrap()[0].clone().unwrap();
    let client = client_at(&config, &address);
    let before = last_joined(&fleet).await;
    take_lease(&client, "g1").await;
    take_lease(&client, "g2").await;
    assert!(last_joined(&fleet).await > before, "every new lease must be noticed");
    let object = json!({
        "apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion", "metadata": {"name": NAME}, "spec": {},
    });
    send(&client, Method::POST, PATH, &object).await;
    let status = report(&client, &["g1"]).await;
    assert_eq!(status["commonEncodingVersion"], Value::Null, "{status}");
    let message = status["conditions"][0]["message"].as_str().unwrap().to_string();
    assert!(message.contains("g2 did not report"), "{message}");
    let status = report(&client, &["g1", "g2"]).await;
    assert_eq!(status["commonEncodingVersion"], "garden.example.com/v1", "{status}");
}
