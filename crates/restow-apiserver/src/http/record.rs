//! What is remembered of a request until it is over, for the metrics and the audit log.

use crate::audit::{Asking, PendingEvent};
use crate::error::ApiError;
use crate::http::body::{Body, StreamKind};
use crate::metrics::{Described, LongRunning, Metrics};
use crate::request::request_info::{ResourceTarget, Target};
use crate::resource::{Resource, Verb};
use crate::server::ApiServer;
use http::header::HeaderName;
use http::{HeaderValue, Response};
use restow_auth::User;
use std::sync::Arc;
use std::time::Instant;

/// The code of a request whose client went away before it was answered.
const UNANSWERED: u16 = 0;

/// Paths that are told apart in the metrics. There must not be a label for whatever path a client makes up.
const PATHS: [&str; 10] =
    ["/healthz", "/livez", "/readyz", "/version", "/metrics", "/openapi/v2", "/openapi/v3", "/openid", "/apis", "/api"];

/// What is remembered of a request. When it is dropped, the request is over.
pub(crate) struct Record {
    metrics: Arc<Metrics>,
    begun: Instant,
    method: &'static str,
    target: Target,
    resource: Option<Arc<Resource>>,
    dry_run: bool,
    code: u16,
    long_running: Option<LongRunning>,
    audit: Option<PendingEvent>,
}

/// What a request is about, as far as a record needs to know.
pub(crate) struct Subject<'a> {
    pub(crate) asking: Asking<'a>,
    pub(crate) target: &'a Target,
    /// The resource, where it is one that is served.
    pub(crate) resource: Option<Arc<Resource>>,
    pub(crate) dry_run: bool,
}

impl Record {
    /// Begins to remember a request.
    pub(crate) fn begin(server: &ApiServer, subject: Subject<'_>) -> Self {
        Record {
            metrics: server.metrics().clone(),
            begun: Instant::now(),
            method: method_label(subject.asking.method),
            target: subject.target.clone(),
            resource: subject.resource,
            dry_run: subject.dry_run,
            code: UNANSWERED,
            long_running: None,
            audit: server.audit().map(|log| PendingEvent::begin(log.clone(), &subject.asking)),
        }
    }

    /// The request is answered. An answer that goes on keeps the record until it ends.
    pub(crate) fn answered(mut self, mut answer: Response<Body>) -> Response<Body> {
        self.code = answer.status().as_u16();
        if let Some(id) = self.audit.as_ref().and_then(|event| HeaderValue::from_str(event.id()).ok()) {
            answer.headers_mut().insert(HeaderName::from_static("audit-id"), id);
        }
        if let Body::Stream(stream) = answer.body_mut() {
            if stream.kind == StreamKind::Changes {
                self.long_running = Some(self.metrics.requests.long_running(&self.described()));
            }
            stream.record = Some(Box::new(self));
        }
        answer
    }

    /// It is known who asks, and whom they act as.
    pub(crate) fn asked_by(&mut self, user: &User, impersonated: Option<&User>) {
        if let Some(event) = &mut self.audit {
            event.asked_by(user.clone(), impersonated.cloned());
        }
    }

    /// Whoever asks may do it.
    pub(crate) fn allowed(&mut self) {
        if let Some(event) = &mut self.audit {
            event.allowed();
        }
    }

    /// Something is to be told beside the rest.
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

    /// The server refused or ended the request to protect itself.
    pub(crate) fn terminated(&self, code: u16) {
        self.metrics.requests.terminated(&self.described(), code);
    }

    fn described(&self) -> Described<'_> {
        match (&self.target, &self.resource) {
            (Target::Resource(target), Some(resource)) => Described {
                verb: verb_label(target.verb),
                dry_run: self.dry_run,
                group: &target.group,
                version: &target.version,
                resource: &target.resource,
                subresource: resource.subresource(&target.subresource).map_or("", |found| &found.name),
                scope: scope_label(target),
            },
            (Target::Resource(target), None) => {
                Described { verb: verb_label(target.verb), scope: scope_label(target), ..Described::default() }
            }
            (Target::Path(path), _) => Described {
                verb: self.method,
                subresource: PATHS.iter().find(|known| path.starts_with(**known)).unwrap_or(&""),
                ..Described::default()
            },
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.metrics.requests.answered(&self.described(), self.code, self.begun.elapsed());
        if let Some(mut event) = self.audit.take() {
            event.complete(&self.target, self.code);
        }
    }
}

/// Kubernetes' metrics speak of HTTP's methods, with words of their own for what is done to collections.
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
