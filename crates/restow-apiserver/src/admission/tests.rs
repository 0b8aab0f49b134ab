//! Real webhooks over HTTPS, asked by a server in this process.

use crate::admission::webhook::SideEffects;
use crate::flow_control::limits::LoadLimits;
use crate::http::dispatch::tests::{admin, ask, bytes_of, server};
use crate::server::ApiServer;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use restow_api::GroupVersion;
use restow_store::StoreExt;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A webhook that answers with what it is told to, and remembers what it was asked.
struct Hook {
    url: String,
    ca_bundle: String,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Hook {
    async fn start(answer: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certified.cert.der().clone()], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/hook", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, seen) = (Arc::new(answer), asked.clone());
        restow_host::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let (answer, seen) = (answer.clone(), seen.clone());
                let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                    let (answer, seen) = (answer.clone(), seen.clone());
                    async move {
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let review: Value = serde_json::from_slice(&body).unwrap();
                        let mut response = answer(&review["request"]);
                        response["uid"] = review["request"]["uid"].clone();
                        seen.lock().unwrap().push(review["request"].clone());
                        let body = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(body.to_string()))))
                    }
                });
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                restow_host::spawn(
                    async move { builder.serve_connection(TokioIo::new(stream), service).await.is_ok() },
                );
            }
        });
        Hook { url, ca_bundle: STANDARD.encode(certified.cert.pem()), asked }
    }

    /// A webhook of a configuration that asks this one about everything that is done to config maps.
    fn webhook(&self, name: &str) -> Value {
        json!({
            "name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": self.url, "caBundle": self.ca_bundle},
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        })
    }

    fn calls(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

async fn post(server: &ApiServer, path: &str, body: &Value) -> (u16, Value, Vec<String>) {
    let request = Request::builder().method("POST").uri(path).header("content-type", "application/json");
    let answer = ask(server, &admin(), request, &body.to_string()).await;
    let code = answer.status().as_u16();
    let warnings =
        answer.headers().get_all("warning").iter().map(|value| value.to_str().unwrap().to_string()).collect();
    (code, serde_json::from_slice(&bytes_of(answer)).unwrap(), warnings)
}

/// Configures webhooks and waits until the server knows them.
async fn configure(server: &ApiServer, plural: &str, name: &str, webhooks: Vec<Value>) {
    let kind = if plural.starts_with('m') { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" };
    let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
    let count = webhooks.len();
    let body = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": webhooks});
    let (code, answer, _) = post(server, &path, &body).await;
    assert_eq!(code, 201, "{answer}");
    let phase = if plural.starts_with('m') {
        &server.handlers.admission.mutating
    } else {
        &server.handlers.admission.validating
    };
    while phase.all.load().iter().filter(|webhook| webhook.configuration == name).count() < count {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[tokio::test]
async fn validating_webhooks_deny_warn_and_see_the_user() {
    let server = server(LoadLimits::default(), None).await;
    let hook = Hook::start(|request| {
        let bad = request["object"]["metadata"]["name"] == "bad";
        json!({"allowed": !bad, "warnings": ["mind this"], "status": {"code": 403, "reason": "Forbidden", "message": "bad name"}})
    })
    .await;
    configure(&server, "validatingwebhookconfigurations", "names", vec![hook.webhook("names.example.com")]).await;
    let (code, answer, warnings) = post(&server, MAPS, &map("bad")).await;
    assert_eq!(code, 403, "{answer}");
    assert_eq!(answer["message"], "admission webhook \"names.example.com\" denied the request: bad name");
    assert!(warnings.is_empty() || warnings[0].contains("mind this"));
    let (code, _, warnings) = post(&server, MAPS, &map("good")).await;
    assert_eq!((code, warnings), (201, vec!["299 - \"mind this\"".to_string()]));
    let asked = hook.asked.lock().unwrap().last().cloned().unwrap();
    assert_eq!(
        (&asked["operation"], &asked["namespace"], &asked["name"]),
        (&json!("CREATE"), &json!("default"), &json!("good"))
    );
    assert_eq!(asked["userInfo"]["username"], "admin");
    assert_eq!(asked["resource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));
    let request = Request::builder().method("DELETE").uri(format!("{MAPS}/good"));
    assert_eq!(ask(&server, &admin(), request, "").await.status(), 200);
    let asked = hook.asked.lock().unwrap().last().cloned().unwrap();
    assert_eq!((&asked["operation"], &asked["oldObject"]["metadata"]["name"]), (&json!("DELETE"), &json!("good")));
    assert!(asked["object"].is_null());
}

#[tokio::test]
async fn mutating_webhooks_change_the_object_in_turn_and_again_where_needed() {
    let server = server(LoadLimits::default(), None).await;
    let patch =
        |patch: Value| json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())});
    let first = Hook::start(move |request| {
        let seen = !request["object"]["data"]["second"].is_null();
        patch(json!([{"op": "add", "path": "/metadata/labels", "value": {"saw-second": seen.to_string()}}]))
    })
    .await;
    let second = Hook::start(move |_| patch(json!([{"op": "add", "path": "/data", "value": {"second": "yes"}}]))).await;
    let mut again = first.webhook("first.example.com");
    again["reinvocationPolicy"] = "IfNeeded".into();
    configure(&server, "mutatingwebhookconfigurations", "a-first", vec![again]).await;
    configure(&server, "mutatingwebhookconfigurations", "b-second", vec![second.webhook("second.example.com")]).await;
    let (code, answer, _) = post(&server, MAPS, &map("a")).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(answer["data"], json!({"second": "yes"}));
    assert_eq!(answer["metadata"]["labels"], json!({"saw-second": "true"}));
    assert_eq!((first.calls(), second.calls()), (2, 1));
}

#[tokio::test]
async fn a_webhook_that_cannot_be_called_fails_the_request_or_not_as_configured() {
    let server = server(LoadLimits::default(), None).await;
    let hook = Hook::start(|_| json!({"allowed": true})).await;
    let mut down = hook.webhook("down.example.com");
    down["clientConfig"] = json!({"url": "https://127.0.0.1:1/", "caBundle": hook.ca_bundle});
    down["objectSelector"] = json!({"matchLabels": {"strict": "yes"}});
    let mut ignored = down.clone();
    ignored["name"] = "ignored.example.com".into();
    ignored["objectSelector"] = json!({});
    ignored["failurePolicy"] = "Ignore".into();
    configure(&server, "validatingwebhookconfigurations", "down", vec![down, ignored]).await;
    assert_eq!(post(&server, MAPS, &map("lenient")).await.0, 201);
    let mut strict = map("strict");
    strict["metadata"]["labels"] = json!({"strict": "yes"});
    let (code, answer, _) = post(&server, MAPS, &strict).await;
    assert_eq!((code, &answer["reason"]), (500, &json!("InternalError")));
    let message = answer["message"].as_str().unwrap();
    assert!(message.starts_with("Internal error occurred: failed calling webhook \"down.example.com\""), "{message}");
}

/// Makes a webhook what only older versions of the API let it be: one with side effects.
async fn have_side_effects(server: &ApiServer, name: &str) {
    let version = GroupVersion::new("admissionregistration.k8s.io", "v1").unwrap();
    let registry = server.registry();
    let storage = registry.find(&version, "validatingwebhookconfigurations").unwrap().storage.clone().unwrap();
    let (store, key) = (server.objects().store(), storage.key("", name).unwrap());
    let text = String::from_utf8(store.get(&key).await.unwrap().unwrap().value.to_vec()).unwrap();
    let changed = text.replace("\"sideEffects\":\"None\"", "\"sideEffects\":\"Some\"");
    store.txn(restow_store::Txn::new().put(&key, changed)).await.unwrap();
    let validating = &server.handlers.admission.validating.all;
    while !validating.load().iter().any(|webhook| webhook.spec.side_effects == SideEffects::Unknown) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn webhooks_with_side_effects_are_refused_and_no_webhook_guards_its_own_configuration() {
    let server = server(LoadLimits::default(), None).await;
    let hook = Hook::start(|_| json!({"allowed": false})).await;
    let mut webhook = hook.webhook("everything.example.com");
    webhook["rules"] = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]);
    webhook["sideEffects"] = "Some".into();
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "some"}, "webhooks": [webhook],
    });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let (code, answer, _) = post(&server, path, &configuration).await;
    assert_eq!(code, 422, "{answer}");
    webhook["sideEffects"] = "None".into();
    configure(&server, "validatingwebhookconfigurations", "everything", vec![webhook]).await;
    assert_eq!(post(&server, &format!("{MAPS}?dryRun=All"), &map("a")).await.0, 403);
    assert_eq!(hook.asked.lock().unwrap().last().unwrap()["dryRun"], true);
    have_side_effects(&server, "everything").await;
    let (code, answer, _) = post(&server, &format!("{MAPS}?dryRun=All"), &map("a")).await;
    assert_eq!(code, 400, "{answer}");
    assert_eq!(answer["message"], "admission webhook \"everything.example.com\" does not support dry run");
    assert_eq!(post(&server, MAPS, &map("a")).await.0, 403);
    let path = format!("{path}/everything");
    let removed = ask(&server, &admin(), Request::builder().method("DELETE").uri(path), "").await;
    assert_eq!(removed.status(), 200);
}

