//! LimitRanger: default requests and limits of containers, and the minimum, maximum and ratio for pods, containers and
//! persistent volume claims. The messages are Kubernetes'.

use crate::admission::AdmissionCall;
use crate::admission::compute::{self, LIMITS, REQUESTS, written};
use crate::admission::plugins::{forbidden, stored};
use crate::admission::rule::Operation;
use crate::error::ApiError;
use crate::resource::Origin;
use restow_api::GroupVersion;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::Amount;
use serde_json::{Value, json};

/// The annotation that lists the defaults that were set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Whether LimitRanges apply to a request. The resources of a pod can change only by `resize`.
fn is_bounded(call: &AdmissionCall<'_>, operation: Operation) -> bool {
    let (kind, subresource) = (call.resource.names.kind.as_str(), call.target.subresource.as_str());
    let bounded = matches!(
        (operation, kind, subresource),
        (Operation::Create, "Pod" | "PersistentVolumeClaim", "")
            | (Operation::Update, "PersistentVolumeClaim", "")
            | (Operation::Update, "Pod", "resize")
    );
    bounded && call.resource.origin == Origin::Builtin
}

async fn ranges(call: &AdmissionCall<'_>) -> Result<Vec<Object>, ApiError> {
    let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
    stored(call, &version, "limitranges", &call.target.namespace).await
}

/// Sets default requests and limits of a pod.
pub(super) async fn apply_defaults(
    call: &AdmissionCall<'_>,
    operation: Operation,
    object: &mut Object,
) -> Result<(), ApiError> {
    if is_bounded(call, operation) && call.resource.names.kind == "Pod" {
        ranges(call).await?.iter().for_each(|range| apply_range(range, object));
    }
    Ok(())
}

/// Refuses objects outside of the limits.
pub(super) async fn check(
    call: &AdmissionCall<'_>,
    operation: Operation,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let Some(object) = object.filter(|_| is_bounded(call, operation)) else { return Ok(()) };
    if old.is_some_and(Object::is_being_deleted) {
        return Ok(());
    }
    for range in ranges(call).await? {
        let problems = problems(&range, &call.resource.names.kind, object);
        let message = match &problems[..] {
            [] => continue,
            [problem] => problem.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        return Err(forbidden(call, object.name(), message));
    }
    Ok(())
}

fn items(range: &Object) -> impl Iterator<Item = &Value> {
    range.at(&["spec", "limits"]).and_then(Value::as_array).into_iter().flatten()
}

/// Sets the defaults of one LimitRange in the containers of a pod.
fn apply_range(range: &Object, pod: &mut Object) {
    let Some(item) = items(range).find(|item| item["type"] == "Container") else { return };
    let Some(mut spec) = pod.get("spec").cloned() else { return };
    let mut given = Vec::new();
    for (field, kind) in [("containers", "container"), ("initContainers", "init container")] {
        for container in spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            let limits = set_missing(container, LIMITS, &item["default"]);
            let requests = set_missing(container, REQUESTS, &item["defaultRequest"]);
            let name = container["name"].as_str().unwrap_or_default();
            for (names, what) in [(requests, "request"), (limits, "limit")] {
                if !names.is_empty() {
                    given.push(format!("{} {what} for {kind} {name}", names.join(", ")));
                }
            }
        }
    }
    if !given.is_empty() {
        pod.set("spec", Some(spec));
        let message = format!("LimitRanger plugin set: {}", given.join("; "));
        let annotations = pod.metadata_mut().entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(ANNOTATION.into(), message.into());
        }
    }
}

/// Sets the amounts that a container does not have; returns their names.
fn set_missing(container: &mut Value, kind: &str, amounts: &Value) -> Vec<String> {
    let said = container["resources"][kind].clone();
    let amounts = amounts.as_object().into_iter().flatten();
    let missing: Vec<_> = amounts.filter(|(name, _)| said[name.as_str()].is_null()).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let Some(all) = below(container, "resources").and_then(|resources| below(resources, kind)) else {
        return Vec::new();
    };
    missing.iter().for_each(|(name, amount)| all[name.as_str()] = (*amount).clone());
    missing.into_iter().map(|(name, _)| name.clone()).collect()
}

/// The object in a field, which is created if it is missing.
fn below<'v>(outer: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    let inner = outer.as_object_mut()?.entry(name).or_insert_with(|| json!({}));
    Some(inner).filter(|inner| inner.is_object())
}

/// An amount, and its text.
struct WrittenAmount {
    amount: Amount,
    text: String,
}

impl WrittenAmount {
    fn read(value: &Value) -> Option<Self> {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        Some(WrittenAmount { amount: Amount::read(value)?, text })
    }
}

