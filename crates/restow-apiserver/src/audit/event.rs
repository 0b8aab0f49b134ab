//! One request in the audit log.

use super::AuditLog;
use crate::error::ApiError;
use crate::error::status::status_of;
use crate::request::headers;
use crate::request::request_info::Target;
use http::{HeaderMap, header};
use jiff::Timestamp;
use restow_auth::User;
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::sync::Arc;

/// How many of the addresses that a request says it came by are told, beside the one that it came from.
const MOST_SOURCES: usize = 16;
/// How much of a URI is told.
const LONGEST_URI: usize = 8 << 10;

/// What is known of a request before anyone has looked at it.
pub(crate) struct Asking<'a> {
    pub(crate) method: &'a http::Method,
    pub(crate) uri: &'a http::Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) address: IpAddr,
}

/// A line of the log that is not complete yet.
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
    /// What admission has to say about the request.
    annotations: Map<String, Value>,
}

impl PendingEvent {
    /// Begins a line.
    pub(crate) fn begin(log: Arc<AuditLog>, asking: &Asking<'_>) -> Self {
        let text = |name: &str| headers::text(asking.headers, name).unwrap_or_default();
        let given = text("audit-id");
        let id = match given.is_empty() || given.len() > 64 {
            true => uuid::Uuid::new_v4().to_string(),
            false => given.to_string(),
        };
        let forwarded = text("x-forwarded-for");
        let forwarded = forwarded.split(',').map(str::trim).filter_map(|part| part.parse::<IpAddr>().ok());
        let mut source: Vec<String> = forwarded.take(MOST_SOURCES).map(|address| address.to_string()).collect();
        source.push(asking.address.to_string());
        PendingEvent {
            log,
            id,
            received: Timestamp::now(),
            uri: asking.uri.path_and_query().map_or("/", |path| path.as_str()).chars().take(LONGEST_URI).collect(),
            method: asking.method.as_str().to_ascii_lowercase(),
            agent: text(header::USER_AGENT.as_str()).chars().take(1024).collect(),
            source,
            user: None,
            impersonated: None,
            failure: None,
            decision: None,
            annotations: Map::new(),
        }
    }

    /// What tells this request from any other.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Who asks, and whom they act as.
    pub(crate) fn asked_by(&mut self, user: User, impersonated: Option<User>) {
        (self.user, self.impersonated) = (Some(user), impersonated);
    }

    /// Whoever asks may do it.
    pub(crate) fn allowed(&mut self) {
        self.decision = Some("allow");
    }

    /// Adds what admission has to say.
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

    /// Completes the line and hands it over.
    pub(crate) fn complete(&mut self, target: &Target, code: u16) {
        let mut line = self.line(target, code, Timestamp::now()).to_string().into_bytes();
        line.push(b'\n');
        self.log.add(line);
    }

    fn line(&mut self, target: &Target, code: u16, now: Timestamp) -> Value {
        let mut status = self.failure.take().unwrap_or_default();
        // What is wrong with a secret may quote it, once the request has been let through to it.
        if self.decision == Some("allow") && matches!(target, Target::Resource(target) if target.resource == "secrets")
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
                Target::Resource(target) => target.verb.as_str(),
                Target::Path(_) => &self.method,
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

fn object_reference(target: &Target) -> Option<Value> {
    let Target::Resource(target) = target else { return None };
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
    fn a_line_does_not_grow_with_what_a_stranger_sends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Arc::new(AuditLog::open(AuditConfig { path, max_bytes: 1 << 20, max_backups: 1 }).unwrap());
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", vec!["10.0.0.7"; 10_000].join(",").parse().unwrap());
        headers.insert("user-agent", "x".repeat(100_000).parse().unwrap());
        let uri: http::Uri = format!("/version?{}", "x".repeat(60_000)).parse().unwrap();
        let method = http::Method::GET;
        let asking = Asking { method: &method, uri: &uri, headers: &headers, address: IpAddr::from([127, 0, 0, 1]) };
        let mut event = PendingEvent::begin(log, &asking);
        let line = event.line(&target(&method, uri.path(), false), 401, Timestamp::now());
        assert_eq!(line["sourceIPs"].as_array().unwrap().len(), MOST_SOURCES + 1);
        assert_eq!(line["sourceIPs"][MOST_SOURCES], "127.0.0.1", "where it came from is always told");
        assert_eq!(line["requestURI"].as_str().unwrap().len(), LONGEST_URI);
    }

    #[test]
    fn a_line_says_who_did_what_and_holds_no_credential() {
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
        let asking = Asking { method: &method, uri: &uri, headers: &headers, address: IpAddr::from([127, 0, 0, 1]) };
        let mut event = PendingEvent::begin(log.clone(), &asking);
        event.asked_by(User::named("anna").with_group("people"), Some(User::named("ben")));
        event.allowed();
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
