//! One webhook of a Mutating- or ValidatingWebhookConfiguration.

use crate::admission::expression::Conditions;
use crate::admission::rule::{MatchPolicy, Rule};
use crate::apiextensions::custom_resource_definition::ClientConfig;
use crate::webhook_client::{Endpoint, ServiceResolver, WebhookClient, WebhookError};
use restow_apimachinery::meta_v1::LabelSelector;
use restow_apimachinery::typed::{self, WrongType};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The default timeout.
const DEFAULT_SECONDS: u64 = 10;

/// A webhook.
pub(crate) struct Webhook {
    /// The configuration's name.
    pub(crate) configuration: String,
    pub(super) spec: WebhookSpec,
    client: Result<WebhookClient, WebhookError>,
}

/// A webhook as it is configured.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WebhookSpec {
    pub(super) name: String,
    client_config: ClientConfig,
    pub(super) rules: Vec<Rule>,
    pub(super) failure_policy: FailurePolicy,
    pub(super) match_policy: MatchPolicy,
    pub(super) namespace_selector: LabelSelector,
    pub(super) object_selector: LabelSelector,
    pub(super) side_effects: SideEffects,
    timeout_seconds: Option<i64>,
    admission_review_versions: Vec<String>,
    pub(super) reinvocation_policy: ReinvocationPolicy,
    pub(super) match_conditions: Conditions,
}

/// What happens when a webhook cannot be called, or a policy cannot be evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum FailurePolicy {
    /// The webhook or policy is skipped.
    Ignore,
    /// The request fails.
    #[default]
    #[serde(other)]
    Fail,
}

/// What a webhook changes besides the object. With anything else than these two, it is not called for a dry run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum SideEffects {
    None,
    NoneOnDryRun,
    #[default]
    #[serde(other)]
    Unknown,
}

/// Whether a webhook or policy is called again if the object was changed after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum ReinvocationPolicy {
    IfNeeded,
    #[default]
    #[serde(other)]
    Never,
}

/// The name of an object of the configuration.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    pub(super) name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WebhookConfiguration {
    metadata: Metadata,
    webhooks: Vec<WebhookSpec>,
}

impl Webhook {
    /// All webhooks of a configuration object, in their order.
    pub(crate) fn read_all(
        configuration: &Value,
        resolver: &Arc<dyn ServiceResolver>,
    ) -> Result<Vec<Arc<Webhook>>, WrongType> {
        let WebhookConfiguration { metadata, webhooks } = typed::read(configuration)?;
        let webhook = |spec: WebhookSpec| {
            let (config, resolver) = (&spec.client_config, resolver.clone());
            let client = Endpoint::of(config)
                .and_then(|endpoint| WebhookClient::new(endpoint, config.ca_bundle.as_deref(), resolver));
            Arc::new(Webhook { configuration: metadata.name.clone(), spec, client })
        };
        Ok(webhooks.into_iter().map(webhook).collect())
    }

    /// The version of AdmissionReview: the first that this server knows.
    pub(super) fn review_version(&self) -> &str {
        let mut versions = self.spec.admission_review_versions.iter().map(String::as_str);
        versions.find(|version| ["v1", "v1beta1"].contains(version)).unwrap_or("v1")
    }

    fn timeout(&self) -> Duration {
        let seconds = self.spec.timeout_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Duration::from_secs(seconds.unwrap_or(DEFAULT_SECONDS).clamp(1, 30))
    }

    /// Calls the webhook.
    pub(crate) async fn call(&self, review: &Value) -> Result<Value, WebhookError> {
        match &self.client {
            Ok(client) => client.post(review, self.timeout()).await,
            Err(error) => Err(error.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_word_that_is_unknown_empty_or_null_means_the_default() {
        let read = |word: &Value, other: &str| -> WebhookSpec {
            typed::read(
                &json!({"failurePolicy": word, "matchPolicy": other, "sideEffects": word, "reinvocationPolicy": word,
                "rules": null, "timeoutSeconds": null, "namespaceSelector": null, "matchConditions": null}),
            )
            .unwrap()
        };
        for word in [json!(null), json!(""), json!("Other"), json!("fail")] {
            let spec = read(&word, "exact");
            assert_eq!((spec.failure_policy, spec.match_policy), (FailurePolicy::Fail, MatchPolicy::Equivalent));
            assert_eq!(spec.side_effects, SideEffects::Unknown);
            assert_eq!(spec.reinvocation_policy, ReinvocationPolicy::Never);
            assert!(
                spec.rules.is_empty() && spec.match_conditions.is_empty() && spec.namespace_selector.is_everything()
            );
        }
        assert_eq!(read(&json!("Ignore"), "Exact").failure_policy, FailurePolicy::Ignore);
        assert_eq!(read(&json!("Ignore"), "Exact").match_policy, MatchPolicy::Exact);
        assert_eq!(read(&json!("None"), "").side_effects, SideEffects::None);
        assert_eq!(read(&json!("IfNeeded"), "").reinvocation_policy, ReinvocationPolicy::IfNeeded);
    }
}
