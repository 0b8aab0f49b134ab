//! LimitRanges: validation of the bounds, and their defaults.
//!
//! The LimitRanger admission plugin enforces them: `admission/limit_ranger.rs`.

use crate::resource::strategy::Strategy;
use restow_apimachinery::field::{FieldError, FieldRule};
use restow_apimachinery::object::Object;
use restow_apimachinery::types::Amount;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Pairs where the first must not exceed the second; their names in the message; the field in error, and the field whose
/// value is shown.
const ORDER: [([&str; 2], [&str; 2], [&str; 2]); 6] = [
    (["min", "max"], ["min", "max"], ["min", "min"]),
    (["min", "defaultRequest"], ["min", "default request"], ["defaultRequest", "defaultRequest"]),
    (["defaultRequest", "max"], ["default request", "max"], ["defaultRequest", "defaultRequest"]),
    (["defaultRequest", "default"], ["default request", "default limit"], ["defaultRequest", "defaultRequest"]),
    (["min", "default"], ["min", "default"], ["default", "min"]),
    (["default", "max"], ["default", "max"], ["default", "max"]),
];
/// The fields with amounts, in the order in which Kubernetes checks them.
const FIELDS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
const TYPES: [&str; 3] = ["Pod", "Container", "PersistentVolumeClaim"];
/// Resources of containers.
const FOR_CONTAINERS: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Other standard resources.
const FOR_OTHERS: [&str; 17] = [
    "configmaps",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
    "storage",
];

pub(super) struct LimitRange;

impl Strategy for LimitRange {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        problems(object)
    }
}

