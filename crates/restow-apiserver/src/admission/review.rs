//! AdmissionReview: the request to a webhook, and its response.

use crate::admission::rule::AdmissionSubject;
use crate::error::ApiError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_auth::User;
use serde_json::{Map, Value, json};

/// A request for review, in the version of the webhook or policy.
pub(crate) struct Review<'a> {
    pub(crate) subject: &'a AdmissionSubject<'a>,
    /// The version of the objects in it.
    pub(crate) version: &'a GroupVersion,
    pub(crate) user: &'a User,
    pub(crate) namespace: &'a str,
    pub(crate) object: Option<&'a Object>,
    pub(crate) old: Option<&'a Object>,
    pub(crate) dry_run: bool,
}

/// The response of a webhook.
#[derive(Debug, PartialEq)]
pub(crate) struct WebhookResponse {
    /// The patch, if any.
    pub(crate) patch: Option<json_patch::Patch>,
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
    /// Annotations for the audit log.
    pub(crate) annotations: Vec<(String, String)>,
    /// The status, if the request is denied.
    pub(crate) denial: Option<Value>,
}

impl Review<'_> {
    /// The request as webhooks and policies see it.
    pub(crate) fn request(&self, uid: &str) -> Value {
        let subject = self.subject;
        let plural = subject.resource.group_resource.resource();
        let kind = |version: &GroupVersion| {
            let (version, kind) = subject.foreign_kind().unwrap_or((version, &subject.resource.names.kind));
            json!({"group": version.group(), "version": version.version(), "kind": kind})
        };
        let resource = |version: &GroupVersion| json!({"group": version.group(), "version": version.version(), "resource": plural});
        let mut request = json!({
            "uid": uid,
            "kind": kind(self.version), "resource": resource(self.version),
            "requestKind": kind(subject.version), "requestResource": resource(subject.version),
            "operation": subject.operation.as_str(), "userInfo": self.user.to_user_info(), "dryRun": self.dry_run,
            "object": self.object.map(|object| object.clone().into_value()),
            "oldObject": self.old.map(|object| object.clone().into_value()),
            "options": {"kind": subject.operation.options_kind(), "apiVersion": "meta.k8s.io/v1"},
        });
        for (field, value) in [
            ("name", subject.name),
            ("namespace", self.namespace),
            ("subResource", subject.subresource),
            ("requestSubResource", subject.subresource),
        ] {
            if !value.is_empty() {
                request[field] = value.into();
            }
        }
        request
    }

    /// The AdmissionReview for a webhook.
    pub(crate) fn body(&self, uid: &str, review_version: &str) -> Value {
        json!({
            "kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{review_version}"),
            "request": self.request(uid),
        })
    }
}

/// Parses the response, or says what is wrong with it.
pub(crate) fn parse_response(answer: &Value, uid: &str, review_version: &str) -> Result<WebhookResponse, String> {
    let version = format!("admission.k8s.io/{review_version}");
    if review_version == "v1" && (answer["kind"] != "AdmissionReview" || answer["apiVersion"] != version) {
        return Err(format!(
            "expected webhook response of {version}, Kind=AdmissionReview, got {}, Kind={}",
            answer["apiVersion"].as_str().unwrap_or_default(),
            answer["kind"].as_str().unwrap_or_default()
        ));
    }
    let response = answer["response"].as_object().ok_or("webhook response was absent")?;
    let text = |field: &str| response.get(field).and_then(Value::as_str).unwrap_or_default();
    if review_version == "v1" && text("uid") != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", text("uid")));
    }
    let allowed = response.get("allowed").and_then(Value::as_bool).unwrap_or(false);
    Ok(WebhookResponse {
        patch: patch(response, review_version)?.filter(|_| allowed),
        warnings: strings(response.get("warnings")),
        annotations: match response.get("auditAnnotations").and_then(Value::as_object) {
            Some(fields) => {
                fields.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.into()))).collect()
            }
            None => Vec::new(),
        },
        denial: (!allowed).then(|| response.get("status").cloned().unwrap_or_default()),
    })
}

fn patch(response: &Map<String, Value>, review_version: &str) -> Result<Option<json_patch::Patch>, String> {
    let Some(encoded) = response.get("patch").and_then(Value::as_str).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let kind = response.get("patchType").and_then(Value::as_str).unwrap_or_default();
    if kind != "JSONPatch" && review_version == "v1" {
        return Err(format!("webhook returned response.patchType={kind:?}, only JSONPatch is supported"));
    }
    let bytes = STANDARD.decode(encoded).map_err(|error| format!("the patch is not base64: {error}"))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| format!("the patch is unreadable: {error}"))
}

fn strings(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_string).collect()
}

/// The error for a request that a webhook denied.
pub(crate) fn denial(webhook: &str, status: &Value) -> ApiError {
    let denied = format!("admission webhook {webhook:?} denied the request");
    let text = |field: &str| status[field].as_str().unwrap_or_default();
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{denied} without explanation"),
        ("", why) | (why, _) => format!("{denied}: {why}"),
    };
    // A denial cannot have a success code.
    let code =
        status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| (400..600).contains(code));
    ApiError::Denied {
        code: code.unwrap_or(if status["code"].is_null() { 403 } else { 400 }),
        reason: text("reason").to_string(),
        message,
        details: status.get("details").cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(response: Value) -> Value {
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response})
    }

    #[test]
    fn a_response_allows_patches_warns_or_denies() {
        let patch = STANDARD.encode(r#"[{"op":"add","path":"/a","value":1}]"#);
        let response = parse_response(
            &answer(json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": ["w"],
                "auditAnnotations": {"k": "v"}})),
            "u",
            "v1",
        )
        .unwrap();
        assert_eq!(response.patch.unwrap().0.len(), 1);
        assert_eq!((response.warnings, response.annotations), (vec!["w".into()], vec![("k".into(), "v".into())]));
        assert_eq!(response.denial, None);
        let denied =
            parse_response(&answer(json!({"uid": "u", "allowed": false, "status": {"message": "no"}})), "u", "v1");
        assert_eq!(
            denial("a.example", &denied.unwrap().denial.unwrap()).to_string(),
            "admission webhook \"a.example\" denied the request: no"
        );
        assert_eq!(
            denial("a.example", &Value::Null).to_string(),
            "admission webhook \"a.example\" denied the request without explanation"
        );
    }

    #[test]
    fn malformed_responses_are_refused() {
        for (response, part) in [
            (json!({"kind": "Pod"}), "expected webhook response of admission.k8s.io/v1"),
            (json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}), "response was absent"),
            (answer(json!({"uid": "other", "allowed": true})), "expected response.uid=\"u\""),
            (answer(json!({"uid": "u", "allowed": true, "patch": "e30="})), "only JSONPatch"),
            (answer(json!({"uid": "u", "allowed": true, "patch": "!", "patchType": "JSONPatch"})), "not base64"),
            (answer(json!({"uid": "u", "allowed": true, "patch": "e30=", "patchType": "JSONPatch"})), "unreadable"),
        ] {
            let error = parse_response(&response, "u", "v1").unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
