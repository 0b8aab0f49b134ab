//! Requests in one process, without a network: errors, limits, and headers of all responses.

use super::*;
use crate::audit::{AuditConfig, AuditLog};
use crate::auth::ClientCertificates;
use crate::builtin::{self, RuntimeConfig};
use crate::flow_control::limits::LoadLimits;
use crate::http::non_resource::{OPENAPI_PROTOBUF, OPENAPI_PROTOBUF_SENT};
use crate::release::Release;
use crate::resource::registry::Registry;
use crate::server::ServerConfig;
use http_body_util::BodyExt;
use http_body_util::Full;
use restow_apimachinery::types;
use restow_auth::authenticate::ClientCertificate;
use restow_auth::user::MASTERS;
use restow_store::conformance::ModelStore;
use serde_json::json;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub(crate) async fn server(limits: LoadLimits, audit: Option<AuditLog>) -> Arc<ApiServer> {
    let resources = builtin::resources(Release::NEWEST, &RuntimeConfig::default());
    let address = SocketAddr::from(([127, 0, 0, 1], 6443));
    let config = ServerConfig {
        limits,
        audit: audit.map(Arc::new),
        ..ServerConfig::new(Arc::new(ModelStore::default()), Registry::new(resources), address)
    };
    let server = ApiServer::new(config).await.unwrap();
    server.ready().await.unwrap();
    server
}

pub(crate) fn admin() -> Peer {
    Peer { address: IpAddr::from([127, 0, 0, 1]), certificates: certificates(User::named("admin").with_group(MASTERS)) }
}

pub(crate) fn certificates(user: User) -> ClientCertificates {
    ClientCertificates { user: Some(Ok(ClientCertificate::of(user))), front_proxy: None }
}

fn stranger() -> Peer {
    Peer { address: IpAddr::from([127, 0, 0, 1]), certificates: ClientCertificates::default() }
}

pub(crate) async fn ask(
    server: &ApiServer,
    peer: &Peer,
    request: http::request::Builder,
    body: &str,
) -> Response<Body> {
    handle(server, request.body(Full::new(Bytes::from(body.to_string()))).unwrap(), peer).await
}

pub(crate) fn bytes_of(response: Response<Body>) -> Bytes {
    match response.into_body() {
        Body::Whole(bytes) => bytes,
        Body::Stream(_) => panic!("the response is a stream"),
    }
}

