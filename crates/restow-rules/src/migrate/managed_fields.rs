//! managedFields entries that name a version which is going to be removed.
//!
//! Every entry of an object's `metadata.managedFields` names an API version. When that version is removed, the API server
//! cannot read the entry any more, and server-side apply fails or forgets the owners. So such entries are moved to a
//! version that stays. The server drops paths of fields that this version does not have.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// One version of a CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionView {
    /// The version.
    pub name: String,
    /// Whether clients can use it.
    pub is_served: bool,
    /// Whether clients are told not to.
    pub is_deprecated: bool,
}

/// Which versions managedFields entries may keep, and to which one others are moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedFieldsPlan {
    /// The `apiVersion`s that stay.
    pub staying: BTreeSet<String>,
    /// The `apiVersion` that others are moved to.
    pub target: String,
}

/// The `apiVersion`s that entries may keep.
pub fn staying(group: &str, versions: &[VersionView], storage_version: &str) -> BTreeSet<String> {
    let stays =
        |version: &&VersionView| version.name == storage_version || (version.is_served && !version.is_deprecated);
    versions.iter().filter(stays).map(|version| format!("{group}/{}", version.name)).collect()
}

/// The entries, with those of other versions moved to `target`; `None` if there is nothing to move.
///
/// An entry with the same identity at the target (manager, operation, subresource and time) is merged with it, because
/// identities have to be unique.
pub fn moved(entries: &[Value], staying: &BTreeSet<String>, target: &str) -> Option<Vec<Value>> {
    let names_a_going_version =
        |entry: &Value| entry["apiVersion"].as_str().is_some_and(|version| !staying.contains(version));
    if !entries.iter().any(names_a_going_version) {
        return None;
    }
    let mut result: Vec<Value> = Vec::new();
    for entry in entries {
        let mut entry = entry.clone();
        if names_a_going_version(&entry) {
            entry["apiVersion"] = Value::from(target);
        }
        match result.iter_mut().find(|other| is_twin(other, &entry)) {
            Some(twin) => unite(&mut twin["fieldsV1"], &entry["fieldsV1"]),
            None => result.push(entry),
        }
    }
    Some(result)
}

/// Whether both entries have the same identity. For Apply the time does not count.
fn is_twin(one: &Value, other: &Value) -> bool {
    let same = |field: &str| one[field] == other[field];
    let same_time = same("time") || one["operation"] == "Apply";
    same("manager") && same("operation") && same("subresource") && same("apiVersion") && same_time
}

/// Adds the paths of `more` to `paths`.
fn unite(paths: &mut Value, more: &Value) {
    let Value::Object(more) = more else { return };
    if !paths.is_object() {
        *paths = Value::Object(Map::new());
    }
    if let Value::Object(paths) = paths {
        for (name, below) in more {
            unite(paths.entry(name).or_insert_with(|| Value::Object(Map::new())), below);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn version(name: &str, is_served: bool, is_deprecated: bool) -> VersionView {
        VersionView { name: name.into(), is_served, is_deprecated }
    }

    #[test]
    fn versions_that_are_served_or_stored_stay_unless_deprecated() {
        let versions = [version("v1", true, true), version("v2", true, false), version("v3", false, false)];
        let names = |storage| staying("x.io", &versions, storage).into_iter().collect::<Vec<_>>();
        assert_eq!(names("v2"), ["x.io/v2"]);
        assert_eq!(names("v1"), ["x.io/v1", "x.io/v2"]);
        assert_eq!(names("v3"), ["x.io/v2", "x.io/v3"]);
    }

    #[test]
    fn entries_of_going_versions_move_and_twins_unite() {
        let staying = BTreeSet::from(["x.io/v2".to_owned()]);
        let entry = |manager: &str, version: &str, fields: Value| json!({"manager": manager, "operation": "Apply", "apiVersion": version, "fieldsV1": fields});
        let entries = [
            entry("a", "x.io/v1", json!({"f:spec": {"f:size": {}}})),
            entry("a", "x.io/v2", json!({"f:spec": {"f:color": {}}})),
            entry("b", "x.io/v2", json!({"f:spec": {}})),
        ];
        let expected = vec![
            entry("a", "x.io/v2", json!({"f:spec": {"f:size": {}, "f:color": {}}})),
            entry("b", "x.io/v2", json!({"f:spec": {}})),
        ];
        assert_eq!(moved(&entries, &staying, "x.io/v2"), Some(expected.clone()));
        assert_eq!(moved(&expected, &staying, "x.io/v2"), None, "what was moved needs no moving");
    }

    #[test]
    fn updates_of_different_times_stay_apart() {
        let update = |time: &str| json!({"manager": "a", "operation": "Update", "apiVersion": "x.io/v1", "time": time});
        let moved = moved(&[update("1"), update("2")], &BTreeSet::new(), "x.io/v2").unwrap();
        assert_eq!(moved.len(), 2);
    }

    #[test]
    fn the_time_of_an_apply_does_not_count() {
        let entry = |operation: &str, version: &str, time: &str| {
            let fields = json!({ format!("f:{time}"): {} });
            json!({"manager": "a", "operation": operation, "apiVersion": version, "time": time, "fieldsV1": fields})
        };
        let count = |operation: &str, times: [&str; 2]| {
            let entries = [entry(operation, "x.io/v1", times[0]), entry(operation, "x.io/v2", times[1])];
            moved(&entries, &BTreeSet::from(["x.io/v2".to_owned()]), "x.io/v2").unwrap().len()
        };
        assert_eq!((count("Apply", ["1", "2"]), count("Apply", ["1", "1"])), (1, 1));
        assert_eq!((count("Update", ["1", "2"]), count("Update", ["1", "1"])), (2, 1));
    }
}
