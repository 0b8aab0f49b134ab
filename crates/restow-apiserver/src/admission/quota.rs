//! Quotas of objects: how many of a resource a namespace may hold.
//!
//! Whoever makes an object in a namespace with a quota counts what is there, and writes the count into the quota in the
//! same transaction, so that two who count at the same time cannot both be the last one. What was removed since is counted
//! off from time to time.

use crate::admission::builtin::forbidden;
use crate::codec;
use crate::error::ApiError;
use crate::following::{Follower, name_of, namespace_of};
use crate::hub::HubEvent;
use crate::object::Object;
use crate::object_store::{Change, Decision, Place};
use crate::resource::{Resource, Scope};
use crate::server::ApiServer;
use crate::verbs::Call;
use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_store::{At, Compare, Entry, Mutation, RangeRequest, StoreExt, Txn};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;

/// How often what was removed is counted off.
const RECOUNT: Duration = Duration::from_secs(2);

/// The quotas that this server knows of.
#[derive(Default)]
pub(crate) struct Quotas {
    /// Namespaces and names.
    known: Mutex<BTreeSet<(String, String)>>,
    /// Who counts on this server waits for who counted before, instead of counting again when that one was faster.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Quotas {
    fn change(&self, change: impl FnOnce(&mut BTreeSet<(String, String)>)) {
        change(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn known(&self) -> Vec<(String, String)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub(super) fn bound(&self, namespace: &str) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(bound, _)| bound == namespace)
    }
}

/// What making an object takes from the quotas of its namespace.
#[derive(Default)]
pub(crate) struct Charge {
    /// What must hold of the quotas.
    pub(crate) conditions: Vec<Compare>,
    /// The quotas afterwards.
    pub(crate) mutations: Vec<Mutation>,
    /// Given back when the object is made, or is not.
    turn: Option<OwnedMutexGuard<()>>,
}

/// Counts one object more, or refuses it. What was charged before for the same object is handed back to be charged anew.
pub(crate) async fn charge(call: &Call<'_>, before: Charge) -> Result<Charge, ApiError> {
    let quotas = &call.server.admission().quotas;
    let (Some(storage), Scope::Namespaced) = (&call.resource.storage, call.resource.scope) else {
        return Ok(before);
    };
    let namespace = &call.target.namespace;
    if !quotas.bound(namespace) {
        return Ok(Charge::default());
    }
    let turn = match before.turn {
        Some(turn) => turn,
        None => quotas.turn.clone().lock_owned().await,
    };
    let mut charge = Charge { turn: Some(turn), ..Charge::default() };
    let (resource, version) = resource_of(call.server)?;
    let Some(stored) = resource.storage.as_ref() else { return Ok(charge) };
    let store = call.server.objects().store();
    let entries = store.range(RangeRequest::new(stored.range(namespace))).await?.entries;
    let names = counted_as(call.resource.group_resource.group(), call.resource.group_resource.resource());
    let mut counted = None;
    for entry in entries {
        let mut quota = resource.decode(&entry, &version).await?;
        let limits: Vec<(&String, u64)> = names.iter().filter_map(|name| Some((name, limit(&quota, name)?))).collect();
        if limits.is_empty() {
            continue;
        }
        let count = match counted {
            Some(count) => count,
            None => *counted.insert(store.count(storage.range(namespace), At::Latest).await?),
        };
        if let Some((name, limit)) = limits.iter().find(|(_, limit)| count >= *limit) {
            return Err(forbidden(call, &call.target.name, exceeded(&quota, name, count, *limit)));
        }
        let used = limits.iter().map(|(name, _)| (name.to_string(), json!((count + 1).to_string())));
        let used: Map<String, Value> = used.collect();
        set_used(&mut quota, used);
        let value = codec::encode(&resource.convert(quota, &stored.encoding().version).await?);
        charge.conditions.push(Compare::mod_revision(&entry.key, entry.mod_revision));
        charge.mutations.extend(Txn::new().put(&entry.key, value).then);
    }
    Ok(charge)
}

fn resource_of(server: &ApiServer) -> Result<(Arc<Resource>, GroupVersion), ApiError> {
    let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
    let resource = server.registry().find(&version, "resourcequotas").cloned();
    Ok((resource.ok_or(ApiError::NoSuchResource)?, version))
}

