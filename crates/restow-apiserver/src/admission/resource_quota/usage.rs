//! What objects use of a quota: each counts, and pods, claims and services use what they request.

use crate::admission::compute::{self, LIMITS, REQUESTS, amount, containers};
use restow_api::GroupResource;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::Amount;
use serde_json::Value;
use std::collections::BTreeMap;

/// Amounts by the resource names of quotas.
pub(super) type Usage = BTreeMap<String, Amount>;

/// Compute resources, which quotas also accept without `requests.`.
const COMPUTE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// The infix between a storage class and a resource name.
const CLASS: &str = ".storageclass.storage.k8s.io/";

/// The names under which quotas count objects of a resource.
pub(super) fn counted_as(resource: &GroupResource) -> Vec<String> {
    /// Resources with a legacy name, beside `count/…`.
    const OWN: [&str; 7] = [
        "configmaps",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
    ];
    let name = resource.resource();
    match resource.group() {
        "" if OWN.contains(&name) => vec![format!("count/{name}"), name.to_string()],
        "" => vec![format!("count/{name}")],
        group => vec![format!("count/{name}.{group}")],
    }
}

/// Whether objects of a resource use what quotas limit by this name.
pub(super) fn is_taken_by(resource: &GroupResource, name: &str) -> bool {
    counted_as(resource).iter().any(|known| known == name)
        || match core(resource) {
            "pods" => {
                let requested = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
                COMPUTE.contains(&requested)
                    || requested.starts_with("hugepages-")
                    || requested != name && requested != "storage"
            }
            "persistentvolumeclaims" => name == "requests.storage" || name.contains(CLASS),
            "services" => matches!(name, "services.nodeports" | "services.loadbalancers"),
            _ => false,
        }
}

/// Whether this is a count of all objects. Pods that have ended no longer count as pods.
pub(super) fn is_count(resource: &GroupResource, name: &str) -> bool {
    counted_as(resource).iter().any(|known| known == name) && name != "pods"
}

/// What one object uses.
pub(super) fn usage(resource: &GroupResource, object: &Object) -> Usage {
    let mut usage: Usage = counted_as(resource).into_iter().map(|name| (name, Amount::whole(1))).collect();
    match core(resource) {
        "pods" if has_ended(object) => drop(usage.remove("pods")),
        "pods" => compute(object, &mut usage),
        "persistentvolumeclaims" => storage(object, &mut usage),
        "services" => ports(object, &mut usage),
        _ => {}
    }
    usage
}

/// The requests and limits that a quota requires and a pod does not specify, and in which containers.
pub(super) fn unspecified<'a>(pod: &Object, bounded: impl Iterator<Item = &'a String>) -> Vec<String> {
    const NEEDED: [&str; 6] = ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];
    if pod.at(&["spec", "resources"]).is_some() {
        return Vec::new();
    }
    let names = bounded.filter(|name| NEEDED.contains(&name.as_str()));
    let sentences = names.filter_map(|name| {
        let (kind, requested) = name.split_once('.').unwrap_or((REQUESTS, name));
        let silent = containers(pod).filter(|container| amount(container, kind, requested).is_none());
        let mut silent: Vec<&str> = silent.filter_map(|container| container["name"].as_str()).collect();
        silent.sort_unstable();
        (!silent.is_empty()).then(|| format!("{name} for: {}", silent.join(",")))
    });
    sentences.collect()
}

/// The name of a resource of the core group; empty for others.
fn core(resource: &GroupResource) -> &str {
    if resource.group().is_empty() { resource.resource() } else { "" }
}

fn has_ended(pod: &Object) -> bool {
    matches!(pod.text(&["status", "phase"]), "Failed" | "Succeeded")
}

/// The requests and limits of a pod, with its overhead.
fn compute(pod: &Object, usage: &mut Usage) {
    for kind in [REQUESTS, LIMITS] {
        for name in compute::named(pod, kind) {
            let overhead = pod.at(&["spec", "overhead", name]).and_then(Amount::read).unwrap_or_default();
            let total = compute::pod_total(pod, kind, name) + overhead;
            usage.insert(format!("{kind}.{name}"), total);
            if kind == REQUESTS && (COMPUTE.contains(&name.as_str()) || name.starts_with("hugepages-")) {
                usage.insert(name.to_string(), total);
            }
        }
    }
}

