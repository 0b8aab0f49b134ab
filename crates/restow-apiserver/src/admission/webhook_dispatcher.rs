//! The webhook dispatcher: calls the mutating and validating webhooks that match a request.

use crate::admission::expression::Values;
use crate::admission::request::Request;
use crate::admission::review::{self, Review, WebhookResponse};
use crate::admission::rule::matching_version;
use crate::admission::webhook::{FailurePolicy, ReinvocationPolicy, SideEffects, Webhook};
use crate::error::ApiError;
use crate::request::options::DryRun;
use futures::future::join_all;
use restow_api::GroupVersion;
use restow_apimachinery::bounded_patch;
use restow_apimachinery::object::Object;
use std::sync::Arc;

/// Calls mutating webhooks one after the other. Also returns how many of them, from the first, saw an object that was changed
/// after them.
pub(super) async fn mutate(
    request: &Request<'_>,
    webhooks: &[Arc<Webhook>],
    mut object: Object,
) -> Result<(Object, usize), ApiError> {
    let mut outdated = 0;
    for (position, webhook) in webhooks.iter().enumerate() {
        if let Some(changed) = request.mutated_by_webhook(webhook, &object).await? {
            (object, outdated) = (changed, position);
        }
    }
    Ok((object, outdated))
}

/// Calls webhooks with `reinvocationPolicy: IfNeeded` again.
pub(super) async fn reinvoke(
    request: &Request<'_>,
    webhooks: &[Arc<Webhook>],
    mut object: Object,
) -> Result<Object, ApiError> {
    for webhook in webhooks.iter().filter(|webhook| webhook.spec.reinvocation_policy == ReinvocationPolicy::IfNeeded) {
        if let Some(changed) = request.mutated_by_webhook(webhook, &object).await? {
            object = changed;
        }
    }
    Ok(object)
}

/// Calls validating webhooks concurrently.
pub(super) async fn validate(
    request: &Request<'_>,
    webhooks: &[Arc<Webhook>],
    object: Option<&Object>,
) -> Result<(), ApiError> {
    let mut calls = Vec::with_capacity(webhooks.len());
    for webhook in webhooks {
        calls.push(request.call_webhook(webhook, object));
    }
    for response in join_all(calls).await {
        response?;
    }
    Ok(())
}

impl Request<'_> {
    /// The object after the patch of the webhook; `None` if it is unchanged.
    async fn mutated_by_webhook(&self, webhook: &Webhook, object: &Object) -> Result<Option<Object>, ApiError> {
        let Some((response, version)) = self.call_webhook(webhook, Some(object)).await? else { return Ok(None) };
        let Some(patch) = response.patch.filter(|patch| !patch.0.is_empty()) else { return Ok(None) };
        let shown = self.converted(Some(object), &version).await?.unwrap_or_default();
        let mut value = shown.into_value();
        bounded_patch::apply(&mut value, &patch).map_err(|error| {
            ApiError::Internal(format!("webhook {:?} returned a patch that does not apply: {error}", webhook.spec.name))
        })?;
        let changed = Object::from_value(value).map_err(|_| {
            ApiError::Internal(format!("the patch of webhook {:?} does not leave an object", webhook.spec.name))
        })?;
        let changed = self.restored(changed).await?;
        Ok((changed != *object).then_some(changed))
    }

    /// The response of the webhook, and the version of the object that was sent; `None` if it does not match, or failed and
    /// may be ignored.
    async fn call_webhook(
        &self,
        webhook: &Webhook,
        object: Option<&Object>,
    ) -> Result<Option<(WebhookResponse, GroupVersion)>, ApiError> {
        let subject = self.subject(object);
        let spec = &webhook.spec;
        let Some(version) = matching_version(&spec.rules, spec.match_policy, &subject) else { return Ok(None) };
        if !self.is_selected(&spec.namespace_selector, &spec.object_selector, object).await? {
            return Ok(None);
        }
        let dry_run = self.dry_run == DryRun::Yes;
        if dry_run && spec.side_effects == SideEffects::Unknown {
            return Err(ApiError::BadRequest(format!("admission webhook {:?} does not support dry run", spec.name)));
        }
        let object = self.converted(object, version).await?;
        let old = self.converted(self.old, version).await?;
        let review = Review {
            subject: &subject,
            version,
            user: &self.call.user,
            namespace: &self.call.target.namespace,
            object: object.as_ref(),
            old: old.as_ref(),
            dry_run,
        };
        let uid = restow_host::uuid().to_string();
        match self.meets_conditions(webhook, &review, &uid) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(reason) => return self.failed(webhook, &reason).map(|()| None),
        }
        let answer =
            webhook.call(&review.body(&uid, webhook.review_version())).await.map_err(|error| error.to_string());
        let response = answer.and_then(|answer| review::parse_response(&answer, &uid, webhook.review_version()));
        match response {
            Ok(response) => self.handle_response(webhook, response).map(|response| Some((response, version.clone()))),
            Err(reason) => self.failed(webhook, &reason).map(|()| None),
        }
    }

    /// Whether the webhook's matchConditions hold.
    fn meets_conditions(&self, webhook: &Webhook, review: &Review<'_>, uid: &str) -> Result<bool, String> {
        if webhook.spec.match_conditions.is_empty() {
            return Ok(true);
        }
        let request = review.request(uid);
        let authorizer = self.authorizer(review.object);
        let values = Values {
            authorizer: Some((&authorizer, &authorizer.question)),
            object: Some(&request["object"]),
            old_object: Some(&request["oldObject"]),
            request: Some(&request),
            ..Values::default()
        };
        webhook.spec.match_conditions.hold(&values)
    }

    /// Passes on warnings and annotations, and denies the request if the webhook does.
    fn handle_response(&self, webhook: &Webhook, response: WebhookResponse) -> Result<WebhookResponse, ApiError> {
        response.warnings.iter().for_each(|warning| self.call.warn(warning.clone()));
        for (key, value) in &response.annotations {
            self.call.annotate(format!("{}/{key}", webhook.spec.name), value.clone());
        }
        match &response.denial {
            Some(status) => Err(review::denial(&webhook.spec.name, status)),
            None => Ok(response),
        }
    }

    fn failed(&self, webhook: &Webhook, reason: &str) -> Result<(), ApiError> {
        let message = format!("failed calling webhook {:?}: failed to call webhook: {reason}", webhook.spec.name);
        match webhook.spec.failure_policy {
            FailurePolicy::Fail => Err(ApiError::Internal(message)),
            FailurePolicy::Ignore => {
                tracing::warn!(configuration = webhook.configuration, "{message}; ignoring the webhook");
                Ok(())
            }
        }
    }
}
