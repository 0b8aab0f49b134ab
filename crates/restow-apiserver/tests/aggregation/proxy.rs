//! What the server behind an APIService sees of a request, and what its client sees of the response.

use crate::fixture::{
    Authorities, Backend, Listening, Main, admin, connect, eventually, json_response, main_config, read_head, store,
};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use restow_apiserver::AgreementConfig;
use restow_auth::User;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const API_SERVICE: &str = "v1.echo.example";

/// Answers with what it has received; some paths have a meaning of their own.
async fn echo(mut request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_string();
    match path.as_str() {
        "/apis/echo.example/v1" => {
            return json_response(200, &json!({"kind": "APIResourceList", "resources": []}));
        }
        "/apis/echo.example/v1/elsewhere" => {
            return Response::builder()
                .status(302)
                .header("location", "https://a.example")
                .body(Full::default())
                .unwrap();
        }
        "/apis/echo.example/v1/tunnel" => {
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = TokioIo::new(upgraded.await.unwrap());
                let mut word = [0; 4];
                stream.read_exact(&mut word).await.unwrap();
                word.reverse();
                stream.write_all(&word).await.unwrap();
            });
            let response = Response::builder().status(101).header("connection", "Upgrade").header("upgrade", "words");
            return response.body(Full::default()).unwrap();
        }
        path if !path.starts_with("/apis/echo.example/v1/") => return json_response(404, &json!({})),
        _ => {}
    }
    let headers: Vec<(String, String)> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).to_string()))
        .collect();
    let (method, query) = (request.method().to_string(), request.uri().query().map(str::to_string));
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body).to_string();
    json_response(418, &json!({"path": path, "query": query, "method": method, "headers": headers, "body": text}))
}

async fn start() -> (Main, Backend) {
    start_with(&Authorities::new()).await
}

async fn start_with(authorities: &Authorities) -> (Main, Backend) {
    let main = Main::start(&store(), authorities).await;
    let backend = Backend::answering(authorities, echo).await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("echo.example", "v1", &authorities.servers.pem).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    (main, backend)
}

