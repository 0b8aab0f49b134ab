//! The cost of one request is bounded: the result of a patch, the stored object, and the latency of others.

use restow_testkit::{ApiClient, Cluster, Crd, On, preserve_unknown_fields};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const THINGS: &str = "/apis/example.com/v1/namespaces/mine/things";
const MAPS: &str = "/api/v1/namespaces/mine/configmaps";

async fn cluster(on: On) -> (Cluster, ApiClient, ApiClient) {
    let cluster = Cluster::one(on).await;
    let admin = ApiClient::admin(cluster.servers[0].client().await);
    admin.create_namespace("mine", "mallory", "cluster-admin").await;
    let mallory = admin.acting_as("mallory");
    (cluster, admin, mallory)
}

/// A custom resource that takes every field below `spec`.
pub(crate) fn things() -> Crd {
    let schema = json!({"type": "object", "properties": {"spec": preserve_unknown_fields()}});
    Crd::new("things.example.com", "Thing").schema(schema)
}

fn thing(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": spec})
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into()
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!({"a": inner}))
}

#[tokio::test]
async fn a_patch_that_doubles_an_object_again_and_again_is_refused() {
    let (_cluster, admin, mallory) = cluster(On::Embedded).await;
    admin.create_crd(&things()).await;
    assert_eq!(mallory.post(THINGS, thing(json!({"a": {"text": "x".repeat(100)}}))).await.0, 201);
    let copy = |number: usize| json!({"op": "copy", "from": "/spec/a", "path": format!("/spec/a/c{number}")});
    for copies in [24, 40] {
        let patch: Value = (0..copies).map(copy).collect();
        let (code, status) = mallory.patch(&format!("{THINGS}/x"), "json", bytes(&patch)).await;
        assert_eq!((code, &status["reason"]), (422, &json!("Invalid")), "{status}");
    }
    let many: Value = vec![json!({"op": "test", "path": "/kind", "value": "Thing"}); 10_001].into();
    let (code, status) = mallory.patch(&format!("{THINGS}/x"), "json", bytes(&many)).await;
    let message = "The allowed maximum operations in a JSON patch is 10000, got 10001";
    assert_eq!((code, &status["reason"], &status["message"]), (413, &json!("RequestEntityTooLarge"), &json!(message)));
    // A little at a time is as much in the end.
    for number in 0..40 {
        let (code, _) = mallory.patch(&format!("{THINGS}/x"), "json", bytes(&json!([copy(number)]))).await;
        if code != 200 {
            assert!(matches!(code, 413 | 422 | 400), "{code}");
            break;
        }
        assert!(number < 30, "an object of gigabytes was stored");
    }
    assert_eq!(admin.get("/healthz").await.0, 200);
    assert_eq!(mallory.get(&format!("{THINGS}/x")).await.0, 200);
}

