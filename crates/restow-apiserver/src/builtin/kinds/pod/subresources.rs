//! The `resize` and `ephemeralcontainers` subresources of pods.

use restow_apimachinery::object::Object;
use serde_json::Value;

/// The containers that can be resized.
const CONTAINERS: [&[&str]; 2] = [&["spec", "containers"], &["spec", "initContainers"]];

/// Takes the sizes of containers from the request.
pub(super) fn resize(object: &mut Object, sent: &Object, old: &Object) {
    CONTAINERS.iter().for_each(|path| object.set_at(path, resized(sent, old, path)));
}

/// The pod before the change, with the ephemeral containers that were added.
pub(super) fn with_new_ephemeral_containers(object: &Object, old: &Object) -> Object {
    let (mut baseline, path) = (old.clone(), ["spec", "ephemeralContainers"]);
    baseline.set_at(&path, Some(joined(object, old, &path).into()));
    baseline
}

/// The pod before the change, with the sizes that a resize may set.
pub(super) fn with_new_sizes(object: &Object, old: &Object) -> Object {
    let mut baseline = old.clone();
    for path in [CONTAINERS[0], CONTAINERS[1], &["spec", "resources"]] {
        let sent = object.at(path).cloned().unwrap_or_default();
        let mut before = old.at(path).cloned().unwrap_or_default();
        match before.as_array_mut().zip(sent.as_array()) {
            Some((before, sent)) => {
                for (container, sent) in before.iter_mut().zip(sent) {
                    set_sizes(&mut container["resources"], &sent["resources"]);
                }
            }
            None => set_sizes(&mut before, &sent),
        }
        baseline.set_at(path, Some(before).filter(|before| !before.is_null()));
    }
    baseline
}

/// The stored containers with the requested sizes. If the containers differ, this returns the requested ones, which
/// validation refuses later.
fn resized(sent: &Object, old: &Object, path: &[&str]) -> Option<Value> {
    let list = |object: &Object| object.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    let (sent, mut containers) = (list(sent), list(old));
    let same =
        sent.len() == containers.len() && sent.iter().zip(&containers).all(|(one, other)| one["name"] == other["name"]);
    if !same {
        return Some(sent.into());
    }
    for (container, sent) in containers.iter_mut().zip(&sent) {
        match (container.as_object_mut(), sent.get("resources")) {
            (Some(fields), Some(resources)) => drop(fields.insert("resources".into(), resources.clone())),
            (Some(fields), None) => drop(fields.remove("resources")),
            (None, _) => {}
        }
    }
    old.at(path).map(|_| containers.into())
}

/// Sets the fields that a resize may change: requests and limits of cpu and memory.
fn set_sizes(resources: &mut Value, sent: &Value) {
    for part in ["requests", "limits"] {
        for name in ["cpu", "memory"] {
            match sent[part].get(name) {
                Some(size) => resources[part][name] = size.clone(),
                None => {
                    if let Some(sizes) = resources.get_mut(part).and_then(Value::as_object_mut) {
                        sizes.remove(name);
                    }
                }
            }
        }
    }
}

/// The stored list and the added items. Items are identified by name; stored ones do not change.
fn joined(object: &Object, old: &Object, path: &[&str]) -> Vec<Value> {
    let list = |object: &Object| object.at(path).and_then(Value::as_array).cloned().unwrap_or_default();
    let (sent, mut all) = (list(object), list(old));
    let new: Vec<Value> = sent.into_iter().filter(|one| !all.iter().any(|old| old["name"] == one["name"])).collect();
    all.extend(new);
    all
}