#[tokio::test]
async fn pods_get_a_service_account_and_quotas_bound_what_is_created() {
    let server = server(LoadLimits::default(), None).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
    let pods = "/api/v1/namespaces/default/pods";
    // The account is made soon after the namespace.
    let mut made = post(&server, pods, &pod).await;
    while made.0 == 403 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        made = post(&server, pods, &pod).await;
    }
    assert_eq!((made.0, &made.1["spec"]["serviceAccountName"]), (201, &json!("default")), "{}", made.1);
    let mut other = pod.clone();
    other["metadata"]["name"] = "b".into();
    other["spec"]["serviceAccountName"] = "none".into();
    assert_eq!(post(&server, pods, &other).await.0, 403);

    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"count/configmaps": "1"}}});
    assert_eq!(post(&server, "/api/v1/namespaces/default/resourcequotas", &quota).await.0, 201);
    while !server.handlers.admission.quotas.has_quota("default") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let names: Vec<String> = (0..20).map(|number| format!("racing-{number}")).collect();
    let racing = names.iter().map(async |name| post(&server, MAPS, &map(name)).await.0);
    let codes = futures::future::join_all(racing).await;
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1, "{codes:?}");
    let request = Request::builder().uri("/api/v1/namespaces/default/resourcequotas/few");
    let told: Value = serde_json::from_slice(&bytes_of(ask(&server, &admin(), request, "").await)).unwrap();
    assert_eq!(told["status"], json!({"hard": {"count/configmaps": "1"}, "used": {"count/configmaps": "1"}}));
    let (code, answer, _) = post(&server, MAPS, &map("two")).await;
    assert_eq!(code, 403);
    assert!(
        answer["message"].as_str().unwrap().contains(
            "exceeded quota: few, requested: count/configmaps=1, used: count/configmaps=1, limited: count/configmaps=1"
        ),
        "{answer}"
    );
}

