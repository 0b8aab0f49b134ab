//! Conversion by webhook: a ConversionReview goes out, converted objects come back, and are not trusted blindly.

use crate::conversion::{ConversionError, Converter};
use crate::custom::definition::{ClientConfig, Definition};
use crate::object::Object;
use crate::webhook::{Endpoint, ServiceResolver, WebhookClient, WebhookError};
use async_trait::async_trait;
use restow_api::GroupVersion;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How long a webhook may take for one review.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most objects in one review.
const BATCH: usize = 500;

/// Converts by asking a webhook.
pub(crate) struct ConvertByWebhook {
    client: WebhookClient,
    /// The version of ConversionReview that the webhook understands and we do.
    review: &'static str,
}

impl ConvertByWebhook {
    /// The webhook of a definition.
    pub(crate) fn of(definition: &Definition, resolver: Arc<dyn ServiceResolver>) -> Result<Self, WebhookError> {
        let webhook = definition.spec.conversion.webhook.as_ref();
        let missing = || WebhookError::Configuration("no webhook is configured".into());
        let webhook = webhook.ok_or_else(missing)?;
        let known = webhook.conversion_review_versions.iter().find_map(|version| match version.as_str() {
            "v1" => Some("apiextensions.k8s.io/v1"),
            "v1beta1" => Some("apiextensions.k8s.io/v1beta1"),
            _ => None,
        });
        let review =
            known.ok_or_else(|| WebhookError::Configuration("no supported conversion review versions".into()))?;
        let config = webhook.client_config.as_ref().ok_or_else(missing)?;
        let client = WebhookClient::new(endpoint(config)?, config.ca_bundle.as_deref(), resolver)?;
        Ok(ConvertByWebhook { client, review })
    }

    async fn batch(&self, objects: Vec<Object>, target: &str) -> Result<Vec<Object>, ConversionError> {
        let Some(first) = objects.first() else { return Ok(objects) };
        let kind = gvk(first);
        let whole = |reason: String| ConversionError {
            object: named(first),
            target: target.into(),
            reason: format!("conversion webhook for {kind} failed: {reason}"),
        };
        let uid = uuid::Uuid::new_v4().to_string();
        let review = json!({
            "kind": "ConversionReview", "apiVersion": self.review,
            "request": {
                "uid": uid, "desiredAPIVersion": target,
                "objects": objects.iter().map(|object| object.clone().into_value()).collect::<Vec<_>>(),
            },
        });
        let answer = self.client.post(&review, PATIENCE).await.map_err(|error| whole(error.to_string()))?;
        let converted = converted_objects(&answer, self.review, &uid).map_err(whole)?;
        if converted.len() != objects.len() {
            let reason = format!(
                "conversion webhook for {kind} returned {} objects, expected {}",
                converted.len(),
                objects.len()
            );
            return Err(ConversionError { object: named(first), target: target.into(), reason });
        }
        let pairs = objects.iter().zip(converted).enumerate();
        pairs
            .map(|(number, (original, converted))| {
                accept(original, converted, target).map_err(|problem| ConversionError {
                    object: named(original),
                    target: target.into(),
                    reason: format!(
                        "conversion webhook for {kind} returned invalid converted object at index {number}: {problem}"
                    ),
                })
            })
            .collect()
    }
}

#[async_trait]
impl Converter for ConvertByWebhook {
    async fn convert(&self, objects: Vec<Object>, target: &GroupVersion) -> Result<Vec<Object>, ConversionError> {
        let target = target.to_string();
        let mut done: Vec<Option<Object>> = Vec::with_capacity(objects.len());
        let mut waiting = Vec::new();
        for object in objects {
            match object.api_version() == target {
                true => done.push(Some(object)),
                false => {
                    done.push(None);
                    waiting.push(object);
                }
            }
        }
        let mut converted = Vec::with_capacity(waiting.len());
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(BATCH));
            converted.extend(self.batch(waiting, &target).await?);
            waiting = rest;
        }
        let mut converted = converted.into_iter();
        Ok(done.into_iter().filter_map(|slot| slot.or_else(|| converted.next())).collect())
    }
}

fn endpoint(config: &ClientConfig) -> Result<Endpoint, WebhookError> {
    match (&config.url, &config.service) {
        (Some(url), _) => Ok(Endpoint::Url(url.clone())),
        (None, Some(service)) => Ok(Endpoint::Service {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            port: service.port.and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
            path: format!("/{}", service.path.as_deref().unwrap_or_default().trim_start_matches('/')),
        }),
        (None, None) => Err(WebhookError::Configuration("no webhook is configured".into())),
    }
}

/// The objects in a webhook's answer, or what is wrong with the answer.
fn converted_objects(answer: &Value, review: &str, uid: &str) -> Result<Vec<Value>, String> {
    let says = |field: &str| answer[field].as_str().unwrap_or_default();
    let shown = |api_version: &str, kind: &str| match api_version.split_once('/') {
        Some((group, version)) => format!("{group}/{version}, Kind={kind}"),
        None => format!("/{api_version}, Kind={kind}"),
    };
    let strict = review.ends_with("/v1");
    if strict && (says("apiVersion") != review || says("kind") != "ConversionReview") {
        return Err(format!(
            "expected webhook response of {}, got {}",
            shown(review, "ConversionReview"),
            shown(says("apiVersion"), says("kind"))
        ));
    }
    let response = &answer["response"];
    if !response.is_object() {
        return Err("no response provided".into());
    }
    let answered = response["uid"].as_str().unwrap_or_default();
    if strict && answered != uid {
        return Err(format!("expected response.uid={uid:?}, got {answered:?}"));
    }
    let status = response["result"]["status"].as_str().unwrap_or_default();
    if status != "Success" {
        return Err(match response["result"]["message"].as_str().unwrap_or_default() {
            "" => format!("response.result.status was '{status}', not 'Success'"),
            message => message.to_string(),
        });
    }
    Ok(response["convertedObjects"].as_array().cloned().unwrap_or_default())
}