async fn an_object_that_could_not_be_decoded_again_is_not_stored(on: On) {
    let (_cluster, admin, mallory) = cluster(on).await;
    admin.create_crd(&things()).await;
    assert_eq!(mallory.post(THINGS, thing(json!({}))).await.0, 201);
    let path = format!("{THINGS}/x");
    let add = |place: String| json!([{"op": "add", "path": place, "value": nested(90)}]);
    // With the managed fields, 90 levels are too many as well; the error reports it, and nothing is stored.
    let mut deepest = 0;
    for levels in (10..100).step_by(5) {
        let patch = json!([{"op": "add", "path": "/spec/a", "value": nested(levels)}]);
        let (code, status) = mallory.patch(&path, "json", bytes(&patch)).await;
        match code {
            200 => deepest = levels,
            _ => assert_eq!((code, &status["reason"]), (400, &json!("BadRequest")), "{levels} levels: {status}"),
        }
    }
    assert!(deepest > 40, "{deepest} levels");
    let below = "/a".repeat(deepest - 1);
    let (code, status) = mallory.patch(&path, "json", bytes(&add(format!("/spec{below}")))).await;
    assert_eq!(code, 400, "{status}");
    assert!(status["message"].as_str().unwrap().contains("levels deep"), "{status}");
    let (code, status) = mallory
        .send(
            http::Method::PATCH,
            &format!("{path}?fieldManager=x"),
            "application/apply-patch+yaml",
            bytes(&thing(json!({"b": nested(97)}))),
        )
        .await;
    assert_eq!(code, 400, "{status}");
    let (code, status) = mallory
        .post(
            THINGS,
            json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "y"}, "spec": nested(97)}),
        )
        .await;
    assert_eq!(code, 400, "its managed fields are deeper than itself: {status}");
    for read in [path.as_str(), THINGS, "/apis/example.com/v1/things"] {
        assert_eq!(mallory.get(read).await.0, if read.contains("mine") { 200 } else { 403 }, "{read}");
    }
    let (_, object) = mallory.get(&path).await;
    let (code, status) = mallory.send(http::Method::PUT, &path, "application/json", bytes(&object)).await;
    assert_eq!(code, 200, "what is read can be sent back: {status}");
    assert_eq!(mallory.delete(&path, json!({})).await.0, 200);
    assert_eq!(admin.delete("/api/v1/namespaces/mine", json!({})).await.0, 200);
    admin.wait_for_code("the namespace is gone", "/api/v1/namespaces/mine", 404).await;
}

#[tokio::test]
async fn an_object_that_could_not_be_decoded_again_is_not_stored_on_the_embedded_store() {
    an_object_that_could_not_be_decoded_again_is_not_stored(On::Embedded).await;
}

#[tokio::test]
async fn an_object_that_could_not_be_decoded_again_is_not_stored_on_etcd() {
    an_object_that_could_not_be_decoded_again_is_not_stored(On::Etcd).await;
}

/// A list of finalizers of some megabytes: a merge that searches the list would take minutes.
fn long_patch() -> Vec<u8> {
    let finalizers: Vec<String> = (0..200_000).map(|number| format!("a/{number}")).collect();
    bytes(&json!({"metadata": {"finalizers": finalizers}}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_checks_and_leases_are_served_during_heavy_requests() {
    let (_cluster, admin, mallory) = cluster(On::Embedded).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}});
    assert_eq!(mallory.post(MAPS, map).await.0, 201);
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/mine/leases";
    assert_eq!(admin.post(leases, lease).await.0, 201);
    let renewer = admin.acting_as("mallory");
    let heavy = 2 * std::thread::available_parallelism().map_or(2, usize::from);
    let (sent, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let patch = long_patch();
    let requests: Vec<_> = (0..heavy)
        .map(|_| {
            let (mallory, patch, sent, answered) = (mallory.clone(), patch.clone(), sent.clone(), answered.clone());
            tokio::spawn(async move {
                sent.fetch_add(1, Ordering::SeqCst);
                let (code, status) = mallory.patch(&format!("{MAPS}/x"), "strategic-merge", patch).await;
                answered.fetch_add(1, Ordering::SeqCst);
                assert!(code < 500, "{status}");
            })
        })
        .collect();
    // Light requests get responses before the last of the heavy ones.
    let mut overtaken = 0;
    while answered.load(Ordering::SeqCst) < heavy {
        assert_eq!(admin.get("/healthz").await.0, 200);
        assert_eq!(admin.get(&format!("{MAPS}/x")).await.0, 200);
        let renewal = bytes(&json!({"spec": {"holderIdentity": overtaken.to_string()}}));
        assert_eq!(renewer.patch(&format!("{leases}/l"), "merge", renewal).await.0, 200);
        if sent.load(Ordering::SeqCst) == heavy && answered.load(Ordering::SeqCst) < heavy {
            overtaken += 1;
        }
    }
    for request in requests {
        request.await.unwrap();
    }
    assert!(overtaken >= 3 * heavy, "only {overtaken} rounds of light requests during {heavy} heavy ones");
}

/// A few kilobytes name billions of permissions.
#[tokio::test]
async fn a_role_of_billions_of_permissions_is_refused_at_once() {
    let cluster = Cluster::one(On::Embedded).await;
    let admin = ApiClient::admin(cluster.servers[0].client().await);
    admin.create_namespace("mine", "mallory", "admin").await;
    let words: Vec<String> = (0..1000).map(|number| format!("w{number}")).collect();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "all"},
        "rules": [{"apiGroups": words, "resources": words, "verbs": words, "resourceNames": words}],
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/mine/roles";
    let (code, status) = admin.acting_as("mallory").post(path, role).await;
    assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")), "{status}");
    // The error lists a bounded number of missing permissions.
    let few: Vec<String> = (0..15).map(|number| format!("w{number}")).collect();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "some"},
        "rules": [{"apiGroups": few, "resources": few, "verbs": few, "resourceNames": few}],
    });
    let (code, status) = admin.acting_as("mallory").post(path, role).await;
    let message = status["message"].as_str().unwrap_or_default();
    assert_eq!(code, 403, "{status}");
    assert!(message.len() < 20_000 && message.ends_with("... and more"), "{} bytes: {message}", message.len());
    // An administrator of a namespace can grant those permissions and no others.
    let bind = |role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        })
    };
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/mine/rolebindings";
    for (role, expected) in [("admin", 201), ("edit", 201), ("view", 201), ("cluster-admin", 403)] {
        let (code, status) = admin.acting_as("mallory").post(path, bind(role)).await;
        assert_eq!(code, expected, "{role}: {status}");
    }
}