fn exceeded(quota: &Object, name: &str, count: u64, limit: u64) -> String {
    let quota = quota.name();
    format!("exceeded quota: {quota}, requested: {name}=1, used: {name}={count}, limited: {name}={limit}")
}

/// Says in a quota what is used of it. What nothing here counts is left alone.
fn set_used(quota: &mut Object, used: Map<String, Value>) {
    let mut status = quota.get("status").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    status["hard"] = quota.at(&["spec", "hard"]).cloned().unwrap_or_else(|| json!({}));
    let mut all = status["used"].as_object().cloned().unwrap_or_default();
    all.retain(|name, _| status["hard"].get(name).is_some());
    all.extend(used);
    status["used"] = Value::Object(all);
    quota.set("status", Some(status));
}

/// Follows the quotas, and keeps what they say is used in step with what is there.
#[derive(Default)]
pub(super) struct QuotaFollower {
    recounted: Mutex<Option<Instant>>,
}

#[async_trait]
impl Follower for QuotaFollower {
    fn reset(&self, server: &ApiServer, entries: &[Entry]) {
        let found = entries.iter().map(|entry| (namespace_of(&entry.key).to_string(), name_of(&entry.key).to_string()));
        server.admission().quotas.change(|known| *known = found.collect());
    }

    fn change(&self, server: &ApiServer, event: &HubEvent) {
        let place = (namespace_of(&event.key).to_string(), name_of(&event.key).to_string());
        server.admission().quotas.change(|known| match event.current {
            Some(_) => drop(known.insert(place)),
            None => drop(known.remove(&place)),
        });
    }

    async fn settle(&self, server: &ApiServer) {
        let quotas = server.admission().quotas.known();
        let due = {
            let mut recounted = self.recounted.lock().unwrap_or_else(PoisonError::into_inner);
            let due = recounted.is_none_or(|time| time.elapsed() >= RECOUNT);
            if due && !quotas.is_empty() {
                *recounted = Some(Instant::now());
            }
            due
        };
        for (namespace, name) in quotas.iter().filter(|_| due) {
            if let Err(error) = recount(server, namespace, name).await {
                tracing::debug!(%error, namespace, name, "a quota could not be counted");
            }
        }
    }
}

/// Counts what a quota is about, and writes it down where it has changed.
async fn recount(server: &ApiServer, namespace: &str, name: &str) -> Result<(), ApiError> {
    let (resource, version) = resource_of(server)?;
    let place = Place { resource: &resource, version: &version, namespace, name };
    server.objects().change(place, &mut Recount { server, namespace }).await?;
    Ok(())
}

struct Recount<'a> {
    server: &'a ApiServer,
    namespace: &'a str,
}

#[async_trait]
impl Decision for Recount<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let Some(quota) = before else { return Ok(Change::Keep) };
        let mut used = Map::new();
        for resource in self.server.registry().resources() {
            let (Some(storage), Scope::Namespaced) = (&resource.storage, resource.scope) else { continue };
            let names = counted_as(resource.group_resource.group(), resource.group_resource.resource());
            let names: Vec<String> = names.into_iter().filter(|name| limit(quota, name).is_some()).collect();
            if !names.is_empty() && !names.iter().any(|name| used.contains_key(name)) {
                let count = self.server.objects().store().count(storage.range(self.namespace), At::Latest).await?;
                used.extend(names.into_iter().map(|name| (name, json!(count.to_string()))));
            }
        }
        let mut counted = quota.clone();
        set_used(&mut counted, used);
        Ok(if counted == *quota { Change::Keep } else { Change::Write(counted) })
    }
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
fn limit(quota: &Object, name: &str) -> Option<u64> {
    let spec = quota.get("spec")?;
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
        let object = |value: Value| Object::from_value(value).unwrap();
        let quota = object(
            json!({"spec": {"hard": {"pods": "10", "count/secrets": "1k", "count/jobs.batch": 3, "cpu": "500m"}}}),
        );
        for (name, expected) in [
            ("pods", Some(10)),
            ("count/secrets", Some(1000)),
            ("count/jobs.batch", Some(3)),
            ("cpu", None),
            ("services", None),
        ] {
            assert_eq!(limit(&quota, name), expected, "{name}");
        }
        let scoped = object(json!({"spec": {"hard": {"pods": "10"}, "scopes": ["BestEffort"]}}));
        assert_eq!(limit(&scoped, "pods"), None);
    }
}