fn all<'a>(echoed: &'a Value, name: &str) -> Vec<&'a str> {
    let headers = echoed["headers"].as_array().unwrap().iter();
    headers.filter(|header| header[0] == name).map(|header| header[1].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_behind_gets_the_user_of_this_server_and_no_credentials() {
    let (main, _backend) = start().await;
    let request = Request::post("/apis/echo.example/v1/namespaces/a%2Fplants?x=1&y=%20")
        .header("authorization", "Bearer stolen")
        .header("x-remote-user", "root")
        .header("x-remote-group", "wheel")
        .header("x-remote-extra-power", "all")
        .header("x-remote-uid", "0")
        .header("connection", "close, x-private")
        .header("x-private", "1")
        .header("accept", "application/test")
        .body(Full::from("hello"))
        .unwrap();
    let mut user = admin();
    user.uid = "7".into();
    user.extra.insert("example.com/scopes".into(), vec!["a".into(), "b".into()]);
    let response = main.send(request, user).await;
    assert_eq!(response.status(), 418);
    let echoed = response.into_body().collect().await.unwrap().to_bytes();
    let echoed: Value = serde_json::from_slice(&echoed).unwrap();
    assert_eq!(echoed["path"], "/apis/echo.example/v1/namespaces/a/plants");
    assert_eq!(
        (&echoed["query"], &echoed["method"], &echoed["body"]),
        (&json!("x=1&y=%20"), &json!("POST"), &json!("hello"))
    );
    assert_eq!(all(&echoed, "x-remote-user"), ["admin"]);
    assert_eq!(all(&echoed, "x-remote-uid"), ["7"]);
    assert_eq!(all(&echoed, "x-remote-group"), ["system:masters", "system:authenticated"]);
    assert_eq!(all(&echoed, "x-remote-extra-example.com%2fscopes"), ["a", "b"]);
    assert_eq!(all(&echoed, "accept"), ["application/test"]);
    assert_eq!(all(&echoed, "x-forwarded-for"), ["127.0.0.1"]);
    for name in ["authorization", "x-remote-extra-power", "x-private", "connection"] {
        assert!(all(&echoed, name).is_empty(), "{name}: {echoed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_authorized_before_they_are_passed_on() {
    let (main, _backend) = start().await;
    let request = || Request::get("/apis/echo.example/v1/namespaces/a/words").body(Full::default()).unwrap();
    let response = main.send(request(), User::named("nobody")).await;
    assert_eq!(response.status(), 403);
    assert_eq!(main.send(request(), admin()).await.status(), 418);
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_another_server_may_read_otherwise_are_not_passed_on() {
    let (main, _backend) = start().await;
    for path in [
        "/apis/echo.example/v1//secrets",
        "/apis/echo.example/v1//../v1/secrets",
        "/apis/echo.example/v1/namespaces/a//secrets",
        "/apis/echo.example/v1/namespaces/a/words/..",
        "/apis/echo.example/v1/namespaces/../secrets",
        "/apis/echo.example/v1/namespaces/a/words/%2e%2e",
        "/apis/echo.example/v1/namespaces/a/words/w/proxy/.%2F/x",
        "/apis/echo.example/v1/namespaces/a%2F..%2Fb/words",
    ] {
        assert_eq!(main.get(path).await.0, 404, "{path}");
    }
    // A method without a verb is authorized as a path that is no resource.
    let (code, _) = main.ask(Method::OPTIONS, "/apis/echo.example/v1/namespaces/a/secrets", &Value::Null).await;
    assert_ne!(code, 418);
    assert_eq!(main.get("/apis/echo.example/v1").await.0, 200);
    assert_eq!(main.get("/apis/echo.example/v1/namespaces/a/words/w..x").await.0, 418);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_comes_back_is_refused() {
    let (main, _backend) = start().await;
    let own = format!("1.1 {}", AgreementConfig::identity_of(&["main"]));
    let (_, echoed) = main.get("/apis/echo.example/v1/namespaces/a/words").await;
    assert_eq!(all(&echoed, "via"), [own.as_str()]);
    let request = |via: &str| {
        let request = Request::get("/apis/echo.example/v1/namespaces/a/words").header("via", via);
        request.body(Full::default()).unwrap()
    };
    assert_eq!(main.send(request("1.1 another"), admin()).await.status(), 418);
    assert_eq!(main.send(request(&format!("1.1 another, {own}")), admin()).await.status(), 508);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_another_server_is_refused() {
    let (main, _backend) = start().await;
    let (code, text) = main.get("/apis/echo.example/v1/elsewhere").await;
    assert_eq!(code, 502);
    assert_eq!(text, "the backend attempted to redirect this request, which is not permitted\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_connection_is_a_tunnel() {
    let authorities = Authorities::new();
    let (main, _backend) = start_with(&authorities).await;
    let listening = Listening::start(&main, &authorities).await;
    let own = authorities.servers.issue_in("admin", &["system:masters"], &[]);
    let mut stream = connect(&authorities, &own, listening.address).await;
    let head = "GET /apis/echo.example/v1/tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: words\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let response = read_head(&mut stream).await;
    assert!(response.starts_with("http/1.1 101 ") && response.contains("upgrade: words"), "{response}");
    stream.write_all(b"abcd").await.unwrap();
    let mut word = [0; 4];
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut word)).await;
    read.expect("the tunnel answers").unwrap();
    assert_eq!(&word, b"dcba");
    listening.stop.cancel();
    let stopped = tokio::time::timeout(Duration::from_secs(20), listening.task).await;
    stopped.expect("a tunnel does not keep the server").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_sent_is_not_sent_again() {
    let authorities = Authorities::new();
    let main = Main::start(&store(), &authorities).await;
    let received = Arc::new(AtomicUsize::new(0));
    let counter = received.clone();
    // It disappears in the middle of a request.
    let backend = Backend::answering(&authorities, move |request: Request<Incoming>| {
        let counter = counter.clone();
        async move {
            match request.uri().path() {
                "/apis/echo.example/v1" => json_response(200, &json!({"kind": "APIResourceList", "resources": []})),
                "/apis/echo.example/v1/words" => {
                    counter.fetch_add(1, Ordering::SeqCst);
                    panic!("the connection breaks");
                }
                _ => json_response(404, &json!({})),
            }
        }
    })
    .await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("echo.example", "v1", &authorities.servers.pem).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    assert_eq!(main.get("/apis/echo.example/v1/words").await.0, 503);
    assert_eq!(received.load(Ordering::SeqCst), 1);
    drop(backend);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_for_another_server_leave_permits_for_other_users() {
    let authorities = Authorities::new();
    let mut config = main_config(&store(), &authorities);
    config.limits.requests_in_flight = 4;
    let main = Arc::new(Main::of(config).await);
    let waiting = Arc::new(AtomicUsize::new(0));
    let counter = waiting.clone();
    let backend = Backend::answering(&authorities, move |request: Request<Incoming>| {
        let counter = counter.clone();
        async move {
            if request.uri().path() == "/apis/echo.example/v1" {
                return json_response(200, &json!({"kind": "APIResourceList", "resources": []}));
            }
            if request.uri().path().starts_with("/apis/echo.example/v1/namespaces/") {
                counter.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            json_response(404, &json!({}))
        }
    })
    .await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("echo.example", "v1", &authorities.servers.pem).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    let group = json!({"kind": "Group", "name": "testers", "apiGroup": "rbac.authorization.k8s.io"});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "testers"},
        "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"},
        "subjects": [group],
    });
    main.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    let get = |user: &str, path: &'static str| {
        let (main, user) = (main.clone(), User::named(user).with_group("testers"));
        let request = Request::get(path).body(Full::default()).unwrap();
        tokio::spawn(async move { main.send(request, user).await.status().as_u16() })
    };
    let (local, word) = ("/api/v1/namespaces", "/apis/echo.example/v1/namespaces/a/words/w");
    eventually("the binding is known", async || (get("bert", local).await.unwrap() == 200).then_some(())).await;
    let mut hanging = Vec::new();
    for number in 0..6 {
        hanging.push(get(&format!("user-{number}"), word));
        hanging.push(get("reader", "/apis/echo.example/v1/namespaces/a/words/w/log"));
    }
    eventually("all of them wait", async || (waiting.load(Ordering::SeqCst) == 12).then_some(())).await;
    assert_eq!(get("bert", local).await.unwrap(), 200);
    assert_eq!(get("reader", local).await.unwrap(), 200, "a log counts no more than a watch");
    assert_eq!(get("user-0", local).await.unwrap(), 429, "a user counts for what waits");
    hanging.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_the_shutdown_cuts_off_does_not_look_complete() {
    let authorities = Authorities::new();
    let main = Main::start(&store(), &authorities).await;
    let backend = Backend::answering(&authorities, |request: Request<Incoming>| async move {
        match request.uri().path() {
            "/apis/echo.example/v1" => {
                let list = json!({"kind": "APIResourceList", "resources": []});
                json_response(200, &list).map(BodyExt::boxed_unsync)
            }
            path if path.starts_with("/apis/echo.example/v1/") => {
                let first = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"first\n")))]);
                Response::new(StreamBody::new(first.chain(stream::pending())).boxed_unsync())
            }
            _ => json_response(404, &json!({})).map(BodyExt::boxed_unsync),
        }
    })
    .await;
    main.create_service(&[backend.address]).await;
    main.create_api_service("echo.example", "v1", &authorities.servers.pem).await;
    main.wait_for_condition(API_SERVICE, "True", "Passed").await;
    let listening = Listening::start(&main, &authorities).await;
    let open = async |path: &str| {
        let mut body = main.send(Request::get(path).body(Full::default()).unwrap(), admin()).await.into_body();
        let first = tokio::time::timeout(Duration::from_secs(20), body.frame()).await.expect("it begins");
        assert_eq!(first.unwrap().unwrap().into_data().unwrap(), "first\n");
        body
    };
    let mut log = open("/apis/echo.example/v1/namespaces/a/words/w/log").await;
    let mut watch = open("/apis/echo.example/v1/namespaces/a/words?watch=1").await;
    listening.stop.cancel();
    let end = tokio::time::timeout(Duration::from_secs(20), log.frame()).await.expect("the log ends");
    assert!(end.is_some_and(|end| end.is_err()));
    let end = tokio::time::timeout(Duration::from_secs(20), watch.frame()).await.expect("the watch ends");
    assert!(end.is_none(), "a watch may end at any time");
}
