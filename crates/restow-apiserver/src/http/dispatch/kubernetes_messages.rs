//! Responses that equal those of kube-apiserver: messages, details and side effects. The expected values were recorded from
//! kube-apiserver 1.37.

use super::tests::{admin, ask, bytes_of, server};
use super::*;
use crate::flow_control::limits::LoadLimits;
use serde_json::json;
use std::time::Duration;

const MERGE: &str = "application/merge-patch+json";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

/// Sends a request, and checks the code and some values of the response.
async fn check(server: &ApiServer, request: (&str, &str, Value), code: u16, expected: &[(&str, Value)]) {
    let (method, path, body) = request;
    let kind = if method == "PATCH" { MERGE } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind);
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let response = ask(server, &admin(), request, &text).await;
    let found = response.status().as_u16();
    let response: Value = serde_json::from_slice(&bytes_of(response)).unwrap_or_default();
    assert_eq!(found, code, "{method} {path} {body}: {response}");
    for (pointer, value) in expected {
        assert_eq!(response.pointer(pointer).unwrap_or(&Value::Null), value, "{method} {path} {body}: {pointer}");
    }
}

fn message(text: &str) -> [(&str, Value); 1] {
    [("/message", text.into())]
}

#[tokio::test]
async fn bodies_of_known_and_unknown_kinds_have_different_messages() {
    let server = server(LoadLimits::default(), None).await;
    for (body, text) in [
        (
            json!({"apiVersion": "v1", "kind": "Secret"}),
            "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown \
             conversion",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Foo"}),
            "Foo in version \"v1\" cannot be handled as a ConfigMap: no kind \"Foo\" is registered for version \"v1\" in \
             scheme \"pkg/api/legacyscheme/scheme.go:30\"",
        ),
    ] {
        check(&server, ("POST", MAPS, body), 400, &message(text)).await;
    }
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let text = "the API version in the data (apps/v1beta1) does not match the expected API version (apps/v1)";
    let old = json!({"apiVersion": "apps/v1beta1", "kind": "Deployment"});
    check(&server, ("POST", deployments, old), 400, &message(text)).await;
    let versioned = json!({"metadata": {"name": "a", "resourceVersion": "7"}});
    check(&server, ("POST", MAPS, versioned), 400, &[("/reason", "BadRequest".into())]).await;
    let named = json!({"metadata": {"name": "a"}, "data": {"a": "b"}});
    check(&server, ("POST", MAPS, named), 201, &[]).await;
    let map = "/api/v1/namespaces/default/configmaps/a";
    let patched = json!({"data": {"a": 5}});
    check(&server, ("PATCH", map, patched), 422, &[("/details/causes/0/field", "patch".into())]).await;
    let stale = json!({"preconditions": {"uid": "x"}});
    check(&server, ("DELETE", map, stale), 409, &[("/details/kind", "ConfigMap".into())]).await;
}

#[tokio::test]
async fn an_unknown_group_gets_404_without_a_status() {
    let server = server(LoadLimits::default(), None).await;
    for path in ["/apis/nope.example/v1/things", "/apis/nope.example", "/nope"] {
        let response = ask(&server, &admin(), Request::builder().uri(path), "").await;
        assert_eq!(response.status(), 404, "{path}");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(bytes_of(response), "404 page not found\n");
    }
    check(&server, ("GET", "/apis/apps/v7/deployments", Value::Null), 404, &[("/reason", "NotFound".into())]).await;
    // Only what is read as an object needs a form that is known.
    let request = Request::builder().uri(MAPS).header(header::CONTENT_TYPE, MERGE);
    assert_eq!(ask(&server, &admin(), request, "").await.status(), 200);
}

#[tokio::test]
async fn removing_the_last_finalizer_returns_the_updated_object() {
    let server = server(LoadLimits::default(), None).await;
    let map = "/api/v1/namespaces/default/configmaps/f";
    let held = json!({"metadata": {"name": "f", "finalizers": ["a.b/c"]}});
    check(&server, ("POST", MAPS, held), 201, &[]).await;
    check(&server, ("DELETE", map, Value::Null), 200, &[("/metadata/deletionGracePeriodSeconds", 0.into())]).await;
    let released = json!({"metadata": {"finalizers": null, "labels": {"x": "y"}}});
    let expected = [("/metadata/finalizers", Value::Null), ("/metadata/labels/x", "y".into())];
    check(&server, ("PATCH", map, released), 200, &expected).await;
    check(&server, ("GET", map, Value::Null), 404, &[]).await;
}