#[tokio::test]
async fn charging_in_one_namespace_does_not_block_others() {
    let server = server(LoadLimits::default(), None).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    assert_eq!(post(&server, "/api/v1/namespaces", &namespace).await.0, 201);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "9"}}});
    for name in ["default", "other"] {
        assert_eq!(post(&server, &format!("/api/v1/namespaces/{name}/resourcequotas"), &quota).await.0, 201);
        while !server.handlers.admission.quotas.has_quota(name) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    let held = server.handlers.admission.quotas.lock("default").await;
    let object = map("a");
    let mut waiting = Box::pin(post(&server, MAPS, &object));
    let patience = std::time::Duration::from_millis(300);
    assert!(tokio::time::timeout(patience, waiting.as_mut()).await.is_err(), "nobody counts twice at the same time");
    let made = post(&server, "/api/v1/namespaces/other/configmaps", &object);
    assert_eq!(tokio::time::timeout(patience * 20, made).await.unwrap().0, 201);
    drop(held);
    assert_eq!(waiting.await.0, 201);
}

#[tokio::test]
async fn quotas_bound_what_pods_and_services_ask_for() {
    let server = server(LoadLimits::default(), None).await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    for (name, spec) in [
        ("compute", json!({"hard": {"requests.cpu": "1", "limits.memory": "1Gi", "services.nodeports": "1"}})),
        ("short", json!({"hard": {"pods": "1"}, "scopes": ["Terminating"]})),
    ] {
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec});
        assert_eq!(post(&server, quotas, &quota).await.0, 201);
    }
    let used = async |name: &str| {
        let request = Request::builder().uri(format!("{quotas}/{name}"));
        let quota: Value = serde_json::from_slice(&bytes_of(ask(&server, &admin(), request, "").await)).unwrap();
        quota["status"]["used"].clone()
    };
    // Both are reckoned up soon.
    while used("short").await.is_null() || used("compute").await.is_null() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let pod = |name: &str, cpu: &str, deadline: Value| {
        let resources = json!({"requests": {"cpu": cpu}, "limits": {"memory": "512Mi"}});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"activeDeadlineSeconds": deadline,
            "containers": [{"name": "main", "image": "a", "resources": resources}]}})
    };
    let pods = "/api/v1/namespaces/default/pods";
    let refused = async |path: &str, object: &Value, why: &str| {
        let (code, answer, _) = post(&server, path, object).await;
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(code == 403 && message.ends_with(why), "{code} {message}");
    };
    // The account of the pods is made soon after the namespace.
    while post(&server, pods, &pod("a", "600m", json!(9))).await.0 != 201 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(used("compute").await["requests.cpu"], "600m");
    assert_eq!(used("short").await, json!({"pods": "1"}));
    let why = "exceeded quota: compute, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1";
    refused(pods, &pod("b", "500m", Value::Null), why).await;
    let why = "exceeded quota: short, requested: pods=1, used: pods=1, limited: pods=1";
    refused(pods, &pod("b", "100m", json!(9)), why).await;
    assert_eq!(post(&server, pods, &pod("b", "100m", Value::Null)).await.0, 201);
    assert_eq!(
        used("compute").await,
        json!({"requests.cpu": "700m", "limits.memory": "1Gi", "services.nodeports": "0"})
    );
    let mut silent = pod("c", "1m", Value::Null);
    silent["spec"]["containers"][0]["resources"] = json!({});
    let why = "failed quota: compute: must specify limits.memory for: main; requests.cpu for: main";
    refused(pods, &silent, why).await;

    let service = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "NodePort", "ports": [{"port": 80}]}})
    };
    let services = "/api/v1/namespaces/default/services";
    assert_eq!(post(&server, services, &service("a")).await.0, 201);
    let why = "requested: services.nodeports=1, used: services.nodeports=1, limited: services.nodeports=1";
    refused(services, &service("b"), why).await;
    // What is removed is given back.
    let removed = ask(&server, &admin(), Request::builder().method("DELETE").uri(format!("{services}/a")), "").await;
    assert_eq!(removed.status(), 200);
    while used("compute").await["services.nodeports"] != "0" {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(post(&server, services, &service("b")).await.0, 201);

    // Who takes more than before is bounded too.
    let change = async |path: &str, patch: Value| {
        let request = Request::builder().method("PATCH").uri(path);
        let request = request.header("content-type", "application/strategic-merge-patch+json");
        let answer = ask(&server, &admin(), request, &patch.to_string()).await;
        let code = answer.status().as_u16();
        let answer: Value = serde_json::from_slice(&bytes_of(answer)).unwrap();
        (code, answer["message"].as_str().unwrap_or_default().to_string())
    };
    let mut internal = service("c");
    internal["spec"]["type"] = "ClusterIP".into();
    assert_eq!(post(&server, services, &internal).await.0, 201);
    let (code, message) = change(&format!("{services}/c"), json!({"spec": {"type": "NodePort"}})).await;
    assert!(code == 403 && message.ends_with(why), "{code} {message}");
    assert_eq!(change(&format!("{services}/c"), json!({"metadata": {"labels": {"a": "b"}}})).await.0, 200);
    let (code, message) = change(&format!("{pods}/b"), json!({"spec": {"activeDeadlineSeconds": 5}})).await;
    assert!(code == 403 && message.contains("exceeded quota: short, requested: pods=1"), "{code} {message}");
    let sized =
        |cpu: &str| json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}});
    let resize = async |cpu: &str| change(&format!("{pods}/b/resize"), sized(cpu)).await;
    let why = "exceeded quota: compute, requested: requests.cpu=400m, used: requests.cpu=700m, limited: requests.cpu=1";
    let (code, message) = resize("500m").await;
    assert!(code == 403 && message.ends_with(why), "{code} {message}");
    assert_eq!(resize("400m").await, (200, String::new()));
    assert_eq!(used("compute").await["requests.cpu"], "1");
}

