//! One event of the audit log, which is one request.

use super::AuditLog;
use crate::error::ApiError;
use crate::error::status::status_of;
use crate::request::headers;
use crate::request::request_info::RequestTarget;
use http::{HeaderMap, header};
use jiff::Timestamp;
use restow_auth::User;
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::sync::Arc;

/// How many addresses of `X-Forwarded-For` are logged, beside the one of the connection.
const MAX_SOURCES: usize = 16;
/// How many characters of a URI are logged.
const MAX_URI: usize = 8 << 10;

/// Method, URI, headers and address of a request.
pub(crate) struct RequestOrigin<'a> {
    pub(crate) method: &'a http::Method,
    pub(crate) uri: &'a http::Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) address: IpAddr,
}

/// An event whose request is not complete yet.
pub(crate) struct PendingEvent {
    log: Arc<AuditLog>,
    id: String,
    received: Timestamp,
    uri: String,
    method: String,
    agent: String,
    source: Vec<String>,
    user: Option<User>,
    impersonated: Option<User>,
    failure: Option<Map<String, Value>>,
    decision: Option<&'static str>,
    /// Annotations of admission.
    annotations: Map<String, Value>,
}

impl PendingEvent {
    /// Begins an event.
    pub(crate) fn begin(log: Arc<AuditLog>, origin: &RequestOrigin<'_>) -> Self {
        let text = |name: &str| headers::text(origin.headers, name).unwrap_or_default();
        let given = text("audit-id");
        let id = match given.is_empty() || given.len() > 64 {
            true => restow_host::uuid().to_string(),
            false => given.to_string(),
        };
        let forwarded = text("x-forwarded-for");
        let forwarded = forwarded.split(',').map(str::trim).filter_map(|part| part.parse::<IpAddr>().ok());
        let mut source: Vec<String> = forwarded.take(MAX_SOURCES).map(|address| address.to_string()).collect();
        source.push(origin.address.to_string());
        PendingEvent {
            log,
            id,
            received: restow_host::now(),
            uri: origin.uri.path_and_query().map_or("/", |path| path.as_str()).chars().take(MAX_URI).collect(),
            method: origin.method.as_str().to_ascii_lowercase(),
            agent: text(header::USER_AGENT.as_str()).chars().take(1024).collect(),
            source,
            user: None,
            impersonated: None,
            failure: None,
            decision: None,
            annotations: Map::new(),
        }
    }

    /// The audit ID of the request.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Sets the user, and whom they impersonate.
    pub(crate) fn set_user(&mut self, user: User, impersonated: Option<User>) {
        (self.user, self.impersonated) = (Some(user), impersonated);
    }

    /// The request is authorized.
    pub(crate) fn set_allowed(&mut self) {
        self.decision = Some("allow");
    }

    /// Adds annotations of admission.
    pub(crate) fn annotate(&mut self, annotations: Vec<(String, String)>) {
        self.annotations.extend(annotations.into_iter().map(|(key, value)| (key, value.into())));
    }

    /// The request failed.
    pub(crate) fn failed(&mut self, error: &ApiError) {
        if let ApiError::Forbidden { .. } | ApiError::ForbiddenPath(_) = error {
            self.decision.get_or_insert("forbid");
        }
        let status = status_of(error).body;
        let kept = ["status", "message", "reason"].map(|field| (field.to_string(), status[field].clone()));
        self.failure = Some(kept.into_iter().collect());
    }

    /// Completes the event and adds it to the log.
    pub(crate) fn complete(&mut self, target: &RequestTarget, code: u16) {
        let mut line = self.line(target, code, restow_host::now()).to_string().into_bytes();
        line.push(b'\n');
        self.log.add(line);
    }