/// The violations of a LimitRange by an object, each once.
fn problems(range: &Object, kind: &str, object: &Object) -> Vec<String> {
    let mut problems = Vec::new();
    for item in items(range) {
        match (kind, item["type"].as_str().unwrap_or_default()) {
            ("Pod", "Container") => {
                // Kubernetes lists init containers last.
                let fields = ["containers", "initContainers"].into_iter();
                let containers = fields.filter_map(|field| object.at(&["spec", field])?.as_array()).flatten();
                for container in containers {
                    let said = |kind: &str, name: &str| WrittenAmount::read(&container["resources"][kind][name]);
                    problems.extend(outside(item, &[REQUESTS, LIMITS], &said));
                }
            }
            ("Pod", "Pod") => {
                let said = |kind: &str, name: &str| {
                    let amount = || compute::pod_total(object, kind, name);
                    let named = compute::named(object, kind).iter().any(|known| *known == name);
                    named.then(|| WrittenAmount { amount: amount(), text: written(name, amount()) })
                };
                problems.extend(outside(item, &[REQUESTS, LIMITS], &said));
            }
            ("PersistentVolumeClaim", "PersistentVolumeClaim") => {
                let said =
                    |kind: &str, name: &str| WrittenAmount::read(object.at(&["spec", "resources", kind, name])?);
                problems.extend(outside(item, &[REQUESTS], &said));
            }
            _ => {}
        }
    }
    let mut seen = std::collections::HashSet::new();
    problems.retain(|problem| seen.insert(problem.clone()));
    problems
}

/// The violations of one item. `kinds` are the fields that are checked.
fn outside(item: &Value, kinds: &[&str], said: &dyn Fn(&str, &str) -> Option<WrittenAmount>) -> Vec<String> {
    let per = item["type"].as_str().unwrap_or_default();
    let bounds = |field: &str| {
        let bounds = item[field].as_object().into_iter().flatten();
        bounds.filter_map(|(name, bound)| Some((name, WrittenAmount::read(bound)?))).collect::<Vec<_>>()
    };
    let mut problems = Vec::new();
    for (name, least) in bounds("min") {
        let broken = violation(kinds.iter(), |kind| said(kind, name), |amount| amount < least.amount);
        problems.extend(broken.map(|broken| format!("minimum {name} usage per {per} is {}{broken}", least.text)));
    }
    for (name, most) in bounds("max") {
        let broken = violation(kinds.iter().rev(), |kind| said(kind, name), |amount| amount > most.amount);
        problems.extend(broken.map(|broken| format!("maximum {name} usage per {per} is {}{broken}", most.text)));
    }
    if kinds.len() > 1 {
        for (name, most) in bounds("maxLimitRequestRatio") {
            let broken = ratio_violation(said(REQUESTS, name), said(LIMITS, name), &most);
            let begin = format!("{name} max limit to request ratio per {per} is {}", most.text);
            problems.extend(broken.map(|broken| format!("{begin}, but {broken}")));
        }
    }
    problems
}

/// The first kind is required, and no kind may be outside of the bound.
fn violation<'k>(
    mut kinds: impl Iterator<Item = &'k &'k str> + Clone,
    said: impl Fn(&str) -> Option<WrittenAmount>,
    is_outside: impl Fn(Amount) -> bool,
) -> Option<String> {
    let word = |kind: &str| kind.trim_end_matches('s').to_string();
    let first = kinds.clone().next()?;
    if said(first).is_none() {
        return Some(format!(".  No {} is specified", word(first)));
    }
    kinds.find_map(|kind| {
        let found = said(kind).filter(|found| is_outside(found.amount))?;
        Some(format!(", but {} is {}", word(kind), found.text))
    })
}

