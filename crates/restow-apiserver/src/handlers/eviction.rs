//! The `eviction` subresource of pods: deletes a pod if its PodDisruptionBudget allows it.
//!
//! `decide` is the policy and writes nothing. The disruption controller computes `disruptionsAllowed`; an eviction decrements it.

use crate::error::ApiError;
use crate::handlers::delete::{self, DeleteAdmission};
use crate::handlers::{Call, HandlerResponse, subresource};
use crate::request::body;
use crate::request::options::DryRun;
use crate::resource::ObjectRef;
use crate::resource::Resource;
use crate::resource::object_meta;
use crate::storage::deletion::DeleteOptions;
use crate::storage::object_store::{ObjectChange, ObjectDecision};
use async_trait::async_trait;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_apimachinery::selector::{LabelSelector, selector_text};
use restow_store::RangeRequest;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The `Retry-After` while the disruption controller has not processed a change of the budget.
const PROCESSING: Duration = Duration::from_secs(10);

/// The effect of an eviction on the pod's budget.
#[derive(Debug, PartialEq)]
enum BudgetDecision {
    /// The pod does not count against the budget; nothing is spent.
    Free,
    /// The pod may be evicted, and this is the new status of the budget.
    Spend(Value),
}

pub(super) async fn evict(call: &Call<'_>) -> Result<HandlerResponse, ApiError> {
    let eviction = subresource::admit(call, body::value(call)?).await?.into_value();
    let name = &call.target.name;
    if eviction["metadata"]["name"].as_str().is_some_and(|given| given != name) {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options = DeleteOptions::from_value(&eviction["deleteOptions"]).map_err(delete::invalid_options)?;
    options.dry_run = options.dry_run.or(call.dry_run()?);
    let entry = call.handlers.objects().get(call.object_ref(name)).await?.ok_or_else(|| call.not_found(name))?;
    let pod = call.resource.decode(&entry, &call.version).await?;
    if let Some(message) = options.unmet(&pod) {
        return Err(ApiError::ConflictOn { kind: "Pod".into(), name: name.clone(), message });
    }
    if counts(&pod) {
        spend(call, &pod, options.dry_run).await?;
    }
    call.handlers.objects().commit(call.object_ref(name), &mut Mark, options.dry_run).await?;
    delete::delete_one(call, name, &options, DeleteAdmission::AlreadyRun).await?.ok_or_else(|| call.not_found(name))?;
    Ok(HandlerResponse::Object { code: 201, object: subresource::success(201) })
}

/// Whether a pod counts against a budget.
fn counts(pod: &Object) -> bool {
    let over = matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed" | "Pending" | "");
    !over && !pod.is_being_deleted()
}

/// Spends one disruption of the pod's budget, or refuses.
async fn spend(call: &Call<'_>, pod: &Object, dry_run: DryRun) -> Result<(), ApiError> {
    let version = GroupVersion::new("policy", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
    let registry = call.handlers.registry();
    let Some(resource) = registry.find(&version, "poddisruptionbudgets") else { return Ok(()) };
    let budgets = budgets_of(call, resource, &version, pod).await?;
    let [budget] = budgets.as_slice() else {
        return match budgets.is_empty() {
            true => Ok(()),
            false => Err(ApiError::Unexplained(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
                    .into(),
            )),
        };
    };
    let budget = ObjectRef { resource, version: &version, namespace: &call.target.namespace, name: budget.name() };
    call.handlers.objects().commit(budget, &mut Spending { pod }, dry_run).await?;
    Ok(())
}

async fn budgets_of(
    call: &Call<'_>,
    resource: &Arc<Resource>,
    version: &GroupVersion,
    pod: &Object,
) -> Result<Vec<Object>, ApiError> {
    let storage = resource.storage.as_ref().ok_or(ApiError::MethodNotAllowed)?;
    let range = RangeRequest::new(storage.range(&call.target.namespace));
    let entries = call.handlers.objects().store().range(range).await?.entries;
    let budgets = resource.decode_all(&entries, version).await?;
    Ok(budgets.into_iter().filter(|budget| covers(budget, pod)).collect())
}

/// Whether a budget selects a pod. An empty selector selects all pods, a missing one selects none.
fn covers(budget: &Object, pod: &Object) -> bool {
    let Some(selector) = budget.at(&["spec", "selector"]).filter(|selector| !selector.is_null()) else { return false };
    LabelSelector::parse(&selector_text(selector)).is_ok_and(|selector| selector.matches(pod))
}

struct Spending<'a> {
    pod: &'a Object,
}

#[async_trait]
impl ObjectDecision for Spending<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(budget) = before else { return Ok(ObjectChange::Keep) };
        let BudgetDecision::Spend(status) = decide(budget, self.pod, &object_meta::now())? else {
            return Ok(ObjectChange::Keep);
        };
        let mut budget = budget.clone();
        budget.set("status", Some(status));
        Ok(ObjectChange::Write(budget))
    }
}

