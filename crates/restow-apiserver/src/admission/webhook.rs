//! One webhook of a Mutating- or ValidatingWebhookConfiguration.

use crate::admission::expression::Conditions;
use crate::admission::rule::{MatchPolicy, Rule};
use crate::webhook::{Endpoint, ServiceResolver, WebhookClient, WebhookError};
use restow_auth::json::{WrongType, items, text};
use restow_auth::rbac::LabelSelector;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The default timeout.
const DEFAULT_SECONDS: u64 = 10;

/// What happens when a webhook cannot be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailurePolicy {
    /// The request fails.
    Fail,
    /// The webhook is skipped.
    Ignore,
}

/// A webhook.
pub(crate) struct Webhook {
    /// The configuration's name.
    pub(crate) configuration: String,
    /// Its own name.
    pub(crate) name: String,
    pub(crate) rules: Vec<Rule>,
    pub(crate) match_policy: MatchPolicy,
    pub(crate) namespaces: LabelSelector,
    pub(crate) objects: LabelSelector,
    pub(crate) failure_policy: FailurePolicy,
    /// Whether it may be called for a dry run.
    pub(crate) dry_run: bool,
    /// Whether it is called again if a later webhook changed the object (`reinvocationPolicy`).
    pub(crate) reinvoke: bool,
    pub(crate) timeout: Duration,
    /// The version of AdmissionReview.
    pub(crate) review_version: String,
    /// `matchConditions`.
    pub(super) conditions: Conditions,
    client: Result<WebhookClient, WebhookError>,
}

impl Webhook {
    /// All webhooks of a configuration object, in their order.
    pub(crate) fn read_all(
        configuration: &Value,
        resolver: &Arc<dyn ServiceResolver>,
    ) -> Result<Vec<Arc<Webhook>>, WrongType> {
        let name = configuration["metadata"]["name"].as_str().unwrap_or_default();
        let read = |value: &Value| Webhook::read(name, value, resolver.clone()).map(Arc::new);
        items(configuration, "webhooks")?.iter().map(read).collect()
    }

    fn read(configuration: &str, value: &Value, resolver: Arc<dyn ServiceResolver>) -> Result<Self, WrongType> {
        let versions = restow_auth::json::texts(value, "admissionReviewVersions")?;
        let understood = versions.into_iter().find(|version| version == "v1" || version == "v1beta1");
        Ok(Webhook {
            configuration: configuration.to_string(),
            name: text(value, "name")?.to_string(),
            rules: Rule::read_all(value, "rules")?,
            match_policy: if text(value, "matchPolicy")? == "Exact" {
                MatchPolicy::Exact
            } else {
                MatchPolicy::Equivalent
            },
            namespaces: LabelSelector::read(&value["namespaceSelector"])?,
            objects: LabelSelector::read(&value["objectSelector"])?,
            failure_policy: match text(value, "failurePolicy")? {
                "Ignore" => FailurePolicy::Ignore,
                _ => FailurePolicy::Fail,
            },
            dry_run: matches!(text(value, "sideEffects")?, "None" | "NoneOnDryRun"),
            reinvoke: text(value, "reinvocationPolicy")? == "IfNeeded",
            timeout: Duration::from_secs(value["timeoutSeconds"].as_u64().unwrap_or(DEFAULT_SECONDS).clamp(1, 30)),
            review_version: understood.unwrap_or_else(|| "v1".into()),
            conditions: Conditions::read(&value["matchConditions"]),
            client: client(&value["clientConfig"], resolver),
        })
    }

    /// Calls the webhook.
    pub(crate) async fn call(&self, review: &Value) -> Result<Value, WebhookError> {
        match &self.client {
            Ok(client) => client.post(review, self.timeout).await,
            Err(error) => Err(error.clone()),
        }
    }
}

fn client(config: &Value, resolver: Arc<dyn ServiceResolver>) -> Result<WebhookClient, WebhookError> {
    let part = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let endpoint = match config["url"].as_str() {
        Some(url) => Endpoint::Url(url.to_string()),
        None => Endpoint::Service {
            namespace: part(&config["service"]["namespace"]),
            name: part(&config["service"]["name"]),
            port: config["service"]["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
            path: match config["service"]["path"].as_str() {
                Some(path) if path.starts_with('/') => path.to_string(),
                Some(path) => format!("/{path}"),
                None => "/".into(),
            },
        },
    };
    WebhookClient::new(endpoint, config["caBundle"].as_str(), resolver)
}
