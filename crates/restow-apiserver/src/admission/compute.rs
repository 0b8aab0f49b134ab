//! Resource requests and limits of pods: containers run concurrently, init containers one after the other, and sidecars
//! beside all later containers.

use restow_apimachinery::object::Object;
use restow_apimachinery::types::Amount;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The fields of `resources`, in the order of Kubernetes' messages.
pub(super) const REQUESTS: &str = "requests";
pub(super) const LIMITS: &str = "limits";

/// All containers of a pod, including init containers.
pub(super) fn containers(pod: &Object) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().filter_map(|field| pod.at(&["spec", field])?.as_array()).flatten()
}

/// The request or limit of a container. A request defaults to the limit.
pub(super) fn amount(container: &Value, kind: &str, name: &str) -> Option<Amount> {
    let value = |kind: &str| Amount::read(&container["resources"][kind][name]);
    value(kind).or_else(|| if kind == REQUESTS { value(LIMITS) } else { None })
}

/// The names of the resources for which a pod has requests or limits.
pub(super) fn named<'a>(pod: &'a Object, kind: &str) -> BTreeSet<&'a String> {
    let kinds = if kind == REQUESTS { &[REQUESTS, LIMITS][..] } else { &[LIMITS] };
    let holders = containers(pod).chain(pod.get("spec"));
    let value = holders.flat_map(|holder| kinds.iter().filter_map(|kind| holder["resources"][kind].as_object()));
    value.flat_map(Map::keys).collect()
}

/// The total request or limit of a pod, without its overhead.
pub(super) fn pod_total(pod: &Object, kind: &str, name: &str) -> Amount {
    let list = |field| pod.at(&["spec", field]).and_then(Value::as_array).into_iter().flatten();
    let of = |container| amount(container, kind, name).unwrap_or_default();
    let (mut beside, mut largest) = (Amount::default(), Amount::default());
    for container in list("initContainers") {
        let peak = beside + of(container);
        largest = largest.max(peak);
        if container["restartPolicy"] == "Always" {
            beside = peak;
        }
    }
    let running = list("containers").map(of).fold(beside, |sum, amount| sum + amount);
    // Pod-level resources override the sum of the containers.
    let own = pod.get("spec").and_then(|spec| amount(spec, kind, name));
    own.unwrap_or(largest.max(running))
}

/// An amount as a quantity: memory and storage in powers of 1024, all else in powers of ten.
pub(super) fn written(name: &str, amount: Amount) -> String {
    amount.write(["memory", "storage"].iter().any(|what| name.ends_with(what)) || name.contains("hugepages-"))
}
