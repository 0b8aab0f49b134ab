//! Which objects a quota covers: all, or those in its scopes.

use crate::admission::compute::containers;
use restow_api::GroupResource;
use restow_apimachinery::object::Object;
use serde_json::Value;

/// Whether a quota has scopes.
pub(super) fn is_scoped(quota: &Object) -> bool {
    !requirements(quota).is_empty()
}

/// Whether a quota covers an object. One with scopes covers only pods that are in all of its scopes.
pub(super) fn covers(quota: &Object, resource: &GroupResource, object: &Object) -> bool {
    let requirements = requirements(quota);
    let is_pod = resource.group().is_empty() && resource.resource() == "pods";
    requirements.is_empty() || is_pod && requirements.iter().all(|requirement| requirement.holds(object))
}

/// A requirement of a scope selector.
struct Requirement<'a> {
    scope: &'a str,
    operator: &'a str,
    values: &'a [Value],
}

fn requirements(quota: &Object) -> Vec<Requirement<'_>> {
    let list = |path: &[&str]| quota.at(path).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let plain = list(&["spec", "scopes"]).iter().filter_map(Value::as_str);
    let plain = plain.map(|scope| Requirement { scope, operator: "Exists", values: &[] });
    let selected = list(&["spec", "scopeSelector", "matchExpressions"]).iter().map(|expression| Requirement {
        scope: expression["scopeName"].as_str().unwrap_or_default(),
        operator: expression["operator"].as_str().unwrap_or_default(),
        values: expression["values"].as_array().map_or(&[], Vec::as_slice),
    });
    plain.chain(selected).collect()
}

impl Requirement<'_> {
    fn holds(&self, pod: &Object) -> bool {
        let ends = pod.at(&["spec", "activeDeadlineSeconds"]).and_then(Value::as_i64).is_some_and(|time| time >= 0);
        let class = pod.text(&["spec", "priorityClassName"]);
        let named = || self.values.iter().any(|value| value == class);
        match (self.scope, self.operator) {
            ("Terminating", _) => ends,
            ("NotTerminating", _) => !ends,
            ("BestEffort", _) => is_best_effort(pod),
            ("NotBestEffort", _) => !is_best_effort(pod),
            ("PriorityClass", "Exists") => !class.is_empty(),
            ("PriorityClass", "DoesNotExist") => class.is_empty(),
            ("PriorityClass", "In") => named(),
            ("PriorityClass", "NotIn") => !named(),
            ("CrossNamespacePodAffinity", _) => crosses_namespaces(pod),
            _ => false,
        }
    }
}

/// Whether no container has requests or limits of cpu or memory.
fn is_best_effort(pod: &Object) -> bool {
    let said = |container: &Value, kind: &str, name: &str| {
        let value = &container["resources"][kind][name];
        !value.is_null() && value != "0" && value != 0
    };
    !containers(pod).any(|container| {
        ["requests", "limits"].iter().any(|kind| ["cpu", "memory"].iter().any(|name| said(container, kind, name)))
    })
}