/// Method, path, content type, body, code, reason. They are what kube-apiserver 1.37 responses.
type Bad<'a> = (&'a str, &'a str, &'a str, &'a str, u16, &'a str);

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn bad_requests_get_the_code_and_reason_of_kubernetes() {
    let server = server(LoadLimits::default(), None).await;
    let deep = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a"}},"data":{}1{}}}"#,
        "[".repeat(2000),
        "]".repeat(2000)
    );
    let huge = format!(r#"{{"data":{{"a":"{}"}}}}"#, "x".repeat(4 << 20));
    let long_name = format!(r#"{{"metadata":{{"name":"{}"}}}}"#, "a".repeat(254));
    let table: Vec<Bad<'_>> = vec![
        ("GET", "/api/v1/nonsense", "", "", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/default/configmaps/none", "", "", 404, "NotFound"),
        ("POST", MAPS, JSON, "{", 400, "BadRequest"),
        ("POST", MAPS, JSON, "[]", 400, "BadRequest"),
        ("POST", MAPS, JSON, "7", 400, "BadRequest"),
        ("POST", MAPS, JSON, &deep, 400, "BadRequest"),
        ("POST", MAPS, JSON, &huge, 413, "RequestEntityTooLarge"),
        ("POST", MAPS, JSON, r#"{"kind":"Secret","apiVersion":"v1"}"#, 400, "BadRequest"),
        ("POST", MAPS, JSON, r#"{"kind":"ConfigMap","apiVersion":"v2"}"#, 400, "BadRequest"),
        ("POST", MAPS, JSON, r#"{"apiVersion":"v1"}"#, 422, "Invalid"),
        ("POST", MAPS, "text/csv", "a,b", 415, "UnsupportedMediaType"),
        ("POST", MAPS, JSON, r#"{"metadata":{}}"#, 422, "Invalid"),
        ("POST", MAPS, JSON, r#"{"metadata":{"name":"Not A Name"}}"#, 422, "Invalid"),
        ("POST", MAPS, JSON, &long_name, 422, "Invalid"),
        ("POST", MAPS, JSON, r#"{"metadata":{"name":"a","namespace":"other"}}"#, 400, "BadRequest"),
        ("POST", MAPS, JSON, r#"{"metadata":{"name":"a"},"data":{"a":7}}"#, 400, "BadRequest"),
        ("POST", "/api/v1/namespaces/none/configmaps", JSON, r#"{"metadata":{"name":"a"}}"#, 404, "NotFound"),
        (
            "POST",
            "/api/v1/namespaces/default/configmaps?dryRun=Some",
            JSON,
            r#"{"metadata":{"name":"a"}}"#,
            422,
            "Invalid",
        ),
        (
            "POST",
            "/api/v1/namespaces/default/configmaps?fieldValidation=Strict",
            JSON,
            r#"{"metadata":{"name":"a"},"dat":{}}"#,
            400,
            "BadRequest",
        ),
        (
            "POST",
            "/api/v1/namespaces/default/configmaps?fieldValidation=Perhaps",
            JSON,
            r#"{"metadata":{"name":"a"}}"#,
            422,
            "Invalid",
        ),
        (
            "POST",
            "/api/v1/namespaces/default/configmaps/a",
            JSON,
            r#"{"metadata":{"name":"a"}}"#,
            405,
            "MethodNotAllowed",
        ),
        ("PUT", "/api/v1/namespaces/default/configmaps/a", JSON, r#"{"metadata":{"name":"b"}}"#, 400, "BadRequest"),
        (
            "PUT",
            "/api/v1/namespaces/default/configmaps/none",
            JSON,
            r#"{"metadata":{"name":"none","uid":"x"}}"#,
            404,
            "NotFound",
        ),
        ("PUT", MAPS, JSON, "{}", 405, "MethodNotAllowed"),
        ("PATCH", "/api/v1/namespaces/default/configmaps/none", MERGE, "{}", 404, "NotFound"),
        ("PATCH", "/api/v1/namespaces/default/configmaps/none", "text/plain", "{}", 415, "UnsupportedMediaType"),
        ("DELETE", "/api/v1/namespaces/default/configmaps/none", "", "", 404, "NotFound"),
        ("GET", "/api/v1/configmaps?limit=many", "", "", 400, "BadRequest"),
        ("GET", "/api/v1/configmaps?labelSelector=!!", "", "", 400, "BadRequest"),
        ("GET", "/api/v1/configmaps?fieldSelector=data.a=b", "", "", 400, "BadRequest"),
        ("GET", "/api/v1/configmaps?resourceVersion=soon", "", "", 400, "BadRequest"),
        ("GET", "/api/v1/configmaps?continue=nonsense", "", "", 400, "BadRequest"),
        ("GET", "/api/v1/configmaps?timeout=soon", "", "", 400, "BadRequest"),
        ("GET", "/api/v1/configmaps?resourceVersion=999999999", "", "", 504, "Timeout"),
        ("GET", "/api/v1/configmaps?resourceVersionMatch=Exact", "", "", 422, "Invalid"),
        ("PATCH", "/api/v1/namespaces/default/configmaps/none", MERGE, "[]", 400, "BadRequest"),
        ("PATCH", "/api/v1/namespaces/default/configmaps/none", MERGE, "{", 400, "BadRequest"),
    ];
    let mut wrong = Vec::new();
    for (method, path, kind, body, code, reason) in table {
        let mut request = Request::builder().method(method).uri(path);
        if !kind.is_empty() {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let response = ask(&server, &admin(), request, body).await;
        let found = response.status().as_u16();
        let status: Value = serde_json::from_slice(&bytes_of(response)).unwrap_or_default();
        if found != code || status["reason"] != reason || status["code"] != code || status["kind"] != "Status" {
            let body: String = body.chars().take(60).collect();
            wrong.push(format!("{method} {path} {body}: expected {code} {reason}, got {found} {status}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_client_that_accepts_no_supported_media_type_gets_406() {
    let server = server(LoadLimits::default(), None).await;
    let request = Request::builder().uri("/api/v1/configmaps").header(header::ACCEPT, "text/html");
    assert_eq!(ask(&server, &admin(), request, "").await.status(), 406);
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let request = Request::builder().method("POST").uri(reviews).header(header::ACCEPT, table);
    let body = r#"{"spec":{"nonResourceAttributes":{"verb":"get","path":"/"}}}"#;
    assert_eq!(ask(&server, &admin(), request, body).await.status(), 406);
    let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let request = Request::builder().uri("/api/v1/namespaces").header(header::ACCEPT, metadata);
    let response = ask(&server, &admin(), request, "").await;
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/vnd.kubernetes.protobuf");
    let list = types::decode_protobuf(&bytes_of(response)).unwrap();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("PartialObjectMetadataList"), 4));
}

#[tokio::test]
async fn anonymous_users_may_read_only_health_and_version() {
    let server = server(LoadLimits::default(), None).await;
    for (path, code) in [("/healthz", 200), ("/version", 200), ("/api/v1/pods", 401), ("/metrics", 401)] {
        let response = ask(&server, &stranger(), Request::builder().uri(path), "").await;
        assert_eq!(response.status(), code, "{path}");
    }
}

#[tokio::test]
async fn metrics_include_requests_and_the_store() {
    let server = server(LoadLimits::default(), None).await;
    ask(&server, &admin(), Request::builder().uri("/api/v1/namespaces/default/configmaps"), "").await;
    ask(&server, &admin(), Request::builder().uri("/api/v1/made-up-by-a-client"), "").await;
    let response = ask(&server, &admin(), Request::builder().uri("/metrics"), "").await;
    let text = String::from_utf8(bytes_of(response).to_vec()).unwrap();
    let of_list = "verb=\"LIST\",dry_run=\"\",group=\"\",version=\"v1\",resource=\"configmaps\",subresource=\"\",scope=\"namespace\"";
    for part in [of_list, "etcd_request_duration_seconds_count{operation=\"list\",group=\"\",resource=\"configmaps\"}"]
    {
        assert!(text.contains(part), "{part} is missing");
    }
    for check in ["etcd", "poststarthook/built-in-resources-storage-version-updater"] {
        let line = format!("kubernetes_healthcheck{{name=\"{check}\",type=\"readyz\"}} 1");
        assert!(text.contains(&line), "{line} is missing in {text}");
    }
    assert!(!text.contains("made-up"), "a client can make up labels");
}

#[tokio::test]
async fn a_request_that_takes_longer_than_its_client_allows_ends_with_504() {
    let server = server(LoadLimits::default(), None).await;
    let silence = futures::stream::pending::<Result<hyper::body::Frame<Bytes>, std::convert::Infallible>>();
    let request = Request::builder().method("POST").uri(format!("{MAPS}?timeout=20ms"));
    let request = request.body(http_body_util::StreamBody::new(silence)).unwrap();
    let response = handle(&server, request, &admin()).await;
    assert_eq!(response.status(), 504);
    let status: Value = serde_json::from_slice(&bytes_of(response)).unwrap();
    assert_eq!(status["message"], "Timeout: request did not complete within the allotted timeout");
}

#[tokio::test]
async fn documents_are_sent_once_and_large_ones_compressed() {
    let server = server(LoadLimits::default(), None).await;
    let get = |path: &str| Request::builder().uri(path.to_string());
    let first = ask(&server, &admin(), get("/openapi/v2").header(header::ACCEPT_ENCODING, "gzip"), "").await;
    assert_eq!(first.headers()[header::CONTENT_ENCODING], "gzip");
    let tag = first.headers()[header::ETAG].clone();
    let again = ask(&server, &admin(), get("/openapi/v2").header(header::IF_NONE_MATCH, tag), "").await;
    assert_eq!(again.status(), 304);

    let binary = ask(&server, &admin(), get("/openapi/v2").header(header::ACCEPT, OPENAPI_PROTOBUF), "").await;
    assert_eq!(binary.headers()[header::CONTENT_TYPE], OPENAPI_PROTOBUF_SENT);
    assert!(bytes_of(binary).starts_with(b"\x0a\x032.0"));

    let index = ask(&server, &admin(), get("/openapi/v3"), "").await;
    let index: Value = serde_json::from_slice(&bytes_of(index)).unwrap();
    let place = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap();
    let document = ask(&server, &admin(), get(place), "").await;
    assert_eq!(document.status(), 200);
    assert!(document.headers()[header::CACHE_CONTROL].to_str().unwrap().contains("immutable"));
    assert_eq!(ask(&server, &admin(), get("/openapi/v3/api/v1?hash=OLD"), "").await.status(), 301);

    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let discovery = ask(&server, &admin(), get("/apis").header(header::ACCEPT, aggregated), "").await;
    let tag = discovery.headers()[header::ETAG].clone();
    let request = get("/apis").header(header::ACCEPT, aggregated).header(header::IF_NONE_MATCH, tag);
    assert_eq!(ask(&server, &admin(), request, "").await.status(), 304);
    let older = format!("{},application/json", aggregated.replace("v=v2", "v=v2beta1"));
    let discovery = ask(&server, &admin(), get("/apis").header(header::ACCEPT, older), "").await;
    let list: Value = serde_json::from_slice(&bytes_of(discovery)).unwrap();
    assert_eq!(list["kind"], "APIGroupList", "who does not know the one document gets the many");
}

#[tokio::test]
async fn watchers_that_do_not_read_delay_no_other_watcher() {
    let server = server(LoadLimits::default(), None).await;
    let watch = || Request::builder().uri("/api/v1/namespaces/default/configmaps?watch=1");
    let mut idle = Vec::new();
    for _ in 0..2000 {
        idle.push(ask(&server, &admin(), watch(), "").await.into_body());
    }
    let mut reading = ask(&server, &admin(), watch(), "").await.into_body();
    for number in 0..100 {
        let body = json!({"metadata": {"name": format!("m{number}")}}).to_string();
        let made = ask(&server, &admin(), Request::builder().method("POST").uri(MAPS), &body).await;
        assert_eq!(made.status(), 201);
        let line = reading.frame().await.unwrap().unwrap().into_data().unwrap();
        let change: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(
            (&change["type"], &change["object"]["metadata"]["name"]),
            (&json!("ADDED"), &json!(format!("m{number}")))
        );
    }
    // Whoever reads late misses nothing either, as long as the server remembers.
    let line = idle[0].frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(String::from_utf8_lossy(&line).contains("\"m0\""));
}

#[tokio::test]
async fn every_request_is_one_line_of_the_audit_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let log = AuditLog::open(AuditConfig { path: path.clone(), max_bytes: 1 << 30, max_backups: 1 }).unwrap();
    let server = server(LoadLimits::default(), Some(log)).await;
    let created =
        ask(&server, &admin(), Request::builder().method("POST").uri(MAPS), r#"{"metadata":{"name":"a"}}"#).await;
    assert!(created.headers().contains_key("audit-id"));
    ask(&server, &stranger(), Request::builder().uri("/api/v1/secrets"), "").await;
    let watch = ask(&server, &admin(), Request::builder().uri("/api/v1/configmaps?watch=1"), "").await;
    assert_eq!(
        std::fs::read_to_string(&path).unwrap().matches("\"watch\"").count(),
        0,
        "a watch is told of when it ends"
    );
    drop(watch);
    drop(server);
    // Followers let go of the server within moments; the log is complete when the last of them has.
    let complete = || std::fs::read_to_string(&path).unwrap().lines().count() == 3;
    while !complete() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> =
        lines.iter().map(|line| (line["verb"].as_str(), line["responseStatus"]["code"].as_u64())).collect();
    assert_eq!(told, [(Some("create"), Some(201)), (Some("list"), Some(401)), (Some("watch"), Some(200))]);
}

#[tokio::test]
async fn writes_wait_until_the_storage_versions_are_reported() {
    let server = server(LoadLimits::default(), None).await;
    for storage in server.registry().resources().iter().filter_map(|resource| resource.storage.as_ref()) {
        storage.set_membership(crate::resource::Membership::Pending);
    }
    let map = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}"#;
    let lease = r#"{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x"}, "spec": {}}"#;
    let review = r#"{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}"#;
    let leases = |namespace: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    for (method, path, body, code) in [
        ("POST", MAPS.to_string(), map, 503),
        ("DELETE", MAPS.to_string(), "", 503),
        ("GET", MAPS.to_string(), "", 200),
        ("POST", leases("kube-system"), lease, 201),
        ("POST", leases("default"), lease, 503),
        ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews".to_string(), review, 201),
    ] {
        let request = http::Request::builder().method(method).uri(&path).header(header::CONTENT_TYPE, JSON);
        let response = ask(&server, &admin(), request, body).await;
        assert_eq!(response.status(), code, "{method} {path}");
        if code == 503 {
            assert!(response.headers().contains_key(header::RETRY_AFTER), "{method} {path}");
            let status: serde_json::Value = serde_json::from_slice(&bytes_of(response)).unwrap();
            let message = status["message"].as_str().unwrap();
            assert!(
                message.starts_with("wait for storage version registration to complete for resource: "),
                "{message}"
            );
        }
    }
}

#[tokio::test]
async fn errors_of_the_stored_object_do_not_prevent_other_changes() {
    let server = server(LoadLimits::default(), None).await;
    let version = restow_api::GroupVersion::new("", "v1").unwrap();
    let registry = server.registry();
    let storage = registry.find(&version, "limitranges").unwrap().storage.as_ref().unwrap();
    let limit = |most: &str| serde_json::json!([{"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": most}}]);
    let range = serde_json::json!({"apiVersion": "v1", "kind": "LimitRange", "spec": {"limits": limit("1")},
        "metadata": {"name": "odd", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}});
    let key = storage.key("default", "odd").unwrap();
    restow_store::StoreExt::put(&**server.objects().store(), &key, range.to_string().into()).await.unwrap();
    let change = async |patch: serde_json::Value| {
        let request = Request::builder().method("PATCH").uri("/api/v1/namespaces/default/limitranges/odd");
        let response = ask(&server, &admin(), request.header("content-type", MERGE), &patch.to_string()).await;
        response.status().as_u16()
    };
    assert_eq!(change(serde_json::json!({"metadata": {"labels": {"a": "b"}}})).await, 200);
    assert_eq!(change(serde_json::json!({"spec": {"limits": limit("500m")}})).await, 422);
    assert_eq!(change(serde_json::json!({"spec": {"limits": limit("3")}})).await, 200);
}

#[tokio::test]
async fn a_default_that_is_newer_than_the_stored_object_is_no_change() {
    let server = server(LoadLimits::default(), None).await;
    let version = restow_api::GroupVersion::new("batch", "v1").unwrap();
    let registry = server.registry();
    let storage = registry.find(&version, "jobs").unwrap().storage.as_ref().unwrap();
    let spec = serde_json::json!({"restartPolicy": "Never", "serviceAccountName": "a",
        "containers": [{"name": "c", "image": "i", "resources": {}}]});
    let job = serde_json::json!({"apiVersion": "batch/v1", "kind": "Job",
        "spec": {"manualSelector": true, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}},
        "metadata": {"name": "old", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}});
    let key = storage.key("default", "old").unwrap();
    restow_store::StoreExt::put(&**server.objects().store(), &key, job.to_string().into()).await.unwrap();
    let change = async |patch: &str| {
        let request = Request::builder().method("PATCH").uri("/apis/batch/v1/namespaces/default/jobs/old");
        let response = ask(&server, &admin(), request.header("content-type", MERGE), patch).await;
        let code = response.status().as_u16();
        (code, String::from_utf8_lossy(&bytes_of(response)).into_owned())
    };
    let (code, response) = change("{}").await;
    assert_eq!(code, 200, "{response}");
    let (code, response) = change(r#"{"spec": {"template": {"spec": {"serviceAccountName": "b"}}}}"#).await;
    assert_eq!(code, 422, "{response}");
}