fn storage(claim: &Object, usage: &mut Usage) {
    let requested = claim.at(&["spec", "resources", "requests", "storage"]).and_then(Amount::read).unwrap_or_default();
    usage.insert("requests.storage".into(), requested);
    let class = match claim.annotation("volume.beta.kubernetes.io/storage-class") {
        Some(class) => class,
        None => claim.text(&["spec", "storageClassName"]),
    };
    if !class.is_empty() {
        usage.insert(format!("{class}{CLASS}requests.storage"), requested);
        usage.insert(format!("{class}{CLASS}persistentvolumeclaims"), Amount::whole(1));
    }
}

fn ports(service: &Object, usage: &mut Usage) {
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let open = ports.iter().filter(|port| port["nodePort"].as_u64().is_some_and(|port| port != 0)).count();
    let allocates = service.at(&["spec", "allocateLoadBalancerNodePorts"]).is_none_or(|set| set != false);
    let (balancers, nodes) = match service.text(&["spec", "type"]) {
        "NodePort" => (0, ports.len()),
        "LoadBalancer" if allocates => (1, ports.len()),
        "LoadBalancer" => (1, open),
        _ => (0, 0),
    };
    usage.insert("services.nodeports".into(), Amount::whole(nodes as u64));
    usage.insert("services.loadbalancers".into(), Amount::whole(balancers));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resource(name: &str) -> GroupResource {
        let (name, group) = name.split_once('.').unwrap_or((name, ""));
        GroupResource::new(group, name).unwrap()
    }

    fn check(name: &str, object: Value, expected: &[(&str, &str)]) {
        let found = usage(&resource(name), &Object::from_value(object.clone()).unwrap());
        let found: Vec<(&str, String)> = found
            .iter()
            .filter(|(name, _)| !name.starts_with("count/"))
            .map(|(name, amount)| (&**name, amount.write(name.ends_with("memory") || name.ends_with("storage"))))
            .collect();
        let expected: Vec<(&str, String)> = expected.iter().map(|(name, amount)| (*name, amount.to_string())).collect();
        assert_eq!(found, expected, "{object}");
        for (name_of, _) in expected {
            assert!(is_taken_by(&resource(name), name_of), "{name_of}");
        }
    }

    #[test]
    fn quotas_count_under_kubernetes_names() {
        assert_eq!(counted_as(&resource("configmaps")), ["count/configmaps", "configmaps"]);
        assert_eq!(counted_as(&resource("bindings")), ["count/bindings"]);
        assert_eq!(counted_as(&resource("deployments.apps")), ["count/deployments.apps"]);
        assert!(!is_taken_by(&resource("configmaps"), "requests.cpu"));
        assert!(!is_taken_by(&resource("pods"), "requests.storage"));
        assert!(is_taken_by(&resource("pods"), "requests.example.com/gpu"));
        assert!(is_count(&resource("pods"), "count/pods") && !is_count(&resource("pods"), "pods"));
        assert!(is_count(&resource("configmaps"), "configmaps") && !is_count(&resource("configmaps"), "secrets"));
        for (name, expected) in [
            ("cpu", true),
            ("requests.memory", true),
            ("limits.cpu", true),
            ("hugepages-2Mi", true),
            ("requests.hugepages-2Mi", true),
            ("example.com/gpu", false),
            ("secrets", false),
        ] {
            assert_eq!(is_taken_by(&resource("pods"), name), expected, "{name}");
        }
        assert!(is_taken_by(&resource("services"), "services.nodeports"));
        assert!(!is_taken_by(&resource("services"), "requests.storage"));
        assert!(!is_taken_by(&resource("persistentvolumeclaims"), "requests.cpu"));
        assert!(!is_taken_by(&resource("pods.metrics.k8s.io"), "requests.cpu"), "not the pods of the core group");
    }

    #[test]
    fn pods_take_what_their_containers_do_at_most() {
        let with = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let mut side = with("1");
        side["restartPolicy"] = "Always".into();
        check("pods", json!({"spec": {"containers": [{}]}}), &[("pods", "1")]);
        check(
            "pods",
            json!({"spec": {"containers": [with("250m"), with("0.5")], "initContainers": [with("700m")]}}),
            &[("cpu", "750m"), ("pods", "1"), ("requests.cpu", "750m")],
        );
        check(
            "pods",
            json!({"spec": {"containers": [with("1")], "initContainers": [with("3"), side, with("1")], "overhead": {"cpu": "1"}}}),
            &[("cpu", "4"), ("pods", "1"), ("requests.cpu", "4")],
        );
        let limits = json!({"limits": {"memory": "1Gi"}, "requests": {"example.com/gpu": 2}});
        check(
            "pods",
            json!({"spec": {"containers": [{"resources": limits}]}}),
            &[
                ("limits.memory", "1Gi"),
                ("memory", "1Gi"),
                ("pods", "1"),
                ("requests.example.com/gpu", "2"),
                ("requests.memory", "1Gi"),
            ],
        );
        check("pods", json!({"spec": {"containers": [with("1")]}, "status": {"phase": "Succeeded"}}), &[]);
        let huge = json!({"limits": {"hugepages-2Mi": "4Mi"}});
        check(
            "pods",
            json!({"spec": {"containers": [{"resources": huge}]}, "status": {"phase": "Running"}}),
            &[
                ("hugepages-2Mi", "4194304"),
                ("limits.hugepages-2Mi", "4194304"),
                ("pods", "1"),
                ("requests.hugepages-2Mi", "4194304"),
            ],
        );
    }

    #[test]
    fn pods_must_say_what_quotas_bound() {
        let bounded = ["cpu", "limits.memory", "pods", "requests.cpu", "requests.example.com/gpu"].map(String::from);
        let found = |pod: Value| unspecified(&Object::from_value(pod).unwrap(), bounded.iter()).join("; ");
        let containers = json!([{"name": "b", "resources": {"requests": {"cpu": "1"}}},
            {"name": "a", "resources": {"limits": {"cpu": "1"}}}]);
        assert_eq!(found(json!({"spec": {"containers": containers}})), "limits.memory for: a,b");
        let silent = json!([{"name": "a"}]);
        let all = "cpu for: a; limits.memory for: a; requests.cpu for: a";
        assert_eq!(found(json!({"spec": {"containers": silent}})), all);
        assert_eq!(found(json!({"spec": {"containers": silent, "resources": {"limits": {"cpu": "1"}}}})), "");
    }

    #[test]
    fn claims_take_storage_and_services_take_ports() {
        let spec = json!({"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "gold"});
        check(
            "persistentvolumeclaims",
            json!({"spec": spec}),
            &[
                ("gold.storageclass.storage.k8s.io/persistentvolumeclaims", "1"),
                ("gold.storageclass.storage.k8s.io/requests.storage", "1Gi"),
                ("persistentvolumeclaims", "1"),
                ("requests.storage", "1Gi"),
            ],
        );
        check(
            "persistentvolumeclaims",
            json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
            &[("persistentvolumeclaims", "1"), ("requests.storage", "2Gi")],
        );
        for (kind, allocates, nodes, balancers) in [
            ("ClusterIP", true, "0", "0"),
            ("NodePort", true, "3", "0"),
            ("LoadBalancer", true, "3", "1"),
            ("LoadBalancer", false, "1", "1"),
        ] {
            let ports = json!([{"port": 80, "nodePort": 30080}, {"port": 81}, {"port": 82, "nodePort": 0}]);
            check(
                "services",
                json!({"spec": {"type": kind, "ports": ports, "allocateLoadBalancerNodePorts": allocates}}),
                &[("services", "1"), ("services.loadbalancers", balancers), ("services.nodeports", nodes)],
            );
        }
    }
}