#[tokio::test]
async fn a_quota_that_is_made_later_does_not_refuse_updates_that_use_no_more() {
    let server = server(LoadLimits::default(), None).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "main", "image": "a"}]}});
    // The account of the pods is made soon after the namespace.
    while post(&server, pods, &pod).await.0 != 201 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"limits.cpu": "1"}}});
    assert_eq!(post(&server, "/api/v1/namespaces/default/resourcequotas", &quota).await.0, 201);
    while !server.handlers.admission.quotas.has_quota("default") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let mut other = pod.clone();
    other["metadata"]["name"] = "b".into();
    let (code, answer, _) = post(&server, pods, &other).await;
    let message = answer["message"].as_str().unwrap_or_default();
    assert!(code == 403 && message.ends_with("must specify limits.cpu for: main"), "{code} {message}");
    let request = Request::builder().method("PATCH").uri(format!("{pods}/a"));
    let request = request.header("content-type", "application/merge-patch+json");
    let patch = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    assert_eq!(ask(&server, &admin(), request, &patch).await.status(), 200);
}

#[tokio::test]
async fn limit_ranges_complete_and_bound_what_pods_and_claims_ask_for() {
    let server = server(LoadLimits::default(), None).await;
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "usual"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]}});
    let (code, answer, _) = post(&server, "/api/v1/namespaces/default/limitranges", &range).await;
    assert_eq!(code, 201, "{answer}");
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str, resources: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "main", "image": "a", "resources": resources}]}})
    };
    // The account of the pods is made soon after the namespace.
    let mut made = post(&server, pods, &pod("a", json!({}))).await;
    while made.0 == 403 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        made = post(&server, pods, &pod("a", json!({}))).await;
    }
    let given = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "100m"}});
    assert_eq!((made.0, &made.1["spec"]["containers"][0]["resources"]), (201, &given), "{}", made.1);
    assert_eq!(
        made.1["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container main; cpu limit for container main"
    );
    let (code, answer, _) = post(&server, pods, &pod("b", json!({"limits": {"cpu": "3"}}))).await;
    let message = "pods \"b\" is forbidden: maximum cpu usage per Container is 2, but limit is 3";
    assert_eq!((code, answer["message"].as_str()), (403, Some(message)));
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}});
    let (code, answer, _) = post(&server, "/api/v1/namespaces/default/persistentvolumeclaims", &claim).await;
    let message = "persistentvolumeclaims \"c\" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, \
                   but request is 2Gi";
    assert_eq!((code, answer["message"].as_str()), (403, Some(message)));
}