/// Takes a converted object, with its metadata but for labels and annotations as they were.
fn accept(original: &Object, converted: Value, target: &str) -> Result<Object, String> {
    let mut converted = Object::from_value(converted).map_err(|_| "it is not an object".to_string())?;
    if converted.api_version() != target {
        return Err(format!("invalid groupVersion (expected {target}, received {})", converted.api_version()));
    }
    if converted.kind() != original.kind() {
        return Err(format!("invalid kind (expected {}, received {})", original.kind(), converted.kind()));
    }
    let parts = [
        ("name", original.name(), converted.name()),
        ("namespace", original.namespace(), converted.namespace()),
        ("UID", original.uid(), converted.uid()),
    ];
    if let Some((what, before, after)) = parts.into_iter().find(|(_, before, after)| before != after) {
        return Err(format!("must have the same {what}: {before} != {after}"));
    }
    let Some(given) = converted.metadata().cloned() else { return Err("missing metadata in converted object".into()) };
    let mut metadata = original.metadata().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        match given.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
            }
            Some(Value::Object(texts)) if texts.values().all(Value::is_string) => {
                metadata.insert(field.into(), Value::Object(texts.clone()));
            }
            Some(_) => return Err(format!("invalid metadata.{field} in converted object")),
        }
    }
    converted.set("metadata", Some(Value::Object(metadata)));
    Ok(converted)
}

fn named(object: &Object) -> String {
    match object.namespace() {
        "" => object.name().to_string(),
        namespace => format!("{namespace}/{}", object.name()),
    }
}

fn gvk(object: &Object) -> String {
    format!("{}, Kind={}", object.api_version(), object.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original() -> Object {
        let value = json!({
            "apiVersion": "example.com/v1", "kind": "K",
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "labels": {"x": "1"}},
        });
        Object::from_value(value).unwrap()
    }

    fn check(change: impl FnOnce(&mut Value), expected: Result<(), &str>) {
        let mut converted = original().into_value();
        converted["apiVersion"] = "example.com/v2".into();
        change(&mut converted);
        let found = accept(&original(), converted, "example.com/v2");
        assert_eq!(found.map(|_| ()), expected.map_err(str::to_string));
    }

    #[test]
    fn a_converted_object_is_still_the_same_object() {
        check(|_| {}, Ok(()));
        check(|it| it["spec"] = json!({"new": 1}), Ok(()));
        check(
            |it| it["apiVersion"] = "example.com/v3".into(),
            Err("invalid groupVersion (expected example.com/v2, received example.com/v3)"),
        );
        check(|it| it["kind"] = "L".into(), Err("invalid kind (expected K, received L)"));
        check(|it| it["metadata"]["name"] = "b".into(), Err("must have the same name: a != b"));
        check(|it| it["metadata"]["uid"] = "v".into(), Err("must have the same UID: u != v"));
        check(|it| it["metadata"]["namespace"] = "m".into(), Err("must have the same namespace: n != m"));
        check(|it| it["metadata"]["labels"] = json!({"x": 1}), Err("invalid metadata.labels in converted object"));
    }

    #[test]
    fn metadata_is_kept_but_for_labels_and_annotations() {
        let mut converted = original().into_value();
        converted["apiVersion"] = "example.com/v2".into();
        converted["metadata"]["resourceVersion"] = "99".into();
        converted["metadata"]["labels"] = json!({"y": "2"});
        let accepted = accept(&original(), converted, "example.com/v2").unwrap();
        assert_eq!(accepted.resource_version(), "7");
        assert_eq!(accepted.label("y"), Some("2"));
        assert_eq!(accepted.label("x"), None);
    }

    #[test]
    fn an_answer_must_be_about_what_was_asked() {
        let review = "apiextensions.k8s.io/v1";
        let good = json!({"apiVersion": review, "kind": "ConversionReview", "response": {
            "uid": "1", "result": {"status": "Success"}, "convertedObjects": [{}]}});
        assert_eq!(converted_objects(&good, review, "1").unwrap().len(), 1);
        let wrong = |change: fn(&mut Value)| {
            let mut answer = good.clone();
            change(&mut answer);
            converted_objects(&answer, review, "1").unwrap_err()
        };
        assert_eq!(wrong(|it| it["response"]["uid"] = "2".into()), "expected response.uid=\"1\", got \"2\"");
        assert_eq!(wrong(|it| it["response"] = Value::Null), "no response provided");
        assert_eq!(wrong(|it| it["response"]["result"] = json!({"status": "Failed", "message": "no"})), "no");
        assert_eq!(
            wrong(|it| it["kind"] = "Pod".into()),
            "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got apiextensions.k8s.io/v1, \
             Kind=Pod"
        );
    }
}
