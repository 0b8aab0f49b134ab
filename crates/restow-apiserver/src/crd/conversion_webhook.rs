//! Conversion webhooks: sends a ConversionReview, and validates the converted objects in the response.

use crate::apiextensions::custom_resource_definition::CustomResourceDefinition;
use crate::apiextensions::numbers;
use crate::resource::conversion::{ConversionError, Converter};
use crate::webhook_client::{Endpoint, ServiceResolver, WebhookClient, WebhookError};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The timeout of one review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of objects in one review.
const BATCH: usize = 500;
/// The maximum number of concurrent reviews for one request.
const CONCURRENT_REVIEWS: usize = 4;

/// Converts with a webhook.
pub(crate) struct ConvertByWebhook {
    client: WebhookClient,
    /// The version of ConversionReview that both the webhook and this server support.
    review: &'static str,
}

impl ConvertByWebhook {
    /// The webhook of a CRD.
    pub(crate) fn of(crd: &CustomResourceDefinition, resolver: Arc<dyn ServiceResolver>) -> Result<Self, WebhookError> {
        let webhook = crd.spec.conversion.webhook.as_ref();
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
        let client = WebhookClient::new(Endpoint::of(config)?, config.ca_bundle.as_deref(), resolver)?;
        Ok(ConvertByWebhook { client, review })
    }

    /// Converts what fits into one review.
    async fn batch(&self, objects: Vec<Object>, target: &str) -> Result<Vec<Object>, ConversionError> {
        let mut converted = Vec::with_capacity(objects.len());
        let mut waiting = vec![objects];
        while let Some(mut part) = waiting.pop() {
            match self.review(&part, target).await {
                Ok(objects) => converted.extend(objects),
                // The webhook does not say which object failed, so the batch is split.
                Err(Refusal::Webhook(_)) if part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    waiting.extend([second, part]);
                }
                Err(refusal) => return Err(refusal.about(&part, target)),
            }
        }
        Ok(converted)
    }

    /// Sends one review.
    async fn review(&self, objects: &[Object], target: &str) -> Result<Vec<Object>, Refusal> {
        let uid = restow_host::uuid().to_string();
        let review = Review {
            kind: "ConversionReview",
            api_version: self.review,
            request: Request { uid: &uid, target, objects: objects.iter().map(Object::fields).collect() },
        };
        let answer = self.client.post(&review, REVIEW_TIMEOUT).await;
        let answer = answer.map_err(|error| Refusal::All(format!(" failed: {error}")))?;
        let converted = converted_objects(answer, self.review, &uid)?;
        if converted.len() != objects.len() {
            let (found, expected) = (converted.len(), objects.len());
            return Err(Refusal::All(format!(" returned {found} objects, expected {expected}")));
        }
        let pairs = objects.iter().zip(converted).enumerate();
        let accepted = pairs.map(|(number, (original, converted))| {
            accept(original, converted, target).map_err(|problem| Refusal::One(number, problem))
        });
        accepted.collect()
    }
}

/// The request to a webhook.
#[derive(Serialize)]
struct Review<'a> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    request: Request<'a>,
}

#[derive(Serialize)]
struct Request<'a> {
    uid: &'a str,
    #[serde(rename = "desiredAPIVersion")]
    target: &'a str,
    objects: Vec<&'a serde_json::Map<String, Value>>,
}

/// Why objects were not converted.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// The response is unusable as a whole.
    All(String),
    /// The webhook could not convert them.
    Webhook(String),
    /// The converted object at this index is invalid.
    One(usize, String),
}

impl Refusal {
    /// The refusal as an error that names the object.
    fn about(self, objects: &[Object], target: &str) -> ConversionError {
        let kind = objects.first().map(gvk).unwrap_or_default();
        let number = if let Refusal::One(number, _) = &self { *number } else { 0 };
        let reason = match self {
            Refusal::All(reason) => format!("conversion webhook for {kind}{reason}"),
            Refusal::Webhook(reason) => format!("conversion webhook for {kind} failed: {reason}"),
            Refusal::One(_, problem) if objects.len() == 1 => {
                format!("conversion webhook for {kind} returned invalid object: {problem}")
            }
            Refusal::One(number, problem) => {
                format!("conversion webhook for {kind} returned invalid converted object at index {number}: {problem}")
            }
        };
        ConversionError { object: objects.get(number).map(named).unwrap_or_default(), target: target.into(), reason }
    }
}

