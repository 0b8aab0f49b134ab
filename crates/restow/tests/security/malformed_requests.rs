//! Malformed requests, in every part that a client sends: each gets the response of kube-apiserver, and none a 500.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use restow_testkit::{Cluster, On, RawClient, RawResponse, TIMEOUT};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &str = "content-type: application/json\r\n";
const MERGE: &str = "content-type: application/merge-patch+json\r\n";
const APPLY: &str = "content-type: application/apply-patch+yaml\r\n";

/// The request, the code of its response, and words in it.
type Case<'a> = (&'a str, String, &'a str, String, u16, &'a str);

async fn check(raw: &RawClient, cases: Vec<Case<'_>>) {
    for (method, path, headers, body, code, words) in cases {
        let answer = raw.request(method, &path, headers, &body).await;
        let shown: String = answer.text.chars().take(1_500).collect();
        assert_eq!(answer.code, code, "{method} {path}: {shown}");
        assert!(answer.text.contains(words), "{method} {path}: {words:?} is not in {shown}");
    }
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[tokio::test]
async fn malformed_requests_get_the_responses_of_kubernetes_on_the_embedded_store() {
    malformed_requests_get_the_responses_of_kubernetes(On::Embedded).await;
}

#[tokio::test]
async fn malformed_requests_get_the_responses_of_kubernetes_on_etcd() {
    malformed_requests_get_the_responses_of_kubernetes(On::Etcd).await;
}

async fn malformed_requests_get_the_responses_of_kubernetes(on: On) {
    let cluster = Cluster::one(on).await;
    let raw = RawClient::admin(&cluster.servers[0]);
    let name = |name: &str| format!("{MAPS}/{name}");
    assert_eq!(raw.request("POST", MAPS, JSON, &map("a").to_string()).await.code, 201);
    let token = |token: Value| format!("{MAPS}?continue={}", URL_SAFE_NO_PAD.encode(token.to_string()));
    let at = |rv: i64, start: &str| token(json!({"v": "meta.k8s.io/v1", "rv": rv, "start": start}));
    let none = String::new;
    let empty = || map("x").to_string();
    let junk_version = json!({"metadata": {"resourceVersion": "abc"}}).to_string();
    let long_manager = "a".repeat(129);
    check(
        &raw,
        vec![
            ("GET", format!("{MAPS}?timeoutSeconds=abc"), "", none(), 400, r#"parsing \"abc\": invalid syntax"#),
            ("GET", format!("{MAPS}?watch=1&timeoutSeconds=abc"), "", none(), 400, "strconv.ParseInt"),
            ("GET", format!("{MAPS}?limit=abc"), "", none(), 400, "strconv.ParseInt"),
            ("GET", format!("{MAPS}?limit=99999999999999999999"), "", none(), 400, "value out of range"),
            ("GET", format!("{MAPS}?limit=-1"), "", none(), 200, "ConfigMapList"),
            ("GET", format!("{MAPS}?watch=1&resourceVersion=abc"), "", none(), 400, "strconv.ParseUint"),
            ("GET", format!("{MAPS}?resourceVersion=abc"), "", none(), 400, "invalid resource version"),
            ("GET", format!("{MAPS}?resourceVersion=-1"), "", none(), 400, "invalid resource version"),
            ("GET", name("a?resourceVersion=abc"), "", none(), 400, "strconv.ParseUint"),
            ("PATCH", name("a"), MERGE, junk_version.clone(), 400, "strconv.ParseUint"),
            ("GET", at(0, "default/a"), "", none(), 400, "incorrect encoded start resourceVersion"),
            ("GET", at(1, ""), "", none(), 400, "encoded start key empty"),
            ("GET", at(1, "../secrets/default/a"), "", none(), 400, "continue key is not valid"),
            ("GET", token(json!({"v": "x", "rv": 1, "start": "a"})), "", none(), 400, "does not recognize"),
            ("GET", token(json!({})), "", none(), 400, "does not recognize"),
            ("GET", format!("{MAPS}?continue=%25"), "", none(), 400, "illegal base64"),
            (
                "POST",
                format!("{MAPS}?fieldManager={long_manager}"),
                JSON,
                empty(),
                422,
                "may not be more than 128 bytes",
            ),
            (
                "POST",
                format!("{MAPS}?fieldManager=a%07b"),
                JSON,
                empty(),
                422,
                "invalid character U+0007 (at position 1)",
            ),
            ("PATCH", name("a?fieldManager=%00"), MERGE, "{}".into(), 422, "invalid character U+0000"),
            ("POST", format!("{MAPS}?dryRun=All&dryRun=No"), JSON, empty(), 422, "Unsupported value"),
            ("POST", format!("{MAPS}?fieldValidation=No"), JSON, empty(), 422, "Unsupported value"),
            ("PATCH", name("a?force=true"), MERGE, "{}".into(), 422, "may not be specified for non-apply patch"),
            ("DELETE", name("a?gracePeriodSeconds=abc"), "", none(), 400, "strconv.ParseInt"),
            ("DELETE", name("a?propagationPolicy=No"), "", none(), 422, "Unsupported value"),
            (
                "DELETE",
                name("a"),
                JSON,
                r#"{"gracePeriodSeconds": "abc"}"#.into(),
                400,
                "cannot be handled as a DeleteOptions",
            ),
            ("DELETE", name("a"), JSON, "[]".into(), 400, ""),
            ("DELETE", name("a"), JSON, "{".into(), 400, ""),
            ("GET", name("%2e%2e"), "", none(), 400, "may not be '..'"),
            ("GET", name("a%2Fb"), "", none(), 404, "could not find the requested resource"),
            ("GET", name("a%25b"), "", none(), 400, "may not contain '%'"),
            ("GET", name("%ff%fe"), "", none(), 404, "not found"),
            ("POST", MAPS.into(), JSON, none(), 400, ""),
            ("POST", MAPS.into(), "content-type: text/plain\r\n", empty(), 415, "accepted media types include"),
            ("PATCH", name("a"), JSON, "{}".into(), 415, ""),
            ("PATCH", name("a"), APPLY, "{}".into(), 422, "is required for apply patch"),
            ("GET", format!("{MAPS}?labelSelector=%2C%2C"), "", none(), 400, ""),
            ("GET", format!("{MAPS}?fieldSelector=a"), "", none(), 400, ""),
            ("GET", format!("{MAPS}?timeout=abc"), "", none(), 400, "invalid timeout"),
            ("GET", format!("{MAPS}?sendInitialEvents=true"), "", none(), 422, "is forbidden for list"),
        ],
    )
    .await;
    let versioned = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "resourceVersion": "5"}});
    let answer = raw.request("POST", MAPS, JSON, &versioned.to_string()).await;
    assert_eq!(answer.code, 400, "{}", answer.text);
    large_objects_are_refused(&raw).await;
    scales_can_be_applied(&raw).await;
}