fn problems(range: &Object) -> Vec<FieldError> {
    let items = range.at(&["spec", "limits"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut problems = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("spec.limits[{index}]");
        let kind = item["type"].as_str().unwrap_or_default();
        if !TYPES.contains(&kind) && !kind.contains('/') {
            let detail = "must be a standard limit type or fully qualified";
            problems.push(FieldError::invalid(format!("{path}.type"), &item["type"], detail));
        }
        if items[..index].iter().any(|earlier| earlier["type"] == item["type"]) {
            let rule = FieldRule::Duplicate(item["type"].to_string());
            problems.push(FieldError { field: format!("{path}.type"), rule, detail: String::new() });
        }
        problems.extend(item_problems(&path, item));
    }
    problems
}

fn item_problems(path: &str, item: &Value) -> Vec<FieldError> {
    let mut problems = Vec::new();
    let is_given = |field: &str| item[field].as_object().is_some_and(|amounts| !amounts.is_empty());
    if item["type"] == "Pod" {
        let given = ["default", "defaultRequest"].into_iter().filter(|field| is_given(field));
        let detail = "may not be specified when `type` is 'Pod'";
        problems.extend(given.map(|field| FieldError::forbidden(format!("{path}.{field}"), detail)));
    }
    let bounds_storage = ["min", "max"].iter().any(|field| !item[field]["storage"].is_null());
    if item["type"] == "PersistentVolumeClaim" && !bounds_storage {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        problems.push(FieldError::required(format!("{path}.limits"), detail));
    }
    for field in FIELDS.into_iter().filter(|field| item["type"] != "Pod" || !field.starts_with("default")) {
        for name in item[field].as_object().into_iter().flatten().map(|(name, _)| name) {
            let details = name_problems(item["type"].as_str().unwrap_or_default(), name);
            let path = format!("{path}.{field}[{name}]");
            problems.extend(details.map(|detail| FieldError::invalid(&path, &name.as_str().into(), detail)));
        }
    }
    let names = FIELDS.iter().filter_map(|field| item[field].as_object()).flat_map(|amounts| amounts.keys());
    for name in names.collect::<BTreeSet<_>>() {
        problems.extend(order_problems(path, item, name));
        problems.extend(ratio_problems(path, item, name));
        let [given, asked] = ["default", "defaultRequest"].map(|field| &item[field][name]);
        let differ = Amount::read(given).zip(Amount::read(asked)).is_some_and(|(given, asked)| given != asked);
        if differ && !is_shared(name) {
            let (given, requested) = (text(given), text(asked));
            let detail = format!("default value {given} must equal to defaultRequest value {requested} in {name}");
            problems.push(FieldError::invalid(format!("{path}.defaultRequest[{name}]"), asked, detail));
        }
    }
    problems
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// Whether this is a standard resource that can be overcommitted.
fn is_shared(name: &str) -> bool {
    !name.contains('/') && !name.starts_with("hugepages-")
}

/// Why an item of this type cannot bound this resource.
fn name_problems(kind: &str, name: &str) -> impl Iterator<Item = &'static str> {
    let foreign = is_shared(name) && !FOR_CONTAINERS.contains(&name);
    let nonsense = foreign && !FOR_OTHERS.contains(&name);
    let foreign = foreign && matches!(kind, "Pod" | "Container");
    let nonsense = nonsense.then_some("must be a standard resource type or fully qualified");
    nonsense.into_iter().chain(foreign.then_some("must be a standard resource for containers"))
}

fn order_problems(path: &str, item: &Value, name: &str) -> Vec<FieldError> {
    let broken = ORDER.iter().filter_map(|([less, more], [called_less, called_more], [fault, shown])| {
        let (less, more) = (&item[less][name], &item[more][name]);
        let detail = format!("{called_less} value {} is greater than {called_more} value {}", text(less), text(more));
        let broken = Amount::read(less)? > Amount::read(more)?;
        broken.then(|| FieldError::invalid(format!("{path}.{fault}[{name}]"), &item[shown][name], detail))
    });
    broken.collect()
}

fn ratio_problems(path: &str, item: &Value, name: &str) -> Vec<FieldError> {
    let value = &item["maxLimitRequestRatio"][name];
    let Some(ratio) = Amount::read(value) else { return Vec::new() };
    let invalid = |detail: String| FieldError::invalid(format!("{path}.maxLimitRequestRatio[{name}]"), value, detail);
    let mut problems = Vec::new();
    if ratio < Amount::whole(1) {
        problems.push(invalid(format!("ratio {} is less than 1", text(value))));
    }
    let [least, most] = ["min", "max"].map(|field| Amount::read(&item[field][name]));
    let widest = most.zip(least).map(|(most, least)| most.over(least));
    if let Some(widest) = widest.filter(|widest| ratio.over(Amount::whole(1)) > *widest) {
        problems.push(invalid(format!("ratio {} is greater than max/min = {widest:.6}", text(value))));
    }
    problems
}

/// Defaults of an item for containers: `default` from `max`, `defaultRequest` from `default` and `min`.
pub(crate) fn default_item(fields: &mut Map<String, Value>) {
    if fields.get("type").and_then(Value::as_str) != Some("Container") {
        return;
    }
    for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
        let Some(Value::Object(known)) = fields.get(from).cloned() else { continue };
        if let Some(open) = fields.entry(to).or_insert_with(|| json!({})).as_object_mut() {
            for (name, amount) in known {
                open.entry(name).or_insert(amount);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(items: Value, expected: &[&str]) {
        let range = Object::from_value(json!({"spec": {"limits": items}})).unwrap();
        let found: Vec<String> =
            problems(&range).iter().map(|problem| format!("{} {}", problem.field, problem.cause_message())).collect();
        assert_eq!(found, expected, "{range:?}");
    }

    #[test]
    fn inconsistent_bounds_are_refused() {
        let item = |kind: &str, min: &str, max: &str| json!({"type": kind, "min": {"cpu": min}, "max": {"cpu": max}});
        check(json!([item("Container", "1", "2"), item("Pod", "1", "1000m")]), &[]);
        check(
            json!([item("Pod", "1", "2"), item("Pod", "2", "1")]),
            &[
                "spec.limits[1].type Duplicate value: \"Pod\"",
                "spec.limits[1].min[cpu] Invalid value: \"2\": min value 2 is greater than max value 1",
            ],
        );
        let default = json!({"type": "Pod", "default": {"cpu": "1"}});
        check(json!([default]), &["spec.limits[0].default Forbidden: may not be specified when `type` is 'Pod'"]);
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        check(
            json!([{"type": "PersistentVolumeClaim"}]),
            &[&format!("spec.limits[0].limits Required value: {detail}")],
        );
        let ratio = json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}});
        let problem = "spec.limits[0].maxLimitRequestRatio[cpu] Invalid value: \"500m\": ratio 500m is less than 1";
        check(json!([ratio]), &[problem]);
    }
}
