//! Admission that every cluster has: service accounts of pods, owners that block, and quotas of objects.

use crate::admission::rule::Operation;
use crate::auth::service_account::ServiceAccounts;
use crate::auth::{Attributes, ResourceAttributes};
use crate::error::ApiError;
use crate::object::Object;
use crate::resource::Scope;
use crate::verbs::Call;
use restow_api::GroupVersion;
use restow_store::{At, RangeRequest, StoreExt};
use serde_json::{Value, json};

/// The service account of pods that name none.
const DEFAULT_ACCOUNT: &str = "default";

/// Sets what clients may leave out.
pub(super) async fn complete(call: &Call<'_>, operation: Operation, object: &mut Object) -> Result<(), ApiError> {
    let is_pod = call.version.group().is_empty() && call.resource.names.kind == "Pod";
    if !is_pod || operation != Operation::Create || !call.target.subresource.is_empty() {
        return Ok(());
    }
    let Some(mut spec) = object.get("spec").cloned().filter(Value::is_object) else { return Ok(()) };
    let named = |spec: &Value| spec["serviceAccountName"].as_str().unwrap_or_default().to_string();
    if named(&spec).is_empty() {
        spec["serviceAccountName"] = DEFAULT_ACCOUNT.into();
    }
    let name = named(&spec);
    spec["serviceAccount"] = name.clone().into();
    object.set("spec", Some(spec));
    let namespace = &call.target.namespace;
    if call.server.access().uid_of(namespace, &name).is_some() || call.server.has_account(namespace, &name).await? {
        return Ok(());
    }
    Err(forbidden(
        call,
        object.name(),
        format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"),
    ))
}

/// Refuses to let an object hold up the removal of an owner whose finalizers the user may not set.
pub(super) fn check(
    call: &Call<'_>,
    operation: Operation,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let Some(object) = object.filter(|_| operation != Operation::Delete) else { return Ok(()) };
    let before = old.map(blocking_owners).unwrap_or_default();
    for owner in blocking_owners(object).into_iter().filter(|owner| !before.contains(owner)) {
        let attributes = finalizers_of(call, &owner);
        let allowed =
            attributes.is_some_and(|attributes| call.server.access().authorize(&call.user, &attributes).is_ok());
        if !allowed {
            let why =
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: ";
            return Err(forbidden(call, object.name(), format!("{why}{}", owner["name"].as_str().unwrap_or_default())));
        }
    }
    Ok(())
}

fn blocking_owners(object: &Object) -> Vec<Value> {
    let owners = object.at(&["metadata", "ownerReferences"]).and_then(Value::as_array);
    owners.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true).cloned().collect()
}

/// What a user must be allowed to block the removal of this owner; `None` when there is no such kind.
fn finalizers_of(call: &Call<'_>, owner: &Value) -> Option<Attributes> {
    let version: GroupVersion = owner["apiVersion"].as_str()?.parse().ok()?;
    let registry = call.server.registry();
    let mut resources = registry.in_version(&version)?.values();
    let resource = resources.find(|resource| owner["kind"] == resource.names.kind.as_str())?;
    Some(Attributes::Resource(ResourceAttributes {
        verb: "update".into(),
        group: version.group().into(),
        version: version.version().into(),
        resource: resource.group_resource.resource().into(),
        subresource: "finalizers".into(),
        namespace: match resource.scope {
            Scope::Namespaced => call.target.namespace.clone(),
            Scope::Cluster => String::new(),
        },
        name: owner["name"].as_str().unwrap_or_default().into(),
    }))
}

/// Refuses one object more than a quota of the namespace allows.
pub(super) async fn check_quota(call: &Call<'_>) -> Result<(), ApiError> {
    let (Some(storage), Scope::Namespaced) = (&call.resource.storage, call.resource.scope) else { return Ok(()) };
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

fn forbidden(call: &Call<'_>, name: &str, message: String) -> ApiError {
    ApiError::Forbidden { resource: call.resource.group_resource.clone(), name: name.to_string(), message }
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