/// Thousands of entries in the managed fields, each of which was once merged with all others.
#[tokio::test]
async fn thousands_of_field_managers_and_versions_are_merged_quickly() {
    let (_cluster, _admin, mallory) = cluster(On::Embedded).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "b"}});
    assert_eq!(mallory.post(MAPS, map.clone()).await.0, 201);
    let entries = |operation: &str| -> Vec<Value> {
        (0..6000)
            .map(|number| {
                json!({
                    "manager": format!("m{number}"), "operation": operation, "fieldsType": "FieldsV1",
                    "apiVersion": if number % 2 == 0 { "v1".to_string() } else { format!("g{number}/v1") },
                    "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:data": {(format!("f:k{number}")): {}}},
                })
            })
            .collect()
    };
    for operation in ["Apply", "Update"] {
        let patch = json!({"metadata": {"managedFields": entries(operation)}, "data": {"a": operation}});
        let (code, status) = mallory.patch(&format!("{MAPS}/x"), "merge", bytes(&patch)).await;
        assert_eq!(code, 200, "{status}");
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"b": operation}});
        let path = format!("{MAPS}/x?fieldManager=me&force=true");
        let (code, status) =
            mallory.send(http::Method::PATCH, &path, "application/apply-patch+yaml", bytes(&body)).await;
        assert_eq!(code, 200, "{status}");
    }
}

/// An object that loses its owners is written once for some of them at a time, so it has a bounded number of them.
#[tokio::test]
async fn an_object_has_a_bounded_number_of_owners_and_loses_them_in_a_few_rounds() {
    let (_cluster, admin, mallory) = cluster(On::Embedded).await;
    let owner = |number: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": format!("o{number}"), "uid": format!("u{number}")});
    let owners = |count: usize| -> Value { (0..count).map(owner).collect() };
    let map = |name: &str, owners: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}});
    let (code, status) = mallory.post(MAPS, map("x", owners(20_000))).await;
    assert_eq!(code, 422, "{status}");
    assert!(status["message"].as_str().unwrap().contains("Too many: 20000: must have at most 1000 items"), "{status}");
    assert_eq!(mallory.post(MAPS, map("x", json!([]))).await.0, 201);
    let patch = bytes(&json!({"metadata": {"ownerReferences": owners(1_001)}}));
    assert_eq!(mallory.patch(&format!("{MAPS}/x"), "merge", patch).await.0, 422);
    // None of these owners is there.
    assert_eq!(mallory.post(MAPS, map("y", owners(1_000))).await.0, 201);
    // The existence of these owners is unknown.
    let unknown = json!([{"apiVersion": "unknown.example.com/v1", "kind": "X", "name": "x", "uid": "x"}]);
    for number in 0..50 {
        assert_eq!(mallory.post(MAPS, map(&format!("a{number}"), unknown.clone())).await.0, 201);
    }
    assert_eq!(mallory.post(MAPS, map("z", owners(1))).await.0, 201);
    for gone in ["y", "z"] {
        admin.wait_for_code("what has lost its owners is gone", &format!("{MAPS}/{gone}"), 404).await;
    }
    assert_eq!(mallory.get(&format!("{MAPS}/a0")).await.0, 200);
}