#[tokio::test]
async fn policies_guard_what_bindings_tell_them_to() {
    let server = server(LoadLimits::default(), None).await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "sizes"},
        "spec": {
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": [
                {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}]},
            "matchConditions": [{"name": "sized", "expression": "has(object.metadata.labels) && 'size' in object.metadata.labels"}],
            "variables": [{"name": "size", "expression": "object.metadata.labels['size']"}],
            "validations": [{"expression": "variables.size == params.data.size", "reason": "Forbidden",
                "messageExpression": "'the size must be ' + params.data.size + ', not ' + variables.size"}],
        },
    });
    let binding = |name: &str, actions: &[&str]| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": "sizes", "validationActions": actions,
                "paramRef": {"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"}},
        })
    };
    let mut limits = map("limits");
    limits["data"] = json!({"size": "small"});
    assert_eq!(post(&server, MAPS, &limits).await.0, 201);
    assert_eq!(post(&server, &format!("{group}/validatingadmissionpolicies"), &policy).await.0, 201);
    let bound = post(&server, &format!("{group}/validatingadmissionpolicybindings"), &binding("warn", &["Warn"])).await;
    assert_eq!(bound.0, 201, "{}", bound.1);
    let in_force = |count: usize| {
        let admission = &server.handlers.admission;
        admission.policies.all.load().len() == 1 && admission.bindings.all.load().len() == count
    };
    while !in_force(1) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = |name: &str, size: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": {"size": size}}});
    let (code, _, warnings) = post(&server, secrets, &secret("a", "large")).await;
    assert_eq!(code, 201);
    assert_eq!(
        warnings,
        [
            "299 - \"Validation failed for ValidatingAdmissionPolicy 'sizes' with binding 'warn': the size must be small, not large\""
        ]
    );
    post(&server, &format!("{group}/validatingadmissionpolicybindings"), &binding("deny", &["Deny"])).await;
    while !in_force(2) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let (code, answer, _) = post(&server, secrets, &secret("b", "large")).await;
    assert_eq!((code, &answer["reason"]), (403, &json!("Forbidden")), "{answer}");
    assert_eq!(
        answer["message"],
        "secrets \"b\" is forbidden: ValidatingAdmissionPolicy 'sizes' with binding 'deny' denied request: the size must be small, not large"
    );
    assert_eq!(post(&server, secrets, &secret("b", "small")).await.0, 201);
    assert_eq!(post(&server, secrets, &json!({"metadata": {"name": "c"}})).await.0, 201);
}