    fn line(&mut self, target: &RequestTarget, code: u16, now: Timestamp) -> Value {
        let mut status = self.failure.take().unwrap_or_default();
        // An error message about a secret may quote it, once the request is authorized.
        if self.decision == Some("allow")
            && matches!(target, RequestTarget::Resource(target) if target.resource == "secrets")
        {
            status.remove("message");
        }
        status.insert("metadata".into(), json!({}));
        status.insert("code".into(), code.into());
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "stage": "ResponseComplete",
            "auditID": self.id, "requestURI": self.uri, "sourceIPs": self.source, "userAgent": self.agent,
            "responseStatus": status,
            "requestReceivedTimestamp": format!("{:.6}", self.received), "stageTimestamp": format!("{now:.6}"),
            "verb": match target {
                RequestTarget::Resource(target) => target.verb.as_str(),
                RequestTarget::Path(_) => &self.method,
            },
            "user": self.user.as_ref().map_or_else(|| json!({}), User::to_user_info),
        });
        if let Some(user) = &self.impersonated {
            event["impersonatedUser"] = user.to_user_info();
        }
        if let Some(reference) = object_reference(target) {
            event["objectRef"] = reference;
        }
        let mut annotations = std::mem::take(&mut self.annotations);
        if let Some(decision) = self.decision {
            annotations.insert("authorization.k8s.io/decision".into(), decision.into());
        }
        if !annotations.is_empty() {
            event["annotations"] = annotations.into();
        }
        event
    }
}

fn object_reference(target: &RequestTarget) -> Option<Value> {
    let RequestTarget::Resource(target) = target else { return None };
    let mut reference = json!({"resource": target.resource, "apiVersion": target.version});
    for (field, text) in [
        ("namespace", &target.namespace),
        ("name", &target.name),
        ("apiGroup", &target.group),
        ("subresource", &target.subresource),
    ] {
        if !text.is_empty() {
            reference[field] = text.clone().into();
        }
    }
    Some(reference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::AuditConfig;
    use crate::request::request_info::target;

    #[test]
    fn an_audit_line_is_bounded_for_anonymous_requests() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Arc::new(AuditLog::open(AuditConfig { path, max_bytes: 1 << 20, max_backups: 1 }).unwrap());
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", vec!["10.0.0.7"; 10_000].join(",").parse().unwrap());
        headers.insert("user-agent", "x".repeat(100_000).parse().unwrap());
        let uri: http::Uri = format!("/version?{}", "x".repeat(60_000)).parse().unwrap();
        let method = http::Method::GET;
        let origin =
            RequestOrigin { method: &method, uri: &uri, headers: &headers, address: IpAddr::from([127, 0, 0, 1]) };
        let mut event = PendingEvent::begin(log, &origin);
        let line = event.line(&target(&method, uri.path(), false), 401, restow_host::now());
        assert_eq!(line["sourceIPs"].as_array().unwrap().len(), MAX_SOURCES + 1);
        assert_eq!(line["sourceIPs"][MAX_SOURCES], "127.0.0.1", "the address of the connection is always logged");
        assert_eq!(line["requestURI"].as_str().unwrap().len(), MAX_URI);
    }

    #[test]
    fn an_audit_line_has_the_user_and_verb_and_no_credentials() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log =
            Arc::new(AuditLog::open(AuditConfig { path: path.clone(), max_bytes: 1 << 20, max_backups: 1 }).unwrap());
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer hunter2".parse().unwrap());
        headers.insert("user-agent", "test/1".parse().unwrap());
        headers.insert("x-forwarded-for", "10.0.0.7, nonsense".parse().unwrap());
        let uri: http::Uri = "/api/v1/namespaces/a/secrets/s?dryRun=All".parse().unwrap();
        let method = http::Method::PUT;
        let origin =
            RequestOrigin { method: &method, uri: &uri, headers: &headers, address: IpAddr::from([127, 0, 0, 1]) };
        let mut event = PendingEvent::begin(log.clone(), &origin);
        event.set_user(User::named("anna").with_group("people"), Some(User::named("ben")));
        event.set_allowed();
        event.failed(&ApiError::BadRequest("the secret is hunter2".into()));
        event.complete(&target(&method, uri.path(), false), 400);
        drop((event, log));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("hunter2"), "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["verb"], "update");
        assert_eq!(line["user"], json!({"username": "anna", "groups": ["people"]}));
        assert_eq!(line["impersonatedUser"]["username"], "ben");
        assert_eq!(line["sourceIPs"], json!(["10.0.0.7", "127.0.0.1"]));
        assert_eq!(
            line["objectRef"],
            json!({"resource": "secrets", "namespace": "a", "name": "s", "apiVersion": "v1"})
        );
        assert_eq!(line["responseStatus"]["reason"], "BadRequest");
        assert_eq!(line["annotations"]["authorization.k8s.io/decision"], "allow");
        assert_eq!(line["requestURI"], "/api/v1/namespaces/a/secrets/s?dryRun=All");
    }
}
