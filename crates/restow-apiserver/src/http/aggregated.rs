//! Requests for what other API servers serve: their timeouts, and their responses as this server sends them on.

use crate::aggregator::{BackendError, KnownApiService, Origin, ProxiedBody, Tunnel, is_upgrade};
use crate::error::ApiError;
use crate::flow_control::limits::InFlightPermit;
use crate::handlers::Interrupted;
use crate::http::body::{Body, StreamKind};
use crate::http::connections::Peer;
use crate::http::record::RequestRecord;
use crate::http::render;
use crate::request::request_info::RequestTarget;
use crate::resource::Verb;
use crate::server::ApiServer;
use crate::serving::{Connection, ResponseGuard};
use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use restow_auth::User;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a request for a document of discovery may take, as in Kubernetes.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Subresources whose requests may take as long as they want, as in Kubernetes.
const LASTING: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// A request for what another server serves.
pub(super) struct Proxied<'a> {
    pub(super) service: &'a KnownApiService,
    pub(super) peer: &'a Peer,
    pub(super) user: &'a User,
    pub(super) ends: Ends,
}

/// When the response to a request ends, if nobody ends it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// At this time.
    By(Instant),
    /// When this server stops. Its clients watch again from where it ended.
    Watch,
    /// When this server stops; but then it is not complete.
    Incomplete,
}

/// The APIService of a target that another server serves.
pub(super) fn find(server: &ApiServer, target: &RequestTarget) -> Option<Arc<KnownApiService>> {
    match target {
        RequestTarget::Resource(target) => server.aggregator().find(&target.group, &target.version),
        RequestTarget::Path(path) => {
            let (group, version) = document_of(path)?;
            server.aggregator().find(group, version)
        }
    }
}

/// The group and version of a document of discovery or OpenAPI. No other path that is not a resource is passed on: a server that
/// merges slashes or knows more methods could take it for a resource, which was not authorized. People end it with a slash.
fn document_of(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let rest = path.strip_prefix("/openapi/v3/apis/").or_else(|| path.strip_prefix("/apis/"))?;
    rest.split_once('/').filter(|(group, version)| !group.is_empty() && !version.is_empty() && !version.contains('/'))
}

/// Refuses a path that another server may resolve to one that was not authorized.
pub(super) fn check_path(target: &RequestTarget) -> Result<(), ApiError> {
    let RequestTarget::Resource(target) = target else { return Ok(()) };
    let own = [&target.namespace, &target.resource, &target.name].into_iter().map(String::as_str);
    match own.chain(target.subresource.split('/')).any(|segment| matches!(segment, "." | "..")) {
        true => Err(ApiError::NoSuchPath),
        false => Ok(()),
    }
}

/// Whether a request to another server may last as long as its client wants.
pub(super) fn lasts<B>(target: &RequestTarget, request: &Request<B>) -> bool {
    match target {
        _ if is_upgrade(request) => true,
        RequestTarget::Resource(target) => {
            let subresource = target.subresource.split('/').next().unwrap_or_default();
            target.verb == Verb::Watch || LASTING.contains(&subresource)
        }
        RequestTarget::Path(_) => false,
    }
}

/// How long a request to another server may take: less for discovery, so that clients that ask every server do not wait.
pub(super) fn timeout(target: &RequestTarget, requested: Duration) -> Duration {
    match target {
        RequestTarget::Path(path) if path.starts_with("/apis/") => requested.min(DISCOVERY_TIMEOUT),
        _ => requested,
    }
}

/// What a request still counts for while it waits for another server, which may never answer: a lasting one for nothing, as a
/// watch here, and any other for its own flow only.
fn while_waiting(permit: Option<InFlightPermit>, ends: Ends) -> Option<InFlightPermit> {
    let mut permit = permit.filter(|_| matches!(ends, Ends::By(_)))?;
    permit.release_shared();
    Some(permit)
}

