//! Asking webhooks about a request.

use crate::admission::expression::Values;
use crate::admission::request::{DryRun, Request};
use crate::admission::review::{self, Review, Verdict};
use crate::admission::rule::matching_version;
use crate::admission::webhook::{FailurePolicy, Webhook};
use crate::error::ApiError;
use futures::future::join_all;
use restow_api::GroupVersion;
use restow_apimachinery::bounded_patch;
use restow_apimachinery::object::Object;
use std::sync::Arc;

/// Lets each webhook change the object in turn. Returns how many of them, from the first, saw something else than what the
/// last one made of it.
pub(super) async fn mutate(
    request: &Request<'_>,
    webhooks: &[Arc<Webhook>],
    mut object: Object,
) -> Result<(Object, usize), ApiError> {
    let mut outdated = 0;
    for (position, webhook) in webhooks.iter().enumerate() {
        if let Some(changed) = request.change(webhook, &object).await? {
            (object, outdated) = (changed, position);
        }
    }
    Ok((object, outdated))
}

/// Lets those of these webhooks that want it change the object once more.
pub(super) async fn mutate_again(
    request: &Request<'_>,
    webhooks: &[Arc<Webhook>],
    mut object: Object,
) -> Result<Object, ApiError> {
    for webhook in webhooks.iter().filter(|webhook| webhook.reinvoke) {
        if let Some(changed) = request.change(webhook, &object).await? {
            object = changed;
        }
    }
    Ok(object)
}

/// Asks all webhooks at once whether they have anything against the request.
pub(super) async fn validate(
    request: &Request<'_>,
    webhooks: &[Arc<Webhook>],
    object: Option<&Object>,
) -> Result<(), ApiError> {
    let mut asking = Vec::with_capacity(webhooks.len());
    for webhook in webhooks {
        asking.push(request.ask(webhook, object));
    }
    for verdict in join_all(asking).await {
        verdict?;
    }
    Ok(())
}

impl Request<'_> {
    /// The object as the webhook wants it; `None` when it wants it as it is.
    async fn change(&self, webhook: &Webhook, object: &Object) -> Result<Option<Object>, ApiError> {
        let Some((verdict, version)) = self.ask(webhook, Some(object)).await? else { return Ok(None) };
        let Some(patch) = verdict.patch.filter(|patch| !patch.0.is_empty()) else { return Ok(None) };
        let shown = self.converted(Some(object), &version).await?.unwrap_or_default();
        let mut value = shown.into_value();
        bounded_patch::apply(&mut value, &patch).map_err(|error| {
            ApiError::Internal(format!("webhook {:?} returned a patch that does not apply: {error}", webhook.name))
        })?;
        let changed = Object::from_value(value)
            .map_err(|_| ApiError::Internal(format!("webhook {:?} made something else of the object", webhook.name)))?;
        let changed = self.restored(changed).await?;
        Ok((changed != *object).then_some(changed))
    }

    /// What the webhook says, and the version that it was shown; `None` when it is not asked, or could not be and need not.
    async fn ask(
        &self,
        webhook: &Webhook,
        object: Option<&Object>,
    ) -> Result<Option<(Verdict, GroupVersion)>, ApiError> {
        let subject = self.subject(object);
        let Some(version) = matching_version(&webhook.rules, webhook.match_policy, &subject) else { return Ok(None) };
        if !self.is_selected(&webhook.namespaces, &webhook.objects, object).await? {
            return Ok(None);
        }
        let dry_run = self.dry_run == DryRun::Yes;
        if dry_run && !webhook.dry_run {
            return Err(ApiError::BadRequest(format!("admission webhook {:?} does not support dry run", webhook.name)));
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
        let uid = uuid::Uuid::new_v4().to_string();
        match self.meets_conditions(webhook, &review, &uid) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(reason) => return self.failed(webhook, &reason).map(|()| None),
        }
        let answer = webhook.ask(&review.body(&uid, &webhook.review_version)).await.map_err(|error| error.to_string());
        let verdict = answer.and_then(|answer| review::understand(&answer, &uid, &webhook.review_version));
        match verdict {
            Ok(verdict) => self.heed(webhook, verdict).map(|verdict| Some((verdict, version.clone()))),
            Err(reason) => self.failed(webhook, &reason).map(|()| None),
        }
    }

    /// Whether the webhook's conditions hold.
    fn meets_conditions(&self, webhook: &Webhook, review: &Review<'_>, uid: &str) -> Result<bool, String> {
        if webhook.conditions.is_empty() {
            return Ok(true);
        }
        let request = review.request(uid);
        let permissions = self.permissions(review.object);
        let values = Values {
            asking: Some((&permissions, &permissions.question)),
            object: Some(&request["object"]),
            old_object: Some(&request["oldObject"]),
            request: Some(&request),
            ..Values::default()
        };
        webhook.conditions.hold(&values)
    }

    /// Passes on what the webhook has to say, and refuses the request if it does.
    fn heed(&self, webhook: &Webhook, verdict: Verdict) -> Result<Verdict, ApiError> {
        verdict.warnings.iter().for_each(|warning| self.call.warn(warning.clone()));
        for (key, value) in &verdict.annotations {
            self.call.annotate(format!("{}/{key}", webhook.name), value.clone());
        }
        match &verdict.denial {
            Some(status) => Err(review::denial(&webhook.name, status)),
            None => Ok(verdict),
        }
    }

    fn failed(&self, webhook: &Webhook, reason: &str) -> Result<(), ApiError> {
        let message = format!("failed calling webhook {:?}: failed to call webhook: {reason}", webhook.name);
        match webhook.failure_policy {
            FailurePolicy::Fail => Err(ApiError::Internal(message)),
            FailurePolicy::Ignore => {
                tracing::warn!(configuration = webhook.configuration, "{message}; going on without it");
                Ok(())
            }
        }
    }
}
