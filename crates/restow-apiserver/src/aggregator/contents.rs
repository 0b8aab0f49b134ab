//! What the servers behind this one have in a namespace: deleted with it, through the same path as requests of clients.

use crate::aggregator::Aggregator;
use crate::aggregator::api_services::KnownApiService;
use crate::aggregator::backend::Backend;
use crate::discovery::aggregation::Freshness;
use http::{Method, StatusCode};
use restow_api::GroupVersion;
use restow_auth::User;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The namespaced resources of other servers.
#[derive(Default)]
pub(crate) struct AggregatedResources {
    /// Those that are known.
    pub(crate) resources: Vec<AggregatedResource>,
    /// The group-versions whose servers cannot be asked.
    pub(crate) unknown: Vec<GroupVersion>,
}

/// A resource that another server serves.
pub(crate) struct AggregatedResource {
    service: Arc<KnownApiService>,
    plural: String,
    verbs: Vec<String>,
}

impl Aggregator {
    /// The namespaced resources of other servers, each in one version.
    pub(crate) fn namespaced_resources(&self) -> AggregatedResources {
        let mut found = AggregatedResources::default();
        let aggregation = self.aggregation(&self.core.registry());
        let mut seen = BTreeSet::new();
        for (version, service) in &self.known.load().proxied {
            let known = aggregation.versions.get(version).filter(|known| known.freshness == Freshness::Current);
            let Some(known) = known.filter(|_| service.available().is_ok()) else {
                found.unknown.push(version.clone());
                continue;
            };
            let deletable = known.resources.iter().filter_map(|resource| deletable(service, resource));
            let new = deletable.filter(|resource| seen.insert((version.group().to_string(), resource.plural.clone())));
            found.resources.extend(new);
        }
        found
    }

    /// Whether another server serves a group-version.
    pub(crate) fn is_proxied(&self, version: &GroupVersion) -> bool {
        self.known.load().proxied.contains_key(version)
    }
}

/// The resource, if its objects go with their namespace.
fn deletable(service: &Arc<KnownApiService>, resource: &Value) -> Option<AggregatedResource> {
    let verbs: Vec<String> = serde_json::from_value(resource["verbs"].clone()).unwrap_or_default();
    let has = |verb: &str| verbs.iter().any(|known| known == verb);
    if resource["scope"] != "Namespaced" || !has("delete") || !has("list") {
        return None;
    }
    let plural = resource["resource"].as_str()?.to_string();
    Some(AggregatedResource { service: service.clone(), plural, verbs })
}

impl AggregatedResource {
    /// The resource and its group, as in `plants.garden.example`.
    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.plural, self.service.version().group())
    }

    /// Deletes all objects in a namespace, and returns how many are left.
    pub(crate) async fn delete_all(&self, namespace: &str, user: &User) -> Result<usize, String> {
        let backend = self.service.available().map_err(|error| error.to_string())?;
        let collection = format!("/apis/{}/namespaces/{namespace}/{}", self.service.version(), self.plural);
        if self.verbs.iter().any(|verb| verb == "deletecollection") {
            delete(backend, &collection, user).await?;
            return Ok(list(backend, &collection, user).await?.len());
        }
        for name in list(backend, &collection, user).await? {
            delete(backend, &format!("{collection}/{name}"), user).await?;
        }
        Ok(list(backend, &collection, user).await?.len())
    }
}

async fn delete(backend: &Backend, path: &str, user: &User) -> Result<(), String> {
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
    let answer = backend.call(Method::DELETE, path, user, Some(&options)).await.map_err(|error| error.to_string())?;
    match answer.code {
        code if code.is_success() || code == StatusCode::NOT_FOUND => Ok(()),
        code => Err(refusal(path, code, &answer.body)),
    }
}

/// The names of the objects in a collection; the first ones, if they are many.
async fn list(backend: &Backend, path: &str, user: &User) -> Result<Vec<String>, String> {
    let pages = format!("{path}?limit=500");
    let answer = backend.call(Method::GET, &pages, user, None).await.map_err(|error| error.to_string())?;
    let found: Value = match answer.code {
        StatusCode::OK => serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?,
        code => return Err(refusal(path, code, &answer.body)),
    };
    // Another document is no proof that nothing is left.
    let items = found["items"].as_array().ok_or_else(|| format!("{path}: the response is not a list"))?;
    Ok(items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_string()).collect())
}

fn refusal(path: &str, code: StatusCode, body: &[u8]) -> String {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    match status["message"].as_str() {
        Some(message) => message.to_string(),
        None => format!("{path}: the server responded with {code}"),
    }
}