fn ratio_violation(
    request: Option<WrittenAmount>,
    limit: Option<WrittenAmount>,
    most: &WrittenAmount,
) -> Option<String> {
    let present = |said: Option<WrittenAmount>| said.filter(|said| said.amount != Amount::default());
    let Some(request) = present(request) else { return Some("no request is specified or request is 0".into()) };
    let Some(limit) = present(limit) else { return Some("no limit is specified or limit is 0".into()) };
    let ratio = limit.amount.over(request.amount);
    (ratio > most.amount.over(Amount::whole(1))).then(|| format!("provided ratio is {ratio:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(item: Value) -> Object {
        Object::from_value(json!({"spec": {"limits": [item]}})).unwrap()
    }

    fn pod(containers: Value) -> Object {
        Object::from_value(json!({"metadata": {"name": "a"}, "spec": containers})).unwrap()
    }

    #[test]
    fn containers_are_given_what_they_do_not_say() {
        let range = range(
            json!({"type": "Container", "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "1"}}),
        );
        let mut pod = pod(
            json!({"containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "3", "memory": "1Mi"},
            "requests": {"cpu": "1m"}}}], "initContainers": [{"name": "c", "resources": {"limits": {"memory": "2Gi"}}}]}),
        );
        apply_range(&range, &mut pod);
        let all = json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}});
        assert_eq!(pod.at(&["spec", "containers"]).unwrap()[0]["resources"], all);
        let own = json!({"limits": {"cpu": "3", "memory": "1Mi"}, "requests": {"cpu": "1m"}});
        assert_eq!(pod.at(&["spec", "containers"]).unwrap()[1]["resources"], own);
        assert_eq!(
            pod.annotation(ANNOTATION).unwrap(),
            "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; cpu request for \
             init container c; cpu limit for init container c"
        );
        let filled = pod.clone();
        apply_range(&range, &mut pod);
        assert_eq!(pod, filled);
    }

    #[test]
    fn what_is_malformed_is_left_for_the_checks() {
        for container in [json!(1), json!({"resources": 1}), json!({"resources": {"limits": []}})] {
            let mut pod = pod(json!({"containers": [container]}));
            let before = pod.clone();
            apply_range(&range(json!({"type": "Container", "default": {"cpu": "1"}})), &mut pod);
            assert_eq!(pod, before);
        }
    }

    fn check(item: Value, kind: &str, object: Value, expected: &[&str]) {
        let object = Object::from_value(json!({"spec": object})).unwrap();
        assert_eq!(problems(&range(item.clone()), kind, &object), expected, "{item} {object:?}");
    }

    #[test]
    fn containers_are_bounded_each() {
        let bounds = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}});
        let with = |resources: Value| json!({"containers": [{"resources": resources}]});
        let both = |request: &str, limit: &str| with(json!({"requests": {"cpu": request}, "limits": {"cpu": limit}}));
        check(bounds.clone(), "Pod", both("100m", "1000m"), &[]);
        check(
            bounds.clone(),
            "Pod",
            both("50m", "2"),
            &[
                "minimum cpu usage per Container is 100m, but request is 50m",
                "maximum cpu usage per Container is 1, but limit is 2",
            ],
        );
        check(
            bounds.clone(),
            "Pod",
            json!({"containers": [{}, {}]}),
            &[
                "minimum cpu usage per Container is 100m.  No request is specified",
                "maximum cpu usage per Container is 1.  No limit is specified",
            ],
        );
        check(bounds, "PersistentVolumeClaim", json!({}), &[]);
        let ratio = json!({"type": "Container", "maxLimitRequestRatio": {"cpu": "3"}});
        check(ratio.clone(), "Pod", both("100m", "300m"), &[]);
        let begin = "cpu max limit to request ratio per Container is 3, but ";
        check(ratio.clone(), "Pod", both("100m", "350m"), &[&format!("{begin}provided ratio is 3.500000")]);
        check(ratio.clone(), "Pod", both("0", "1"), &[&format!("{begin}no request is specified or request is 0")]);
        let limitless = with(json!({"requests": {"cpu": "1"}}));
        check(ratio, "Pod", limitless, &[&format!("{begin}no limit is specified or limit is 0")]);
    }

    #[test]
    fn pods_are_bounded_by_what_their_containers_ask_for_together() {
        let bounds = json!({"type": "Pod", "max": {"memory": "1Gi"}});
        let with = |memory: &str| json!({"resources": {"limits": {"memory": memory}}});
        check(bounds.clone(), "Pod", json!({"containers": [with("512Mi"), with("512Mi")]}), &[]);
        let over = "maximum memory usage per Pod is 1Gi, but limit is 1536Mi";
        check(bounds.clone(), "Pod", json!({"containers": [with("1Gi"), with("512Mi")]}), &[over]);
        check(
            bounds,
            "Pod",
            json!({"containers": [{}]}),
            &["maximum memory usage per Pod is 1Gi.  No limit is specified"],
        );
    }

    #[test]
    fn claims_are_bounded_by_what_they_ask_for() {
        let bounds = json!({"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}});
        let claim = |storage: &str| json!({"resources": {"requests": {"storage": storage}}});
        let check = |storage: &str, expected: &[&str]| {
            check(bounds.clone(), "PersistentVolumeClaim", claim(storage), expected);
        };
        check("2Gi", &[]);
        check("3Gi", &["maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"]);
        check("500M", &["minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 500M"]);
    }
}