/// Decides about the eviction of a pod that counts against the budget.
fn decide(budget: &Object, pod: &Object, now: &str) -> Result<BudgetDecision, ApiError> {
    let number = |name: &str| budget.at(&["status", name]).and_then(Value::as_i64).unwrap_or_default();
    let refused = |cause: String, retry_after| ApiError::DisruptionBudget { cause, retry_after };
    let conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array);
    let ready =
        conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    if !ready {
        // An unhealthy pod may be evicted as long as enough others are healthy.
        let always = budget.text(&["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow";
        if always || number("desiredHealthy") > 0 && number("currentHealthy") >= number("desiredHealthy") {
            return Ok(BudgetDecision::Free);
        }
    }
    let name = budget.name();
    if number("observedGeneration") < budget.generation() {
        let cause = format!("The disruption budget {name} is still being processed by the server.");
        return Err(refused(cause, Some(PROCESSING)));
    }
    let allowed = number("disruptionsAllowed");
    if allowed <= 0 {
        return Err(refused(format!("The disruption budget {name} does not allow evicting pods currently"), None));
    }
    let mut status = budget.get("status").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    status["disruptionsAllowed"] = (allowed - 1).into();
    status["disruptedPods"][pod.name()] = now.into();
    if allowed == 1 {
        let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|condition| condition["type"] != "DisruptionAllowed");
        conditions
            .push(json!({"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
            "lastTransitionTime": now, "observedGeneration": number("observedGeneration")}));
        status["conditions"] = conditions.into();
    }
    Ok(BudgetDecision::Spend(status))
}

/// Sets the `DisruptionTarget` condition on the pod.
struct Mark;

#[async_trait]
impl ObjectDecision for Mark {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(pod) = before else { return Ok(ObjectChange::Keep) };
        let mut pod = pod.clone();
        let mut conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array).cloned().unwrap_or_default();
        if conditions.iter().any(|it| it["type"] == "DisruptionTarget" && it["status"] == "True") {
            return Ok(ObjectChange::Keep);
        }
        conditions.retain(|condition| condition["type"] != "DisruptionTarget");
        conditions.push(json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": object_meta::now()}));
        pod.set_at(&["status", "conditions"], Some(conditions.into()));
        Ok(ObjectChange::Write(pod))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(ready: &str) -> Object {
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
        Object::from_value(json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "status": status})).unwrap()
    }

    fn budget(observed: i64, allowed: i64, healthy: i64) -> Object {
        Object::from_value(json!({
            "metadata": {"name": "b", "generation": 2},
            "spec": {"selector": {"matchLabels": {"a": "b"}}},
            "status": {"observedGeneration": observed, "disruptionsAllowed": allowed, "currentHealthy": healthy,
                "desiredHealthy": 1},
        }))
        .unwrap()
    }

    fn check(budget: Object, pod: Object, expected: Result<Option<i64>, &str>) {
        let found = match decide(&budget, &pod, "now") {
            Ok(BudgetDecision::Free) => Ok(None),
            Ok(BudgetDecision::Spend(status)) => Ok(status["disruptionsAllowed"].as_i64()),
            Err(ApiError::DisruptionBudget { cause, .. }) => Err(cause),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(found, expected.map_err(str::to_string));
    }

    #[test]
    fn a_budget_is_spent_until_nothing_is_left() {
        check(budget(2, 2, 3), pod("True"), Ok(Some(1)));
        check(budget(2, 1, 2), pod("True"), Ok(Some(0)));
        check(budget(2, 0, 1), pod("True"), Err("The disruption budget b does not allow evicting pods currently"));
        check(budget(1, 5, 9), pod("True"), Err("The disruption budget b is still being processed by the server."));
        check(budget(2, 0, 1), pod("False"), Ok(None));
        check(budget(2, 0, 0), pod("False"), Err("The disruption budget b does not allow evicting pods currently"));
    }

    #[test]
    fn a_missing_selector_covers_no_pod() {
        let with = |selector: Value| {
            Object::from_value(json!({"metadata": {"name": "b"}, "spec": {"selector": selector}})).unwrap()
        };
        assert!(covers(&with(json!({"matchLabels": {"a": "b"}})), &pod("True")));
        assert!(covers(&with(json!({})), &pod("True")));
        assert!(!covers(&with(json!({"matchLabels": {"a": "c"}})), &pod("True")));
        assert!(!covers(&with(Value::Null), &pod("True")));
    }
}