/// Expressions of a few kilobytes that are nested so deeply that a recursive function overflows the stack, which ends
/// the server and not only the request.
#[tokio::test]
async fn cel_expressions_that_are_too_deep_are_refused() {
    let (_cluster, admin, _mallory) = cluster(On::Embedded).await;
    let chain = |first: &str, operator: &str, times: usize| format!("{first}{}", format!("{operator}1").repeat(times));
    let spine =
        ["*", "+", "==", "&&", "||"].iter().fold("1".to_string(), |first, operator| chain(&first, operator, 512));
    let nested = (0..60).fold("1".to_string(), |inner, _| format!("({})", chain(&inner, "+", 400)));
    let types = format!("[1]{} == []", ".map(x, [[[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]])".repeat(200));
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    for text in [format!("{}self", ".".repeat(99_000)), spine, nested, types] {
        let rules = |rule: &str, message: &str| json!({"type": "object", "x-kubernetes-validations": [{"rule": rule, "messageExpression": message}]});
        for schema in [rules(&text, "'m'"), rules("true", &text)] {
            let crd = Crd::new("deeps.example.com", "Deep").schema(schema);
            let (code, status) = admin.post(definitions, crd.manifest()).await;
            assert_eq!((code, &status["reason"]), (422, &json!("Invalid")), "{status}");
        }
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "deep"},
            "spec": {
                "matchConstraints": {"resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]},
                ]},
                "matchConditions": [{"name": "c", "expression": text}], "validations": [{"expression": text}],
            },
        });
        let (code, status) = admin.post(&format!("{policies}?dryRun=All"), policy).await;
        assert_eq!((code, &status["reason"]), (422, &json!("Invalid")), "{status}");
        assert_eq!(admin.get("/healthz").await.0, 200);
    }
}

/// More objects than are read at once, beside a namespace that something holds.
#[tokio::test]
async fn a_namespace_is_emptied_page_by_page_while_another_is_blocked() {
    let (_cluster, admin, _mallory) = cluster(On::Embedded).await;
    admin.create_namespace("held", "mallory", "cluster-admin").await;
    let map = |name: String, finalizers: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "finalizers": finalizers}});
    let held = "/api/v1/namespaces/held/configmaps";
    assert_eq!(admin.post(held, map("x".into(), json!(["example.com/hold"]))).await.0, 201);
    for number in 0..1_050 {
        assert_eq!(admin.post(MAPS, map(format!("m{number}"), json!([]))).await.0, 201);
    }
    assert_eq!(admin.delete("/api/v1/namespaces/held", json!({})).await.0, 200);
    assert_eq!(admin.delete("/api/v1/namespaces/mine", json!({})).await.0, 200);
    admin.wait_for_code("the large namespace is gone", "/api/v1/namespaces/mine", 404).await;
    assert_eq!(admin.get("/api/v1/namespaces/held").await.0, 200);
    let release = bytes(&json!({"metadata": {"finalizers": null}}));
    assert_eq!(admin.patch(&format!("{held}/x"), "merge", release).await.0, 200);
    admin.wait_for_code("the held namespace is gone", "/api/v1/namespaces/held", 404).await;
}
