//! The record of a request, for the metrics and the audit log. It is complete when the response has ended.

use crate::audit::{PendingEvent, RequestOrigin};
use crate::discovery::aggregation::KnownResource;
use crate::error::ApiError;
use crate::http::body::{Body, StreamKind};
use crate::metrics::{LongRunning, Metrics, RequestLabels};
use crate::request::request_info::{RequestTarget, ResourceTarget};
use crate::resource::{Resource, Verb};
use crate::server::ApiServer;
use http::header::HeaderName;
use http::{HeaderValue, Response};
use restow_auth::User;
use std::sync::Arc;
use std::time::Instant;

/// The code of a request whose client disconnected before the response.
const NO_RESPONSE: u16 = 0;

/// Paths with a label of their own in the metrics. Clients must not be able to create labels.
const PATHS: [&str; 10] =
    ["/healthz", "/livez", "/readyz", "/version", "/metrics", "/openapi/v2", "/openapi/v3", "/openid", "/apis", "/api"];

/// The record of a request. Dropping it completes it.
pub(crate) struct RequestRecord {
    metrics: Arc<Metrics>,
    begun: Instant,
    method: &'static str,
    target: RequestTarget,
    resource: RecordedResource,
    dry_run: bool,
    code: u16,
    long_running: Option<LongRunning>,
    audit: Option<PendingEvent>,
}

/// The parts of a request that are recorded.
pub(crate) struct RecordedRequest<'a> {
    pub(crate) origin: RequestOrigin<'a>,
    pub(crate) target: &'a RequestTarget,
    /// The resource, if it is served.
    pub(crate) resource: RecordedResource,
    pub(crate) dry_run: bool,
}

/// The resource of a request.
pub(crate) enum RecordedResource {
    /// This server serves it.
    Served(Arc<Resource>),
    /// Another server serves its group-version; with what that server is known to serve.
    Proxied(Option<KnownResource>),
    /// Nobody serves it, or the request is for another path.
    None,
}

impl RequestRecord {
    /// Begins the record of a request.
    pub(crate) fn begin(server: &ApiServer, request: RecordedRequest<'_>) -> Self {
        RequestRecord {
            metrics: server.metrics().clone(),
            begun: Instant::now(),
            method: method_label(request.origin.method),
            target: request.target.clone(),
            resource: request.resource,
            dry_run: request.dry_run,
            code: NO_RESPONSE,
            long_running: None,
            audit: server.audit().map(|log| PendingEvent::begin(log.clone(), &request.origin)),
        }
    }

    /// Records the response. A stream keeps the record until it ends.
    pub(crate) fn respond(mut self, mut response: Response<Body>) -> Response<Body> {
        self.code = response.status().as_u16();
        if let Some(id) = self.audit.as_ref().and_then(|event| HeaderValue::from_str(event.id()).ok()) {
            response.headers_mut().insert(HeaderName::from_static("audit-id"), id);
        }
        if let Body::Stream(stream) = response.body_mut() {
            if stream.kind == StreamKind::Watch {
                self.long_running = Some(self.metrics.requests.long_running(&self.labels()));
            }
            stream.record = Some(Box::new(self));
        }
        response
    }

    /// Sets the user, and whom they impersonate.
    pub(crate) fn set_user(&mut self, user: &User, impersonated: Option<&User>) {
        if let Some(event) = &mut self.audit {
            event.set_user(user.clone(), impersonated.cloned());
        }
    }

    /// The id of the request in the audit log.
    pub(crate) fn audit_id(&self) -> Option<&str> {
        self.audit.as_ref().map(PendingEvent::id)
    }

    /// The request is authorized.
    pub(crate) fn set_allowed(&mut self) {
        if let Some(event) = &mut self.audit {
            event.set_allowed();
        }
    }

    /// Adds audit annotations.
    pub(crate) fn annotate(&mut self, annotations: Vec<(String, String)>) {
        if let Some(event) = &mut self.audit {
            event.annotate(annotations);
        }
    }

    /// The request failed.
    pub(crate) fn failed(&mut self, error: &ApiError) {
        if let ApiError::TooManyRequests { .. } = error {
            self.terminated(429);
        }
        if let Some(event) = &mut self.audit {
            event.failed(error);
        }
    }

    /// The server rejected or ended the request to protect itself.
    pub(crate) fn terminated(&self, code: u16) {
        self.metrics.requests.terminated(&self.labels(), code);
    }

    fn labels(&self) -> RequestLabels<'_> {
        match (&self.target, &self.resource) {
            (RequestTarget::Resource(target), RecordedResource::Served(resource)) => RequestLabels {
                verb: verb_label(target.verb),
                dry_run: self.dry_run,
                group: &target.group,
                version: &target.version,
                resource: &target.resource,
                subresource: resource.subresource(&target.subresource).map_or("", |found| &found.name),
                scope: scope_label(target),
            },
            (RequestTarget::Resource(target), RecordedResource::Proxied(known)) => RequestLabels {
                verb: verb_label(target.verb),
                dry_run: self.dry_run,
                group: &target.group,
                version: &target.version,
                resource: known.map_or("", |_| &target.resource),
                subresource: match known {
                    Some(KnownResource::Subresource) => target.subresource.split('/').next().unwrap_or_default(),
                    Some(KnownResource::Resource) | None => "",
                },
                scope: scope_label(target),
            },
            (RequestTarget::Resource(target), RecordedResource::None) => {
                RequestLabels { verb: verb_label(target.verb), scope: scope_label(target), ..RequestLabels::default() }
            }
            (RequestTarget::Path(path), _) => RequestLabels {
                verb: self.method,
                subresource: PATHS.iter().find(|known| path.starts_with(**known)).unwrap_or(&""),
                ..RequestLabels::default()
            },
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.metrics.requests.observe(&self.labels(), self.code, self.begun.elapsed());
        if let Some(mut event) = self.audit.take() {
            event.complete(&self.target, self.code);
        }
    }
}

/// The verb as Kubernetes' metrics write it: HTTP methods, and LIST, WATCH, DELETECOLLECTION.
fn verb_label(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "POST",
        Verb::Delete => "DELETE",
        Verb::DeleteCollection => "DELETECOLLECTION",
        Verb::Get => "GET",
        Verb::List => "LIST",
        Verb::Patch => "PATCH",
        Verb::Update => "PUT",
        Verb::Watch => "WATCH",
    }
}

fn method_label(method: &http::Method) -> &'static str {
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        .into_iter()
        .find(|known| *known == method.as_str())
        .unwrap_or("other")
}

fn scope_label(target: &ResourceTarget) -> &'static str {
    match target {
        _ if !target.name.is_empty() || target.verb == Verb::Create => "resource",
        _ if !target.namespace.is_empty() => "namespace",
        _ => "cluster",
    }
}
