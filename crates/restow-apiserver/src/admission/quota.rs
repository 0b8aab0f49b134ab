//! Quotas: how many objects of a kind there may be in a namespace. Quantities of what pods use are not counted here.

use crate::admission::builtin::forbidden;
use crate::error::ApiError;
use crate::following::{Follower, name_of, namespace_of};
use crate::hub::HubEvent;
use crate::resource::Scope;
use crate::server::ApiServer;
use crate::verbs::Call;
use restow_api::GroupVersion;
use restow_store::{At, Entry, RangeRequest, StoreExt};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock};

/// Which quotas there are, by namespace. Most namespaces have none, and what is made there costs nothing more.
#[derive(Default)]
pub(super) struct Quotas(RwLock<HashMap<String, HashSet<String>>>);

impl Quotas {
    /// Whether a namespace has a quota, as far as this server has heard.
    pub(super) fn bound(&self, namespace: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(namespace)
    }
}

/// Keeps the quotas in step with their objects.
pub(super) struct QuotaFollower;

impl Follower for QuotaFollower {
    fn reset(&self, server: &ApiServer, entries: &[Entry]) {
        let mut found: HashMap<String, HashSet<String>> = HashMap::new();
        for entry in entries {
            found.entry(namespace_of(&entry.key).to_string()).or_default().insert(name_of(&entry.key).to_string());
        }
        *server.admission().quotas.0.write().unwrap_or_else(PoisonError::into_inner) = found;
    }

    fn change(&self, server: &ApiServer, event: &HubEvent) {
        let (namespace, name) = (namespace_of(&event.key), name_of(&event.key));
        let mut known = server.admission().quotas.0.write().unwrap_or_else(PoisonError::into_inner);
        let names = known.entry(namespace.to_string()).or_default();
        match event.current {
            Some(_) => drop(names.insert(name.to_string())),
            None => drop(names.remove(name)),
        }
        if names.is_empty() {
            known.remove(namespace);
        }
    }
}

/// Refuses one object more than a quota of the namespace allows.
pub(super) async fn check(call: &Call<'_>) -> Result<(), ApiError> {
    let (Some(storage), Scope::Namespaced) = (&call.resource.storage, call.resource.scope) else { return Ok(()) };
    if !call.server.admission().quotas.bound(&call.target.namespace) {
        return Ok(());
    }
    let store = call.server.objects().store();
    let quotas = quotas(call).await?;
    let names = counted_as(call.resource.group_resource.group(), call.resource.group_resource.resource());
    let mut used = None;
    for quota in &quotas {
        for name in &names {
            let Some(limit) = limit(quota, name) else { continue };
            let count = match used {
                Some(count) => count,
                None => *used.insert(store.count(storage.range(&call.target.namespace), At::Latest).await?),
            };
            if count >= limit {
                return Err(forbidden(call, &call.target.name, exceeded(quota, name, count, limit)));
            }
        }
    }
    Ok(())
}

fn exceeded(quota: &Value, name: &str, count: u64, limit: u64) -> String {
    let quota = quota["metadata"]["name"].as_str().unwrap_or_default();
    format!("exceeded quota: {quota}, requested: {name}=1, used: {name}={count}, limited: {name}={limit}")
}

async fn quotas(call: &Call<'_>) -> Result<Vec<Value>, ApiError> {
    let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
    let registry = call.server.registry();
    let Some(storage) = registry.find(&version, "resourcequotas").and_then(|resource| resource.storage.as_ref()) else {
        return Ok(Vec::new());
    };
    let range = RangeRequest::new(storage.range(&call.target.namespace));
    let entries = call.server.objects().store().range(range).await?.entries;
    Ok(entries.iter().map(|entry| serde_json::from_slice(&entry.value).unwrap_or(json!({}))).collect())
}

/// The names under which quotas count objects of a resource.
fn counted_as(group: &str, resource: &str) -> Vec<String> {
    /// Resources that had a name of their own before any could be counted.
    const OWN: [&str; 7] = [
        "configmaps",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
    ];
    match group {
        "" if OWN.contains(&resource) => vec![format!("count/{resource}"), resource.to_string()],
        "" => vec![format!("count/{resource}")],
        group => vec![format!("count/{resource}.{group}")],
    }
}

/// How many a quota allows; `None` when it says nothing about it. Quotas with scopes are about pods in certain states,
/// which nothing here counts.
fn limit(quota: &Value, name: &str) -> Option<u64> {
    let spec = &quota["spec"];
    if spec["scopes"].as_array().is_some_and(|scopes| !scopes.is_empty()) || !spec["scopeSelector"].is_null() {
        return None;
    }
    match &spec["hard"][name] {
        Value::String(text) => whole_number(text),
        value => value.as_u64(),
    }
}

/// A quantity of objects, such as `10` or `1k`.
fn whole_number(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_count_under_kubernetes_names() {
        assert_eq!(counted_as("", "configmaps"), ["count/configmaps", "configmaps"]);
        assert_eq!(counted_as("", "bindings"), ["count/bindings"]);
        assert_eq!(counted_as("apps", "deployments"), ["count/deployments.apps"]);
        let quota =
            json!({"spec": {"hard": {"pods": "10", "count/secrets": "1k", "count/jobs.batch": 3, "cpu": "500m"}}});
        for (name, expected) in [
            ("pods", Some(10)),
            ("count/secrets", Some(1000)),
            ("count/jobs.batch", Some(3)),
            ("cpu", None),
            ("services", None),
        ] {
            assert_eq!(limit(&quota, name), expected, "{name}");
        }
        let scoped = json!({"spec": {"hard": {"pods": "10"}, "scopes": ["BestEffort"]}});
        assert_eq!(limit(&scoped, "pods"), None);
    }
}
