//! What pods ask for and are held to: their containers run side by side, the first ones one after the other, and of those
//! some go on beside all that come later.

use restow_apimachinery::object::Object;
use restow_apimachinery::types::Amount;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The two things that are said of a resource, in the order in which Kubernetes speaks of them.
pub(super) const REQUESTS: &str = "requests";
pub(super) const LIMITS: &str = "limits";

/// All containers of a pod, those that come first included.
pub(super) fn containers(pod: &Object) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().filter_map(|field| pod.at(&["spec", field])?.as_array()).flatten()
}

/// What a container asks for, or is held to. Who is held to something and asks for nothing asks for all of that.
pub(super) fn amount(container: &Value, kind: &str, name: &str) -> Option<Amount> {
    let said = |kind: &str| Amount::read(&container["resources"][kind][name]);
    said(kind).or_else(|| if kind == REQUESTS { said(LIMITS) } else { None })
}

/// Of what a pod asks for something, or is held to it.
pub(super) fn named<'a>(pod: &'a Object, kind: &str) -> BTreeSet<&'a String> {
    let kinds = if kind == REQUESTS { &[REQUESTS, LIMITS][..] } else { &[LIMITS] };
    let speakers = containers(pod).chain(pod.get("spec"));
    let said = speakers.flat_map(|speaker| kinds.iter().filter_map(|kind| speaker["resources"][kind].as_object()));
    said.flat_map(Map::keys).collect()
}

/// What a pod asks for or is held to in all, without what running it takes.
pub(super) fn in_all(pod: &Object, kind: &str, name: &str) -> Amount {
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
    // What a pod says of itself counts more than what its containers do.
    let own = pod.get("spec").and_then(|spec| amount(spec, kind, name));
    own.unwrap_or(largest.max(running))
}

/// An amount as people write it: what is stored in powers of 1024, all else in powers of ten.
pub(super) fn written(name: &str, amount: Amount) -> String {
    amount.write(["memory", "storage"].iter().any(|what| name.ends_with(what)) || name.contains("hugepages-"))
}
