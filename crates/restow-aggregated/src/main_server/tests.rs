//! Lease renewals and reports against a fake main API server that accepts every one and counts them.

#![allow(clippy::unwrap_used)]

use super::MainServer;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use restow_api::GroupVersion;
use restow_apiserver::storage_version::Upstream;
use restow_apiserver::{AgreementConfig, Gates};
use restow_rules::ServerReport;
use restow_rules::collect::OwnLease;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

const INTERVAL: Duration = Duration::from_secs(3);

/// What a fake main API server has seen.
#[derive(Default)]
struct Fake {
    renewals: AtomicUsize,
    reports: AtomicUsize,
    /// Whether the lease that was taken is still there.
    keeps_lease: AtomicBool,
    /// What the next read of a report waits for.
    next_read: Mutex<Option<oneshot::Receiver<()>>>,
    /// The last report.
    last_report: Mutex<String>,
}

/// A client of a server that accepts every lease and every report.
fn fake() -> (kube::Client, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    let seen = Arc::clone(&fake);
    let service = tower::service_fn(move |request: Request<Body>| {
        let seen = Arc::clone(&seen);
        async move {
            let (method, is_report) = (request.method().clone(), request.uri().path().contains("storageversions"));
            let body = request.into_body().collect_bytes().await.unwrap();
            let held = seen.next_read.lock().unwrap().take_if(|_| method == Method::GET && is_report);
            if let Some(held) = held {
                held.await.unwrap();
            }
            let (code, body) = match method {
                Method::GET if is_report => (200, br#"{"metadata":{"name":"example.com.widgets"}}"#.to_vec()),
                Method::GET if seen.keeps_lease.load(Ordering::SeqCst) => (200, br#"{"metadata":{}}"#.to_vec()),
                Method::GET => (404, not_found()),
                Method::PUT => {
                    let count = if is_report { &seen.reports } else { &seen.renewals };
                    count.fetch_add(1, Ordering::SeqCst);
                    if is_report {
                        *seen.last_report.lock().unwrap() = String::from_utf8_lossy(&body).into_owned();
                    }
                    (200, body.to_vec())
                }
                Method::POST => (201, body.to_vec()),
                _ => (200, br#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#.to_vec()),
            };
            let answer = Response::builder().status(StatusCode::from_u16(code).unwrap());
            Ok::<_, Infallible>(answer.body(Body::from(body)).unwrap())
        }
    });
    (kube::Client::new(service, "default"), fake)
}

fn own_lease() -> OwnLease {
    OwnLease { uid: "own".into(), store: "garden".into() }
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
    let (client, fake) = fake();
    let main = MainServer::new(client, "garden", &config());
    for _ in 0..5 {
        main.join(&own_lease()).await.unwrap();
    }
    tokio::time::sleep(INTERVAL * 10 + INTERVAL / 2).await;
    assert_eq!(fake.renewals.load(Ordering::SeqCst), 10, "one lease renewal an interval");
    main.leave().await;
    tokio::time::sleep(INTERVAL * 3).await;
    assert_eq!(fake.renewals.load(Ordering::SeqCst), 10, "none after it has left");
}

fn report(version: &str) -> ServerReport {
    let version: GroupVersion = version.parse().unwrap();
    ServerReport::new("garden".parse().unwrap(), version.clone(), [version], []).unwrap()
}

#[tokio::test]
async fn a_server_whose_lease_was_replaced_does_not_overwrite_the_report_of_the_next_one() {
    let (client, fake) = fake();
    let main = MainServer::new(client, "garden", &config());
    main.join(&own_lease()).await.unwrap();
    let (widgets, report) = ("widgets.example.com".parse().unwrap(), report("example.com/v1"));
    main.report(&widgets, &report).await.unwrap_err();
    assert_eq!(fake.reports.load(Ordering::SeqCst), 0);
    fake.keeps_lease.store(true, Ordering::SeqCst);
    main.report(&widgets, &report).await.unwrap();
    assert_eq!(fake.reports.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_repair_does_not_undo_a_report_that_was_made_meanwhile() {
    let (client, fake) = fake();
    fake.keeps_lease.store(true, Ordering::SeqCst);
    let main = MainServer::new(client, "garden", &config());
    main.join(&own_lease()).await.unwrap();
    let widgets = "widgets.example.com".parse().unwrap();
    main.report(&widgets, &report("example.com/v1")).await.unwrap();
    let (go_on, held) = oneshot::channel();
    *fake.next_read.lock().unwrap() = Some(held);
    tokio::time::sleep(INTERVAL + INTERVAL / 2).await;
    assert!(fake.next_read.lock().unwrap().is_none(), "a repair is under way");
    let newer = report("example.com/v2");
    let (switched, ()) = tokio::join!(main.report(&widgets, &newer), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        go_on.send(()).unwrap();
    });
    switched.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let last = fake.last_report.lock().unwrap().clone();
    assert!(last.contains("example.com/v2"), "{last}");
}
