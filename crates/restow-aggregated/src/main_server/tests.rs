//! Lease renewals against a fake main API server that accepts every lease and counts the renewals.

#![allow(clippy::unwrap_used)]

use super::MainServer;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use restow_apiserver::storage_version::Upstream;
use restow_apiserver::{AgreementConfig, Gates};
use restow_rules::collect::OwnLease;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(3);

/// A client of a server that accepts every lease, and its count of renewals.
fn lease_server() -> (kube::Client, Arc<AtomicUsize>) {
    let renewals = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&renewals);
    let service = tower::service_fn(move |request: Request<Body>| {
        let count = Arc::clone(&count);
        async move {
            let method = request.method().clone();
            let body = request.into_body().collect_bytes().await.unwrap();
            let (code, body) = match method {
                Method::GET => (404, not_found()),
                Method::PUT => {
                    count.fetch_add(1, Ordering::SeqCst);
                    (200, body.to_vec())
                }
                Method::POST => (201, body.to_vec()),
                _ => (200, br#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#.to_vec()),
            };
            let answer = Response::builder().status(StatusCode::from_u16(code).unwrap());
            Ok::<_, Infallible>(answer.body(Body::from(body)).unwrap())
        }
    });
    (kube::Client::new(service, "default"), renewals)
}

fn not_found() -> Vec<u8> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": "gone",
    });
    status.to_string().into_bytes()
}

fn config() -> AgreementConfig {
    let identity = AgreementConfig::identity_of(&["garden"]);
    let config = AgreementConfig::new(identity, "host", &Gates::default());
    // The lease is valid for longer than the test lasts, because the time since boot is not paused with tokio's clock.
    AgreementConfig { renew_interval: INTERVAL, lease_duration: Duration::from_secs(3600), ..config }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_joins_again_and_again_has_one_renewal_task() {
    let (client, renewals) = lease_server();
    let main = MainServer::new(client, "garden", &config());
    let own_lease = OwnLease { uid: "own".into(), store: "garden".into() };
    for _ in 0..5 {
        main.join(&own_lease).await.unwrap();
    }
    tokio::time::sleep(INTERVAL * 10 + INTERVAL / 2).await;
    assert_eq!(renewals.load(Ordering::SeqCst), 10, "one lease renewal an interval");
    main.leave().await;
    tokio::time::sleep(INTERVAL * 3).await;
    assert_eq!(renewals.load(Ordering::SeqCst), 10, "none after it has left");
}
