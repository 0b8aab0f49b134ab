//! One API server of several that hangs: it accepts connections and does not respond.

use super::{Controller, GROUP, PLURAL, Widgets, eventually, install};
use restow_testkit::{Server, restow_binary};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::process::Command;

/// The EndpointSlice with the address of an API server.
fn slice(name: &str, address: &str) -> Value {
    let (host, port) = address.rsplit_once(':').unwrap();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "ports": [{"name": "https", "port": port.parse::<u16>().unwrap()}],
        "endpoints": [{"addresses": [host]}],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_names_a_server_that_hangs_and_starts_when_it_has_left() {
    let folder = tempfile::tempdir().unwrap();
    // Without reports, the controller queries every server for its storage versions, as on most clusters.
    let gates = ["--controller=false", "--feature-gates", "StorageVersionAPI=false"];
    let server = Server::up_with(folder.path(), &gates);
    install(&server);
    let widgets = Widgets::new(&server, 30).await;
    let _controller = Controller::start(&widgets.kubeconfig, &["--identity", "test", "--settling-time", "3"]);
    widgets.wait_for("v1", "at the start").await;

    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = hung.local_addr().unwrap().to_string();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        slice("test-awake", &server.address.replace("https://", "")), slice("test-hung", &hung),
    ]});
    let path = folder.path().join("slices.json");
    std::fs::write(&path, list.to_string()).unwrap();
    server.kubectl(&["apply", "-f", path.to_str().unwrap()]);
    eventually("an event at the CRD names the server", async || {
        let events: Value = serde_json::from_str(&server.kubectl(&["get", "events", "-o", "json"])).unwrap();
        let names_it = |event: &Value| {
            event["reason"] == "NoAgreement"
                && event["involvedObject"]["name"] == format!("{PLURAL}.{GROUP}")
                && event["message"].as_str().is_some_and(|words| words.contains(&format!("{hung} cannot be queried")))
        };
        events["items"].as_array().unwrap().iter().any(names_it)
    })
    .await;
    widgets.store_in("v2").await;
    let status =
        restow_testkit::output(Command::new(restow_binary()).args(["status", "--kubeconfig"]).arg(&server.kubeconfig));
    let words = String::from_utf8(status.stdout).unwrap();
    assert!(words.contains(&hung), "{words}");
    assert_eq!(status.status.code(), Some(4), "{words}");
    assert_eq!(widgets.census().await.keys().collect::<Vec<_>>(), ["v1"], "nothing is rewritten meanwhile");

    server.kubectl(&["delete", "endpointslice", "test-hung"]);
    widgets.wait_for("v2", "after the server is gone").await;
}
