//! kubectl with an API server behind another one: `restow up` with a CRD of its own, behind a server on each store.

use base64::Engine;
use restow_testkit::{Cluster, Crd, On, Server, eventually_blocking};
use serde_json::{Value, json};
use std::path::Path;

const API_SERVICE: &str = "v1.quarry.example";

/// The server behind. It trusts the front proxies of the main server.
fn backend(folder: &Path, address: &str, main: &Cluster) -> Server {
    let ca = main.front_proxy_ca();
    let flags = ["--controller=false", "--requestheader-client-ca-file", ca.to_str().unwrap()];
    Server::up_at(folder, address, &flags)
}

/// The service, its endpoints and the APIService of the server behind. Its certificate has the name kubernetes.default.svc.
fn manifests(backend: &Server, folder: &Path) -> Value {
    let ca = std::fs::read(folder.join("data/pki/ca.crt")).unwrap();
    let bundle = base64::engine::general_purpose::STANDARD.encode(ca);
    let port: u16 = backend.address.rsplit(':').next().unwrap().parse().unwrap();
    let items = json!([
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default"},
            "spec": {"ports": [{"name": "https", "port": 443}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "quarry", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"name": "https", "port": port}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": API_SERVICE},
            "spec": {
                "group": "quarry.example", "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15,
                "caBundle": bundle, "service": {"name": "kubernetes", "namespace": "default"},
            },
        },
    ]);
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

async fn kubectl_uses_an_aggregated_api(on: On) {
    let (main, folder) = (Cluster::one(on).await, tempfile::tempdir().unwrap());
    let quarry = backend(folder.path(), "127.0.0.1:0", &main);
    let weight = json!({"type": "object", "properties": {"weight": {"type": "integer", "description": "In tons."}}});
    let schema = json!({"type": "object", "properties": {"spec": weight}});
    let crd = main.file("crd.json", &Crd::new("stones.quarry.example", "Stone").schema(schema).manifest().to_string());
    quarry.kubectl(&["apply", "-f", &crd]);
    quarry.kubectl(&["wait", "--for=condition=Established", "crd/stones.quarry.example"]);

    let manifests = main.file("quarry.json", &manifests(&quarry, folder.path()).to_string());
    main.kubectl(&["apply", "-f", &manifests]);
    let available = ["wait", "--for=condition=Available", "--timeout=60s", &format!("apiservice/{API_SERVICE}")];
    main.kubectl(&available);
    let listed = main.kubectl(&["api-resources", "--api-group", "quarry.example", "-o", "name"]);
    assert_eq!(listed.trim(), "stones.quarry.example");
    let stone = json!({
        "apiVersion": "quarry.example/v1", "kind": "Stone", "metadata": {"name": "granite"}, "spec": {"weight": 7},
    });
    let stone = main.file("stone.json", &stone.to_string());
    main.kubectl(&["apply", "-f", &stone]);
    let weight_at = |server: &Server| server.kubectl(&["get", "stones", "granite", "-o", "jsonpath={.spec.weight}"]);
    assert_eq!((weight_at(&main.servers[0]).as_str(), weight_at(&quarry).as_str()), ("7", "7"));
    let explained = main.kubectl(&["explain", "stones.spec.weight"]);
    assert!(explained.contains("In tons."), "{explained}");
    let refused = main.servers[0].kubectl_fails(&["get", "stones", "--as", "anna"]);
    assert!(refused.contains("forbidden"), "{refused}");

    let address = quarry.address.clone();
    quarry.kill();
    eventually_blocking("the APIService is not available", || {
        let status = "jsonpath={.status.conditions[0].status}";
        main.kubectl(&["get", "apiservice", API_SERVICE, "-o", status]) == "False"
    });
    let refused = main.servers[0].kubectl_fails(&["get", "--raw", "/apis/quarry.example/v1/stones"]);
    assert!(refused.contains("ServiceUnavailable") || refused.contains("unable to handle"), "{refused}");
    main.kubectl(&["get", "configmaps"]);
    let again = backend(folder.path(), &address, &main);
    main.kubectl(&available);
    assert_eq!(weight_at(&main.servers[0]), "7");
    again.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_uses_an_aggregated_api_on_the_embedded_store() {
    kubectl_uses_an_aggregated_api(On::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_uses_an_aggregated_api_on_etcd() {
    kubectl_uses_an_aggregated_api(On::Etcd).await;
}