/// Whether a pod has affinity or anti-affinity to pods of other namespaces.
fn crosses_namespaces(pod: &Object) -> bool {
    let affinity = pod.at(&["spec", "affinity"]).unwrap_or(&Value::Null);
    let terms = ["podAffinity", "podAntiAffinity"].into_iter().flat_map(|kind| {
        let list = |field: &str| affinity[kind][field].as_array().map_or(&[][..], Vec::as_slice);
        let preferred =
            list("preferredDuringSchedulingIgnoredDuringExecution").iter().map(|term| &term["podAffinityTerm"]);
        list("requiredDuringSchedulingIgnoredDuringExecution").iter().chain(preferred)
    });
    let mut terms = terms;
    terms.any(|term| {
        term["namespaces"].as_array().is_some_and(|names| !names.is_empty()) || !term["namespaceSelector"].is_null()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quotas_cover_pods_in_all_their_scopes() {
        let pods = GroupResource::new("", "pods").unwrap();
        let object = |value: Value| Object::from_value(value).unwrap();
        let select = |scope: &str, operator: &str, values: &[&str]| {
            let expression = json!({"scopeName": scope, "operator": operator, "values": values});
            json!({"scopeSelector": {"matchExpressions": [expression]}})
        };
        let plain = json!({"containers": [{}]});
        let term = json!({"namespaceSelector": {}});
        for (quota, pod, expected) in [
            (json!({}), plain.clone(), true),
            (json!({"scopes": []}), plain.clone(), true),
            (json!({"scopes": ["BestEffort"]}), plain.clone(), true),
            (json!({"scopes": ["NotBestEffort"]}), plain.clone(), false),
            (json!({"scopes": ["BestEffort", "Terminating"]}), plain.clone(), false),
            (
                json!({"scopes": ["BestEffort"]}),
                json!({"containers": [{"resources": {"limits": {"cpu": "1"}}}]}),
                false,
            ),
            (json!({"scopes": ["Terminating"]}), json!({"activeDeadlineSeconds": 5}), true),
            (json!({"scopes": ["NotTerminating"]}), json!({"activeDeadlineSeconds": 5}), false),
            (json!({"scopes": ["PriorityClass"]}), json!({"priorityClassName": "high"}), true),
            (select("PriorityClass", "In", &["low", "high"]), json!({"priorityClassName": "high"}), true),
            (select("PriorityClass", "In", &["low"]), json!({"priorityClassName": "high"}), false),
            (select("PriorityClass", "NotIn", &["low"]), json!({"priorityClassName": "high"}), true),
            (select("PriorityClass", "DoesNotExist", &[]), json!({"priorityClassName": "high"}), false),
            (select("CrossNamespacePodAffinity", "Exists", &[]), plain.clone(), false),
            (
                select("CrossNamespacePodAffinity", "Exists", &[]),
                json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}),
                true,
            ),
            (select("Unknown", "Exists", &[]), plain.clone(), false),
            (select("PriorityClass", "NotIn", &["low", "high"]), json!({"priorityClassName": "high"}), false),
            (select("PriorityClass", "DoesNotExist", &[]), plain.clone(), true),
            (json!({"scopes": ["PriorityClass"]}), plain.clone(), false),
            (json!({"scopes": ["Terminating"]}), plain.clone(), false),
            (json!({"scopes": ["Terminating"]}), json!({"activeDeadlineSeconds": 0}), true),
            (json!({"scopes": ["Terminating"]}), json!({"activeDeadlineSeconds": -1}), false),
            (json!({"scopes": ["NotTerminating"]}), plain.clone(), true),
            (
                json!({"scopes": ["BestEffort"]}),
                json!({"containers": [{"resources": {"limits": {"cpu": "0", "memory": 0}}}]}),
                true,
            ),
            (
                json!({"scopes": ["NotBestEffort"]}),
                json!({"containers": [{}, {"resources": {"requests": {"memory": "1Mi"}}}]}),
                true,
            ),
            (
                select("CrossNamespacePodAffinity", "Exists", &[]),
                json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"podAffinityTerm": {"namespaces": ["other"]}},
                ]}}}),
                true,
            ),
            (
                select("CrossNamespacePodAffinity", "Exists", &[]),
                json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"namespaces": []},
                ]}}}),
                false,
            ),
        ] {
            let found = covers(&object(json!({"spec": quota})), &pods, &object(json!({"spec": pod})));
            assert_eq!(found, expected, "{quota} {pod}");
        }
        let secrets = GroupResource::new("", "secrets").unwrap();
        let (scoped, plain) = (object(json!({"spec": {"scopes": ["BestEffort"]}})), object(json!({"spec": {}})));
        assert!(!covers(&scoped, &secrets, &object(json!({}))));
        assert!(covers(&plain, &secrets, &object(json!({}))));
        let metrics = GroupResource::new("metrics.k8s.io", "pods").unwrap();
        assert!(!covers(&scoped, &metrics, &object(json!({}))), "not the pods of the core group");
        assert!(is_scoped(&scoped) && !is_scoped(&plain));
    }
}