async fn large_objects_are_refused(raw: &RawClient) {
    const MEBIBYTE: usize = 1 << 20;
    let post = async |kind: &str, plural: &str, field: &str, text: String| {
        let object =
            json!({"apiVersion": "v1", "kind": kind, "metadata": {"generateName": "large-"}, field: {"a": text}});
        let path = format!("/api/v1/namespaces/default/{plural}");
        raw.request("POST", &path, JSON, &object.to_string()).await
    };
    let binary = |bytes: usize| base64::engine::general_purpose::STANDARD.encode(vec![0; bytes]);
    let words = |prefix: &str| format!("{prefix}: Too long: may not be more than 1048576 bytes");
    for (kind, plural, field, whole, larger, words) in [
        ("ConfigMap", "configmaps", "data", "a".repeat(MEBIBYTE), "a".repeat(MEBIBYTE + 1), words("[]")),
        ("ConfigMap", "configmaps", "binaryData", binary(MEBIBYTE), binary(MEBIBYTE + 1), words("[]")),
        ("Secret", "secrets", "data", binary(MEBIBYTE), binary(MEBIBYTE + 1), words("data")),
        ("Secret", "secrets", "stringData", "a".repeat(MEBIBYTE), "a".repeat(MEBIBYTE + 1), words("data")),
    ] {
        assert_eq!(post(kind, plural, field, whole).await.code, 201, "{kind} {field}");
        let refused = post(kind, plural, field, larger).await;
        let shown: String = refused.text.chars().take(1_000).collect();
        assert_eq!(refused.code, 422, "{kind} {field}: {shown}");
        assert!(shown.contains(&words), "{kind} {field}: {shown}");
    }
}

