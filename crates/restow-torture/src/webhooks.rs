//! The webhooks of a world: one host that converts, mutates and validates widgets, and misbehaves when an event says so.

use crate::dice::Dice;
use rand::Rng;
use restow_host::simulated::{Outbound, OutboundResponse};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How webhooks misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookFault {
    /// Nobody listens.
    Down,
    /// They never answer.
    Hang,
    /// Admission denies updates, and conversion fails.
    Refuse,
    /// Admission denies some updates.
    RefuseSome,
    /// Admission changes the object on every write.
    Mutate,
}

impl WebhookFault {
    pub(crate) const ALL: [WebhookFault; 5] =
        [WebhookFault::Down, WebhookFault::Hang, WebhookFault::Refuse, WebhookFault::RefuseSome, WebhookFault::Mutate];
}

/// The URL of the host.
const URL: &str = "https://webhooks.example.com";
/// The annotation that the mutating webhook sets while it misbehaves.
pub(crate) const ANNOTATION: &str = "webhook";

/// The host of the webhooks.
#[derive(Debug)]
pub(crate) struct Webhooks {
    dice: Arc<Dice>,
    fault: Mutex<Option<(WebhookFault, Instant)>>,
}

impl Webhooks {
    pub(crate) fn new(dice: Arc<Dice>) -> Arc<Self> {
        Arc::new(Webhooks { dice, fault: Mutex::default() })
    }

    /// They misbehave for so long.
    pub(crate) fn misbehave(&self, fault: WebhookFault, time: Duration) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some((fault, Instant::now() + time));
    }

    /// They behave again.
    pub(crate) fn heal(&self) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn fault(&self) -> Option<WebhookFault> {
        let fault = *self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.filter(|(_, until)| *until > Instant::now()).map(|(fault, _)| fault)
    }
}

/// The conversion of the CRD.
pub(crate) fn conversion() -> Value {
    let client = json!({"url": format!("{URL}/convert")});
    json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}})
}

/// The webhook configurations: collection and object.
pub(crate) fn configurations() -> [(&'static str, Value); 2] {
    let configuration = |kind: &str, path: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "widgets"},
            "webhooks": [{
                "name": "widgets.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "timeoutSeconds": 5, "clientConfig": {"url": format!("{URL}{path}")},
                "rules": [{
                    "apiGroups": ["example.com"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
                    "resources": ["widgets"],
                }],
            }],
        })
    };
    [
        (
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            configuration("MutatingWebhookConfiguration", "/mutate"),
        ),
        (
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
            configuration("ValidatingWebhookConfiguration", "/validate"),
        ),
    ]
}

impl Outbound for Webhooks {
    fn post(&self, url: &str, body: Vec<u8>) -> OutboundResponse {
        let (fault, dice, url) = (self.fault(), self.dice.clone(), url.to_owned());
        Box::pin(async move {
            dice.under_way().await;
            match fault {
                Some(WebhookFault::Down) => return Err("connection refused".to_owned()),
                Some(WebhookFault::Hang) => std::future::pending().await,
                _ => {}
            }
            let review: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
            let response = match url.starts_with(&format!("{URL}/convert")) {
                true => converted(&review, fault),
                false => admitted(&review, fault, url.starts_with(&format!("{URL}/mutate")), &dice),
            };
            let answer = json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response});
            dice.under_way().await;
            Ok((200, answer.to_string().into_bytes()))
        })
    }
}

fn converted(review: &Value, fault: Option<WebhookFault>) -> Value {
    let request = &review["request"];
    if fault == Some(WebhookFault::Refuse) {
        return json!({"uid": request["uid"], "result": {"status": "Failed", "message": "not today"}});
    }
    let objects = request["objects"].as_array().into_iter().flatten().map(|object| {
        let mut object = object.clone();
        object["apiVersion"] = request["desiredAPIVersion"].clone();
        object
    });
    let objects: Vec<Value> = objects.collect();
    json!({"uid": request["uid"], "convertedObjects": objects, "result": {"status": "Success"}})
}

fn admitted(review: &Value, fault: Option<WebhookFault>, is_mutating: bool, dice: &Dice) -> Value {
    let request = &review["request"];
    let mut response = json!({"uid": request["uid"], "allowed": true});
    let refuses = match fault {
        Some(WebhookFault::Refuse) => true,
        Some(WebhookFault::RefuseSome) => dice.roll().random_bool(0.5),
        _ => false,
    };
    match fault {
        _ if refuses && request["operation"] == "UPDATE" => {
            response["allowed"] = false.into();
            response["status"] = json!({"code": 403, "message": "not today"});
        }
        Some(WebhookFault::Mutate) if is_mutating && request["object"]["metadata"]["annotations"].is_object() => {
            let number = dice.roll().random_range(0..u64::MAX).to_string();
            let patch = json!([{"op": "add", "path": format!("/metadata/annotations/{ANNOTATION}"), "value": number}]);
            response["patchType"] = "JSONPatch".into();
            response["patch"] = base64(&patch.to_string()).into();
        }
        _ => {}
    }
    response
}

fn base64(text: &str) -> String {
    use ::base64::Engine;
    ::base64::engine::general_purpose::STANDARD.encode(text)
}