#[tokio::test]
async fn a_node_port_belongs_to_one_service() {
    let server = server(LoadLimits::default(), None).await;
    let service = |name: &str, port: i64| json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}});
    check(&server, ("POST", SERVICES, service("9a", 30_080)), 201, &[]).await;
    for (port, text) in [
        (30_080, "Invalid value: 30080: provided port is already allocated"),
        (80, "Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767"),
    ] {
        let expected = [("/details/causes/0/message", text.into())];
        check(&server, ("POST", SERVICES, service("b", port)), 422, &expected).await;
    }
    let cluster = json!({"metadata": {"name": "c"}, "spec": {"ports": [{"port": 80}]}});
    check(&server, ("POST", SERVICES, cluster), 201, &[]).await;
    let own = "/api/v1/namespaces/default/services/c";
    let taken = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_080}]}});
    check(&server, ("PATCH", own, taken), 422, &[]).await;
    let free = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_081}]}});
    check(&server, ("PATCH", own, free), 200, &[("/spec/ports/0/nodePort", 30_081.into())]).await;
}

#[tokio::test]
async fn an_eviction_respects_the_disruption_budget() {
    let server = server(LoadLimits::default(), None).await;
    let account = json!({"metadata": {"name": "default"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    ask(&server, &admin(), Request::builder().method("POST").uri(accounts), &account.to_string()).await;
    let pod = json!({"metadata": {"name": "p", "labels": {"a": "b"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    let given = [("/spec/priority", 0.into()), ("/spec/tolerations/0/tolerationSeconds", 300.into())];
    check(&server, ("POST", PODS, pod), 201, &given).await;
    let running = json!({"status": {"phase": "InFlightPermit", "conditions": [{"type": "Ready", "status": "True"}]}});
    let status = "/api/v1/namespaces/default/pods/p/status";
    check(&server, ("PATCH", status, running), 200, &[]).await;
    let budget = json!({"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"a": "b"}}}});
    check(&server, ("POST", BUDGETS, budget), 201, &[]).await;
    let eviction = || ("POST", "/api/v1/namespaces/default/pods/p/eviction", json!({"metadata": {"name": "p"}}));
    let expected = [("/reason", "TooManyRequests".into()), ("/details/retryAfterSeconds", 10.into())];
    check(&server, eviction(), 429, &expected).await;
    let counted = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1}});
    let budget = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/b";
    check(&server, ("PATCH", &format!("{budget}/status"), counted), 200, &[]).await;
    check(&server, eviction(), 201, &[("/status", "Success".into())]).await;
    check(&server, ("GET", budget, Value::Null), 200, &[("/status/disruptionsAllowed", 0.into())]).await;
    let pod = "/api/v1/namespaces/default/pods/p";
    check(&server, ("GET", pod, Value::Null), 200, &[("/metadata/deletionGracePeriodSeconds", 30.into())]).await;
    let gone = [("/metadata/deletionGracePeriodSeconds", 0.into())];
    check(&server, ("DELETE", &format!("{pod}?gracePeriodSeconds=0"), Value::Null), 200, &gone).await;
}

#[tokio::test]
async fn owners_in_a_cycle_are_deleted_together() {
    let server = server(LoadLimits::default(), None).await;
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let mut uids = Vec::new();
    for name in NAMES {
        let body = json!({"metadata": {"name": name}}).to_string();
        let made = ask(&server, &admin(), Request::builder().method("POST").uri(MAPS), &body).await;
        let made: Value = serde_json::from_slice(&bytes_of(made)).unwrap();
        uids.push(made["metadata"]["uid"].clone());
    }
    for (name, owner) in [("a", 2), ("b", 0), ("c", 1)] {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": NAMES[owner], "uid": uids[owner],
            "blockOwnerDeletion": true});
        let patch = json!({"metadata": {"ownerReferences": [owner]}});
        check(&server, ("PATCH", &format!("{MAPS}/{name}"), patch), 200, &[]).await;
    }
    let foreground = json!({"propagationPolicy": "Foreground"});
    check(&server, ("DELETE", &format!("{MAPS}/a"), foreground), 200, &[]).await;
    for name in NAMES {
        let path = format!("{MAPS}/{name}");
        while ask(&server, &admin(), Request::builder().uri(&path), "").await.status() != 404 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn the_username_of_a_certificate_request_is_that_of_the_user() {
    let server = server(LoadLimits::default(), None).await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let pem = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let request = json!({"metadata": {"name": "r"}, "spec": {"request": pem, "signerName": "a.b/c",
        "usages": ["client auth"], "username": "somebody", "groups": ["system:masters-of-all"]}});
    let expected =
        [("/spec/username", "admin".into()), ("/spec/groups", json!(["system:masters", "system:authenticated"]))];
    check(&server, ("POST", requests, request), 201, &expected).await;
    let changed = json!({"spec": {"username": "somebody", "signerName": "d.e/f"}});
    let expected = [("/spec/username", "admin".into()), ("/spec/signerName", "a.b/c".into())];
    check(&server, ("PATCH", &format!("{requests}/r"), changed), 200, &expected).await;
}