async fn scales_can_be_applied(raw: &RawClient) {
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": template},
    });
    let created =
        raw.request("POST", &format!("{deployments}?fieldManager=maker"), JSON, &deployment.to_string()).await;
    assert_eq!(created.code, 201, "{}", created.text);
    let apply = async |manager: &str, replicas: Value| {
        let scale = json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": replicas},
        });
        raw.request("PATCH", &format!("{deployments}/a/scale?{manager}"), APPLY, &scale.to_string()).await
    };
    let check = |answer: &RawResponse, code: u16, words: &str| {
        assert_eq!(answer.code, code, "{}", answer.text);
        assert!(answer.text.contains(words), "{}", answer.text);
    };
    check(&apply("", json!(3)).await, 422, "is required for apply patch");
    check(&apply("fieldManager=scaler", json!(3)).await, 409, "conflict with \\\"maker\\\"");
    check(&apply("fieldManager=scaler&force=true", json!(3)).await, 200, r#""spec":{"replicas":3}"#);
    check(&apply("fieldManager=scaler", json!(5)).await, 200, r#""spec":{"replicas":5}"#);
    check(&apply("fieldManager=scaler", json!(-1)).await, 422, "must be greater than or equal to 0");
    check(&apply("fieldManager=scaler", json!("many")).await, 400, "");
    let other = apply("fieldManager=other", json!(1)).await;
    check(&other, 409, "scaler");
    let read = raw.get(&format!("{deployments}/a")).await;
    check(&read, 200, r#""subresource":"scale""#);
    check(&read, 200, r#""replicas":5"#);
    let missing = raw.request("PATCH", &format!("{deployments}/b/scale?fieldManager=x"), APPLY, "{}").await;
    assert!(matches!(missing.code, 400 | 404), "{}", missing.text);
}

/// All query options, with all kinds of invalid values.
#[tokio::test]
async fn no_option_makes_the_server_fail() {
    let cluster = Cluster::one(On::Embedded).await;
    let raw = RawClient::admin(&cluster.servers[0]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    let pods = "/api/v1/namespaces/default/pods";
    let options = [
        "limit",
        "continue",
        "timeoutSeconds",
        "timeout",
        "resourceVersion",
        "resourceVersionMatch",
        "sendInitialEvents",
        "allowWatchBookmarks",
        "labelSelector",
        "fieldSelector",
        "pretty",
        "includeObject",
        "gracePeriodSeconds",
        "propagationPolicy",
        "orphanDependents",
        "dryRun",
        "fieldManager",
        "fieldValidation",
        "force",
        "exact",
        "export",
        "hash",
        "verbose",
        "exclude",
        "ignoreStoreReadErrorWithClusterBreakingPotential",
    ];
    let values = [
        "",
        "abc",
        "-1",
        "0",
        "1",
        "9223372036854775807",
        "-9223372036854775808",
        "99999999999999999999",
        "1e9",
        "true",
        "%00",
        "%ff",
        "%",
        "%zz",
        "a%0d%0ab",
        "%F0%9F%A6%80",
        "null",
        "%7B%7D",
        "1h",
        "in%20(",
        "%21%21a",
        "a%3D%3D%3Db",
    ];
    let object =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}}).to_string();
    // All of them take minutes; otherwise each option and value goes with two of the requests.
    let step = if std::env::var_os("RESTOW_TEST_LONG").is_some() { 1 } else { 5 };
    for (row, option) in options.into_iter().enumerate() {
        for (column, value) in values.into_iter().enumerate() {
            let query = format!("{option}={value}");
            // It is deleted with all of that, too, and with any grace period.
            let created = raw.request("POST", pods, JSON, &pod.to_string()).await;
            assert!(matches!(created.code, 201 | 409), "{}", created.text);
            let requests = [
                ("GET", format!("{pods}?{query}"), "", ""),
                ("GET", format!("{pods}?watch=1&timeoutSeconds=1&{query}"), "", ""),
                ("GET", format!("{pods}/p?{query}"), "", ""),
                ("POST", format!("{pods}?{query}"), JSON, object.as_str()),
                ("PATCH", format!("{pods}/p?{query}"), MERGE, r#"{"metadata":{"labels":{"c":"d"}}}"#),
                ("PATCH", format!("{pods}/p?{query}"), APPLY, object.as_str()),
                ("DELETE", format!("{pods}/p?{query}"), "", ""),
                ("DELETE", format!("{pods}?dryRun=All&{query}"), "", ""),
                ("GET", format!("/openapi/v3/api/v1?{query}"), "", ""),
                ("GET", format!("/readyz?{query}"), "", ""),
            ];
            for (method, path, headers, body) in requests.into_iter().skip((row + column) % step).step_by(step) {
                // A watch runs for a second; its head is enough.
                let answer = if path.contains("watch=1") {
                    head(&raw, &path).await
                } else {
                    raw.request(method, &path, headers, body).await.code
                };
                assert!(answer < 500 || answer == 504 && option == "resourceVersion", "{method} {path}: {answer}");
            }
            if (row + column) % step == 6 % step {
                let removed = raw.request("DELETE", &format!("{pods}/p?gracePeriodSeconds=0"), "", "").await;
                assert!(matches!(removed.code, 200 | 404), "{}", removed.text);
            }
        }
    }
}

/// The code of a response that is not read to its end.
async fn head(raw: &RawClient, path: &str) -> u16 {
    let mut connection = raw.connect().await.unwrap();
    connection.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    let mut head = [0; 12];
    tokio::time::timeout(TIMEOUT, connection.read_exact(&mut head)).await.unwrap().unwrap();
    String::from_utf8_lossy(&head[9..]).parse().unwrap()
}

/// Bytes that are hardly HTTP.
#[tokio::test]
async fn malformed_http_gets_an_error_or_a_closed_connection() {
    let cluster = Cluster::one(On::Embedded).await;
    let raw = RawClient::admin(&cluster.servers[0]);
    let body = map("chunked").to_string();
    let chunked = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: \
         chunked\r\ntrailer: x\r\n\r\n{:x}\r\n{body}\r\n0\r\nx: y\r\n\r\n",
        body.len()
    );
    let groups = (0..1_500).map(|number| format!("impersonate-group: group-{number}\r\n")).collect::<String>();
    let body = map("expected").to_string();
    let expecting = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    for (message, code, words) in [
        ("GET /version HTTP/1.1\r\nconnection: close\r\n\r\n".into(), 400, "missing required Host header"),
        ("GET /version HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n".into(), 400, "too many Host headers"),
        ("GET /version HTTP/1.1\r\nhost: a b\r\n\r\n".into(), 400, "malformed Host header"),
        ("GET /version HTTP/1.0\r\n\r\n".into(), 200, "gitVersion"),
        ("GET http://elsewhere/version HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".into(), 200, "gitVersion"),
        (chunked, 201, "chunked"),
        (expecting, 100, "201 Created"),
        (
            format!("GET /version HTTP/1.1\r\nhost: a\r\nconnection: close\r\nimpersonate-user: many\r\n{groups}\r\n"),
            200,
            "gitVersion",
        ),
        (format!("NONSENSE {MAPS} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"), 404, ""),
        ("GET  / HTTP/1.1\r\nhost: a\r\n\r\n".into(), 400, ""),
        ("GET / HTTP/9.9\r\nhost: a\r\n\r\n".into(), 400, ""),
        (format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(1 << 20)), 431, ""),
        (format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "a".repeat(1 << 20)), 431, ""),
    ] {
        let message: String = message;
        let answer = raw.try_send(message.as_bytes()).await;
        let shown: String = message.chars().take(200).collect();
        match answer {
            Ok(answer) => {
                let text: String = answer.text.chars().take(1_000).collect();
                assert!(answer.code < 500, "{shown}: {text}");
                assert_eq!(answer.code, code, "{shown}: {text}");
                assert!(answer.text.contains(words), "{shown}: {text}");
            }
            // The connection may be closed in the middle of a message that is far too long.
            Err(error) => assert!(message.len() > 1 << 19, "{shown}: {error}"),
        }
    }
    assert_eq!(raw.get("/readyz").await.code, 200);
}
