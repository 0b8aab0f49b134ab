//! `/healthz`, `/livez` and `/readyz`: is the server alive, and can it serve?

use crate::http::body::Body;
use crate::http::render;
use crate::request::query::Query;
use crate::server::ApiServer;
use crate::storage_version;
use http::Response;
use restow_store::StoreError;
use std::time::Duration;

/// How long a check may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// One check and what came of it.
struct Check {
    name: &'static str,
    failure: Option<String>,
}

/// Answers one of the health paths, given its parts.
pub(crate) async fn answer(server: &ApiServer, parts: &[&str], query: &Query) -> Response<Body> {
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
            // The reason may name hosts; it is in the log, not in an answer that anyone may read.
            Some(_) => lines.push_str(&format!("[-]{} failed: reason withheld\n", check.name)),
        }
    }
    let verdict = if failed { "failed" } else { "passed" };
    lines.push_str(&format!("{endpoint} check {verdict}\n"));
    text(if failed { 500 } else { 200 }, lines)
}

/// Makes all checks, for the metrics that tell of them.
pub(crate) async fn check(server: &ApiServer) {
    checks(server, "readyz").await;
}

/// A server that is alive but cannot reach its store is not to be restarted, only not to be used.
async fn checks(server: &ApiServer, endpoint: &'static str) -> Vec<Check> {
    let mut checks = vec![Check { name: "ping", failure: None }];
    let store = server.objects().store();
    if endpoint != "livez" {
        let failure = failure(async { store.status().await.map(drop) }).await;
        if let Some(reason) = &failure {
            tracing::warn!(reason, "the store does not answer");
        }
        checks.push(Check { name: "etcd", failure });
    }
    if endpoint == "readyz" {
        // A store that takes no writes can still be read from, but the server is of little use.
        let failure = failure(store.ready()).await;
        if let Some(reason) = &failure {
            tracing::warn!(reason, "the store is not ready");
        }
        checks.push(Check { name: "etcd-readiness", failure });
        let failure = server.core.is_stopping().then(|| "the server is about to stop".to_string());
        checks.push(Check { name: "shutdown", failure });
    }
    // A server that has yet to report its storage versions lives, but is not to be sent writes.
    let settled = endpoint == "livez" || server.agreement().is_registered() && server.core.startup().is_done();
    let failure = (!settled).then(|| "the storage versions are not reported yet".to_string());
    checks.push(Check { name: storage_version::READINESS, failure });
    for check in &checks {
        server.metrics().health_checked(endpoint, check.name, check.failure.is_none());
    }
    checks
}

/// Why the store is not as it should be.
async fn failure(answer: impl Future<Output = Result<(), StoreError>>) -> Option<String> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {PATIENCE:?}")),
    }
}

fn text(code: u16, body: String) -> Response<Body> {
    render::bytes_answer(code, body.into_bytes(), "text/plain; charset=utf-8")
}