/// Passes a request on. Errors are what kube-aggregator responds: plain text.
pub(super) async fn handle<B>(
    server: &ApiServer,
    proxied: Proxied<'_>,
    mut request: Request<B>,
    permit: Option<InFlightPermit>,
    record: &RequestRecord,
) -> Response<Body>
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let permit = while_waiting(permit, proxied.ends);
    server.access().remove_request_headers(request.headers_mut());
    let origin = Origin { user: proxied.user, address: proxied.peer.address, audit_id: record.audit_id() };
    let outcome = match proxied.service.available() {
        Err(error) => Err(error),
        Ok(backend) if is_upgrade(&request) => {
            let connection = request.extensions().get::<Connection>().cloned();
            let upgrade = backend.forward_upgrade(request, origin);
            let answer = tokio::time::timeout(server.limits().request_timeout, upgrade).await;
            answer.unwrap_or(Err(BackendError::Timeout)).map(|(response, tunnel)| {
                if let Some(tunnel) = tunnel {
                    open(server, tunnel, connection.as_ref());
                }
                response
            })
        }
        Ok(backend) => backend.forward(request, origin).await,
    };
    match outcome {
        Ok(response) => sent_on(server, response, proxied.ends, permit),
        Err(error) => failure(&error, proxied.service, record),
    }
}

/// Lets a tunnel run until one of its ends closes it, or the server stops. Its connection counts as long.
fn open(server: &ApiServer, tunnel: Tunnel, connection: Option<&Connection>) {
    let (held, stopping) = (connection.map(Connection::hold), server.core.stopping());
    server.core.spawn(async move {
        let _held = held;
        tokio::select! {
            biased;
            () = stopping => {}
            () = tunnel.run() => {}
        }
    });
}

/// The response of another server as a stream.
fn sent_on(
    server: &ApiServer,
    response: Response<ProxiedBody>,
    ends: Ends,
    permit: Option<InFlightPermit>,
) -> Response<Body> {
    let is_empty = response.body().is_end_stream() || response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let mut response = response.map(|body| {
        let chunks = body.into_data_stream().map(|chunk| chunk.map_err(|_| Interrupted)).boxed();
        let stopping = server.core.stopping();
        match ends {
            _ if is_empty => Body::Whole(Bytes::new()),
            Ends::By(deadline) => {
                Body::stream(StreamKind::Document, interrupted_by(tokio::time::sleep_until(deadline), chunks))
            }
            Ends::Watch => Body::stream(StreamKind::Watch, chunks.take_until(stopping)),
            Ends::Incomplete => Body::stream(StreamKind::Watch, interrupted_by(stopping, chunks)),
        }
    });
    if let Some(permit) = permit {
        response.extensions_mut().insert(ResponseGuard::new(permit));
    }
    response
}

/// The chunks, and an error when something ends them before they are complete.
fn interrupted_by(
    interruption: impl Future<Output = ()> + Send + 'static,
    chunks: BoxStream<'static, Result<Bytes, Interrupted>>,
) -> impl futures::Stream<Item = Result<Bytes, Interrupted>> + Send + 'static {
    stream::unfold(Some((interruption.boxed(), chunks)), |rest| async move {
        let (mut interruption, mut chunks) = rest?;
        let chunk = tokio::select! {
            biased;
            () = &mut interruption => Some(Err(Interrupted)),
            chunk = chunks.next() => chunk,
        };
        let rest = Some((interruption, chunks)).filter(|_| matches!(chunk, Some(Ok(_))));
        Some((chunk?, rest))
    })
}

fn failure(error: &BackendError, service: &KnownApiService, record: &RequestRecord) -> Response<Body> {
    tracing::debug!(%error, version = %service.version(), "a request could not be passed on");
    let code = match error {
        BackendError::Unavailable | BackendError::Exchange(_) => 503,
        BackendError::Timeout => 504,
        BackendError::Configuration(_) => 500,
        BackendError::Redirect => 502,
        BackendError::Loop => 508,
    };
    record.terminated(code);
    let mut response = render::bytes_response(code, format!("{error}\n"), "text/plain; charset=utf-8");
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_documents_of_a_group_version_are_passed_on_without_a_resource() {
        let check = |path: &str, expected| assert_eq!(document_of(path), expected, "{path}");
        check("/apis/a.example/v1", Some(("a.example", "v1")));
        check("/openapi/v3/apis/a.example/v1", Some(("a.example", "v1")));
        check("/apis/a.example/v1/", Some(("a.example", "v1")));
        for path in [
            "/apis/a.example/v1//",
            "/apis/a.example/v1//secrets",
            "/apis/a.example/v1//../v1/secrets",
            "/apis/a.example/v1/secrets",
            "/apis//v1",
            "/apis/a.example/",
            "/apis/a.example",
            "//apis/a.example/v1",
            "/api/a.example/v1",
            "/openapi/v3/apis/a.example/v1/x",
        ] {
            check(path, None);
        }
    }
}
