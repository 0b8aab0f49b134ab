//! `/healthz`, `/livez` and `/readyz`.

use crate::http::body::Body;
use crate::http::render;
use crate::request::query::Query;
use crate::server::ApiServer;
use crate::storage_version;
use http::Response;
use restow_store::StoreError;
use std::time::Duration;

/// How long a check may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// A check and its result.
struct Check {
    name: &'static str,
    failure: Option<String>,
}

/// Responds to one of the health paths, given its segments.
pub(crate) async fn handle(server: &ApiServer, parts: &[&str], query: &Query) -> Response<Body> {
    let endpoint = match parts.first() {
        Some(&"livez") => "livez",
        Some(&"readyz") => "readyz",
        _ => "healthz",
    };
    let mut checks = checks(server, endpoint).await;
    if parts.len() > 1 {
        let single = parts[1..].join("/");
        checks.retain(|check| check.name == single);
        if checks.is_empty() {
            return text(404, format!("there is no check {single}\n"));
        }
    }
    let failed = checks.iter().any(|check| check.failure.is_some());
    if !failed && !query.has("verbose") {
        return text(200, "ok".into());
    }
    let mut lines = String::new();
    for check in &checks {
        match &check.failure {
            None => lines.push_str(&format!("[+]{} ok\n", check.name)),
            // The reason may name hosts. It is logged, and withheld from the response, which anyone may read.
            Some(_) => lines.push_str(&format!("[-]{} failed: reason withheld\n", check.name)),
        }
    }
    let result = if failed { "failed" } else { "passed" };
    lines.push_str(&format!("{endpoint} check {result}\n"));
    text(if failed { 500 } else { 200 }, lines)
}

/// Runs all checks, for their metrics.
pub(crate) async fn check(server: &ApiServer) {
    checks(server, "readyz").await;
}

/// A live server that cannot reach its store must not be restarted (livez), only not used (readyz).
async fn checks(server: &ApiServer, endpoint: &'static str) -> Vec<Check> {
    let mut checks = vec![Check { name: "ping", failure: None }];
    let store = server.objects().store();
    if endpoint != "livez" {
        let failure = failure(async { store.status().await.map(drop) }).await;
        if let Some(reason) = &failure {
            tracing::warn!(reason, "the store does not respond");
        }
        checks.push(Check { name: "etcd", failure });
    }
    if endpoint == "readyz" {
        // A store without writes can still be read, but the server is not ready.
        let failure = failure(store.ready()).await;
        if let Some(reason) = &failure {
            tracing::warn!(reason, "the store is not ready");
        }
        checks.push(Check { name: "etcd-readiness", failure });
        let failure = server.core.is_stopping().then(|| "the server is shutting down".to_string());
        checks.push(Check { name: "shutdown", failure });
    }
    // Until its storage versions are reported, a server is alive but must not get writes.
    let registered = endpoint == "livez" || server.agreement().is_registered() && server.core.startup().is_done();
    let failure = (!registered).then(|| "the storage versions are not reported yet".to_string());
    checks.push(Check { name: storage_version::READINESS, failure });
    for check in &checks {
        server.metrics().health_checked(endpoint, check.name, check.failure.is_none());
    }
    checks
}

/// The failure of a check of the store.
async fn failure(response: impl Future<Output = Result<(), StoreError>>) -> Option<String> {
    match tokio::time::timeout(CHECK_TIMEOUT, response).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no response within {CHECK_TIMEOUT:?}")),
    }
}

fn text(code: u16, body: String) -> Response<Body> {
    render::bytes_response(code, body.into_bytes(), "text/plain; charset=utf-8")
}
