//! Memory limits of requests: bodies, stored objects that are changed, and watches.

use super::tests::{admin, ask, bytes_of, certificates, server};
use super::*;
use crate::flow_control::limits::LoadLimits;
use crate::http::request_body::MAX_BODY;
use http_body_util::BodyExt;
use restow_store::{Key, StoreExt};
use serde_json::json;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MALLORY: &str = "mallory";

fn mallory() -> Peer {
    Peer { address: IpAddr::from([127, 0, 0, 1]), certificates: certificates(User::named(MALLORY)) }
}

/// A server on which Mallory may do everything, without being an administrator.
async fn server_for_mallory(limits: LoadLimits) -> Arc<ApiServer> {
    let server = server(limits, None).await;
    let binding = json!({
        "metadata": {"name": "x"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": MALLORY}],
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    assert_eq!(ask(&server, &admin(), Request::post(path), &binding.to_string()).await.status(), 201);
    // The binding is not known at once.
    while ask(&server, &mallory(), Request::get(MAPS), "").await.status() != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server
}

fn map(name: &str, bytes: usize) -> String {
    let data = json!({"a": "x".repeat(bytes)});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}).to_string()
}

fn patch(name: &str) -> http::request::Builder {
    Request::patch(format!("{MAPS}/{name}")).header("content-type", "application/merge-patch+json")
}

/// Whether a request still waits after it had enough time for a response.
async fn waits(request: &mut (impl Future<Output = Response<Body>> + Unpin)) -> bool {
    tokio::time::timeout(Duration::from_millis(500), request).await.is_err()
}

#[tokio::test]
async fn the_body_of_a_get_is_not_kept_in_memory() {
    let server = server(LoadLimits::default(), None).await;
    let much = "x".repeat(MAX_BODY + 1);
    for path in [MAPS.to_string(), format!("{MAPS}?watch=1"), "/api/v1/namespaces/default".into()] {
        let response = ask(&server, &admin(), Request::get(&path), &much).await;
        assert_eq!(response.status(), 200, "{path}");
    }
    let response = ask(&server, &admin(), Request::post(MAPS), &much).await;
    assert_eq!(response.status(), 413);
}

#[tokio::test]
async fn a_response_counts_for_its_user_until_it_is_read() {
    let server = server_for_mallory(LoadLimits { requests_in_flight: 4, ..LoadLimits::default() }).await;
    let peer = mallory();
    // A quarter of the places is one.
    let unread = ask(&server, &peer, Request::get(MAPS), "").await;
    assert_eq!(unread.status(), 200);
    assert_eq!(ask(&server, &peer, Request::get(MAPS), "").await.status(), 429);
    assert_eq!(ask(&server, &peer, Request::get("/readyz"), "").await.status(), 200);
    drop(unread);
    assert_eq!(ask(&server, &peer, Request::get(MAPS), "").await.status(), 200);
}

#[tokio::test]
async fn bodies_wait_for_memory_before_they_are_read() {
    let server = server_for_mallory(LoadLimits::default()).await;
    let flow = Flow::Named(MALLORY.into());
    let all_of_it = server.fair_queue().acquire_incoming_memory(&flow, usize::MAX).await;
    let (large, peer) = (map("large", 100 << 10), mallory());
    let mut waiting = pin!(ask(&server, &peer, Request::post(MAPS), &large));
    assert!(waits(&mut waiting).await);
    let small = map("small", 1 << 10);
    assert_eq!(ask(&server, &peer, Request::post(MAPS), &small).await.status(), 201, "few bytes need no memory");
    let other = map("other", 100 << 10);
    assert_eq!(ask(&server, &admin(), Request::post(MAPS), &other).await.status(), 201, "others have their own");
    drop(all_of_it);
    assert_eq!(waiting.await.status(), 201);
}

#[tokio::test]
async fn a_small_patch_of_a_large_object_waits_for_memory() {
    let server = server_for_mallory(LoadLimits::default()).await;
    for (name, bytes) in [("large", 500 << 10), ("small", 10)] {
        assert_eq!(ask(&server, &admin(), Request::post(MAPS), &map(name, bytes)).await.status(), 201);
    }
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let flow = Flow::Named(MALLORY.into());
    let hold = async {
        let all_of_it = fair_queue::acquire_stored_memory(usize::MAX).await;
        assert!(all_of_it.is_some());
        assert!(
            fair_queue::acquire_stored_memory(usize::MAX).await.is_none(),
            "whoever has room does not wait for more"
        );
        released.await.unwrap();
    };
    let mut holding = pin!(server.fair_queue().run(&flow, hold));
    let peer = mallory();
    let body = r#"{"data":{"b":"c"}}"#;
    let mut waiting = pin!(ask(&server, &peer, patch("large"), body));
    poll_fn(|context| {
        assert!(holding.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    assert!(waits(&mut waiting).await);
    assert_eq!(ask(&server, &peer, patch("small"), body).await.status(), 200);
    assert_eq!(ask(&server, &admin(), patch("large"), body).await.status(), 200);
    release.send(()).unwrap();
    holding.await;
    assert_eq!(waiting.await.status(), 200);
}

#[tokio::test]
async fn a_watch_that_fell_behind_continues_from_the_store() {
    let server = server(LoadLimits::default(), None).await;
    let store = server.objects().store().clone();
    let revision = store.status().await.unwrap().revision;
    // Twice as much as is kept for watches, and the watch reads nothing of it meanwhile.
    let path = format!("{MAPS}?watch=1&resourceVersion={revision}&timeoutSeconds=60&labelSelector=!a");
    let mut lines = ask(&server, &admin(), Request::get(&path), "").await.into_body();
    let many = 64;
    for number in 0..many {
        let key = Key::try_from(format!("/core/configmaps/default/map-{number:03}")).unwrap();
        let map = map(&format!("map-{number:03}"), 300 << 10);
        store.put(&key, map.into()).await.unwrap();
        if number == 0 {
            assert!(lines.frame().await.is_some());
        }
    }
    while server.watch_cache().reached() < store.status().await.unwrap().revision {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for number in 1..many {
        let frame = tokio::time::timeout(Duration::from_secs(60), lines.frame()).await.unwrap();
        let line: Value = serde_json::from_slice(&frame.unwrap().unwrap().into_data().unwrap()).unwrap();
        let expected = json!(["ADDED", format!("map-{number:03}")]);
        assert_eq!(json!([line["type"], line["object"]["metadata"]["name"]]), expected);
    }
}

#[tokio::test]
async fn discovery_documents_are_rendered_once() {
    let server = server(LoadLimits::default(), None).await;
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for path in ["/api", "/apis"] {
        let mut responses = Vec::new();
        for _ in 0..2 {
            let request = Request::get(path).header("accept", aggregated);
            responses.push(bytes_of(ask(&server, &admin(), request, "").await));
        }
        assert_eq!(responses[0].as_ptr(), responses[1].as_ptr(), "{path}");
    }
}