#[async_trait]
impl Converter for ConvertByWebhook {
    async fn convert(&self, objects: Vec<Object>, target: &GroupVersion) -> Result<Vec<Object>, ConversionError> {
        let target = target.to_string();
        let (mut done, mut waiting) = (Vec::with_capacity(objects.len()), Vec::new());
        for object in objects {
            match object.api_version() == target {
                true => done.push(Some(object)),
                false => {
                    done.push(None);
                    waiting.push(object);
                }
            }
        }
        let mut batches = Vec::new();
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(BATCH));
            batches.push(self.batch(waiting, &target));
            waiting = rest;
        }
        let converted: Vec<Vec<Object>> = stream::iter(batches).buffered(CONCURRENT_REVIEWS).try_collect().await?;
        let mut converted = converted.into_iter().flatten();
        Ok(done.into_iter().filter_map(|slot| slot.or_else(|| converted.next())).collect())
    }

    fn calls_webhook(&self) -> bool {
        true
    }
}

/// The objects in a webhook's response, or what is wrong with it.
fn converted_objects(mut answer: Value, review: &str, uid: &str) -> Result<Vec<Value>, Refusal> {
    let says = |field: &str| answer[field].as_str().unwrap_or_default();
    let shown = |api_version: &str, kind: &str| match api_version.split_once('/') {
        Some((group, version)) => format!("{group}/{version}, Kind={kind}"),
        None => format!("/{api_version}, Kind={kind}"),
    };
    let invalid = |reason: String| Err(Refusal::All(format!(" failed: {reason}")));
    let strict = review.ends_with("/v1");
    if strict && (says("apiVersion") != review || says("kind") != "ConversionReview") {
        let (expected, found) = (shown(review, "ConversionReview"), shown(says("apiVersion"), says("kind")));
        return invalid(format!("expected webhook response of {expected}, got {found}"));
    }
    let response = &mut answer["response"];
    if !response.is_object() {
        return invalid("no response provided".into());
    }
    let answered = response["uid"].as_str().unwrap_or_default();
    if strict && answered != uid {
        return invalid(format!("expected response.uid={uid:?}, got {answered:?}"));
    }
    let status = response["result"]["status"].as_str().unwrap_or_default();
    if status != "Success" {
        return Err(Refusal::Webhook(match response["result"]["message"].as_str().unwrap_or_default() {
            "" => format!("response.result.status was '{status}', not 'Success'"),
            message => message.to_string(),
        }));
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Accepts a converted object. All metadata except labels and annotations stay as they were.
fn accept(original: &Object, mut converted: Value, target: &str) -> Result<Object, String> {
    numbers::normalize(&mut converted);
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
    use serde_json::json;

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
    fn a_response_must_match_its_request() {
        let review = "apiextensions.k8s.io/v1";
        let good = json!({"apiVersion": review, "kind": "ConversionReview", "response": {
            "uid": "1", "result": {"status": "Success"}, "convertedObjects": [{}]}});
        assert_eq!(converted_objects(good.clone(), review, "1").unwrap().len(), 1);
        let wrong = |change: fn(&mut Value)| {
            let mut answer = good.clone();
            change(&mut answer);
            converted_objects(answer, review, "1").unwrap_err()
        };
        let invalid = |reason: &str| Refusal::All(format!(" failed: {reason}"));
        assert_eq!(wrong(|it| it["response"]["uid"] = "2".into()), invalid("expected response.uid=\"1\", got \"2\""));
        assert_eq!(wrong(|it| it["response"] = Value::Null), invalid("no response provided"));
        assert_eq!(
            wrong(|it| it["response"]["result"] = json!({"status": "Failed", "message": "no"})),
            Refusal::Webhook("no".into())
        );
        assert_eq!(
            wrong(|it| it["kind"] = "Pod".into()),
            invalid(
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got \
                 apiextensions.k8s.io/v1, Kind=Pod"
            )
        );
    }
}
