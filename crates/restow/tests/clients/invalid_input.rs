//! CRDs and objects that are too deep, too large, too costly or malformed: each soon gets an error, and the server keeps
//! working.

use http::Method;
use restow_testkit::{ApiClient, Cluster, Crd, On};
use serde_json::{Value, json};
use std::time::Duration;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const OBJECTS: &str = "/apis/bad.example.com/v1/bads";
/// Much longer than needed on a loaded machine, and much shorter than exponential work would take.
const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn invalid_input_is_refused_on_the_embedded_store() {
    invalid_input_is_refused(On::Embedded).await;
}

#[tokio::test]
async fn invalid_input_is_refused_on_etcd() {
    invalid_input_is_refused(On::Etcd).await;
}

async fn invalid_input_is_refused(on: On) {
    let cluster = Cluster::one(on).await;
    let client = ApiClient::admin(cluster.servers[0].client().await);
    for (what, schema, words) in bad_schemas() {
        let (code, message) = send(&client, CRDS, crd(&schema).to_string()).await;
        assert!(matches!(code, 400 | 422), "{what}: {code} {message}");
        assert!(message.contains(words), "{what}: {message}");
    }
    let nested = [r#"{"type":"object","properties":{"a":"#.repeat(20_000), "{}".into(), "}}".repeat(20_000)].concat();
    let deep = crd(&json!("DEEP")).to_string().replace("\"DEEP\"", &nested);
    let (code, message) = send(&client, CRDS, deep).await;
    assert_eq!(code, 400, "{message}");

    let pattern = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}});
    assert_eq!(send(&client, CRDS, crd(&pattern).to_string()).await.0, 201);
    client.wait_for_code("the resource is served", OBJECTS, 200).await;
    let object = |name: &str, a: Value| {
        json!({"apiVersion": "bad.example.com/v1", "kind": "Bad", "metadata": {"name": name}, "a": a}).to_string()
    };
    let letters = |number: usize| "a".repeat(number);
    let (code, message) = send(&client, OBJECTS, object("exploding", (letters(100_000) + "!").into())).await;
    assert_eq!(code, 422, "{}", &message[..200]);
    let (code, _) = send(&client, OBJECTS, object("large", letters(1_000_000).into())).await;
    assert_eq!(code, 201);
    let (code, message) = send(&client, OBJECTS, object("too-large", letters(4_000_000).into())).await;
    assert_eq!((code, message.as_str()), (413, "Request entity too large: limit is 3145728"));
    let (code, message) = send(&client, OBJECTS, object(&letters(254), "a".into())).await;
    assert!(code == 422 && message.contains("must be no more than 253"), "{code} {message}");
    assert_eq!(send(&client, OBJECTS, object(&letters(253), "a".into())).await.0, 201);
    let brackets =
        object("deep", "DEEP".into()).replace("\"DEEP\"", &["[".repeat(100_000), "]".repeat(100_000)].concat());
    assert_eq!(send(&client, OBJECTS, brackets).await.0, 400);
    assert_eq!(send(&client, OBJECTS, object("good", "aa".into())).await.0, 201, "the server goes on");
}

fn bad_schemas() -> Vec<(&'static str, Value, &'static str)> {
    let rule = |rule: String, properties: Value| json!({"type": "object", "properties": properties, "x-kubernetes-validations": [{"rule": rule}]});
    let list = json!({"a": {"type": "array", "items": {"type": "string"}}});
    vec![
        (
            "a reference",
            json!({"type": "object", "properties": {"a": {"$ref": "#/b"}}}),
            "$ref: Forbidden: $ref is not supported",
        ),
        (
            "a pattern that is none",
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(("}}}),
            "must be a valid regular expression, but isn't",
        ),
        (
            "a rule that may run for ever",
            rule("self.a.all(x, self.a.all(y, self.a.all(z, x + y == z)))".into(), list),
            "estimated rule cost exceeds budget by factor of more than 100x",
        ),
        ("a rule without an end", rule("(".repeat(50_000), json!({})), "x-kubernetes-validations[0].rule"),
        (
            "a rule that is too long",
            rule(vec!["true"; 20_000].join(" && "), json!({})),
            "x-kubernetes-validations[0].rule",
        ),
        ("a type that is none", json!({"type": "thing"}), "openAPIV3Schema"),
    ]
}

fn crd(schema: &Value) -> Value {
    Crd::new("bads.bad.example.com", "Bad").cluster_scoped().schema(schema.clone()).manifest()
}

/// Posts a body; the code and the message of the response.
async fn send(client: &ApiClient, path: &str, body: String) -> (u16, String) {
    let request = client.send(Method::POST, path, "application/json", body.into_bytes());
    let (code, body) = tokio::time::timeout(SOON, request).await.expect("a response comes soon");
    (code, body["message"].as_str().unwrap_or_default().to_string())
}
