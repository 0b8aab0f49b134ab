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
/// An entry with the same identity at the target (manager, operation and subresource) is merged with it, because identities
/// have to be unique: of two entries with the same one, an API server keeps only the last.
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
            Some(twin) => {
                unite(&mut twin["fieldsV1"], &entry["fieldsV1"]);
                // Both are in RFC 3339, in UTC.
                if twin["time"].as_str() < entry["time"].as_str() {
                    twin["time"] = entry["time"].take();
                }
            }
            None => result.push(entry),
        }
    }
    Some(result)
}

/// Whether both entries have the same identity. The time is not part of it.
fn is_twin(one: &Value, other: &Value) -> bool {
    ["manager", "operation", "subresource", "apiVersion"].iter().all(|field| one[*field] == other[*field])
}

/// Adds the paths of `more` to `paths`.
fn unite(paths: &mut Value, more: &Value) {
    let Value::Object(more) = more else { return };
    if !paths.is_object() {
        *paths = Value::Object(Map::new());
    }
    let Value::Object(paths) = paths else { return };
    for (name, below) in more {
        match paths.get_mut(name) {
            Some(known) => {
                // A field without fields below it is owned itself. With such fields, a dot says so.
                let is_owned = is_empty(known) != is_empty(below);
                unite(known, below);
                if let (true, Value::Object(known)) = (is_owned, known) {
                    known.insert(".".to_owned(), Value::Object(Map::new()));
                }
            }
            None => drop(paths.insert(name.clone(), below.clone())),
        }
    }
}

fn is_empty(fields: &Value) -> bool {
    fields.as_object().is_none_or(Map::is_empty)
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
    fn updates_of_different_times_have_the_same_identity() {
        let update = |version: &str, time: &str, fields: Value| json!({"manager": "a", "operation": "Update", "apiVersion": version, "time": time, "fieldsV1": fields});
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let (size, color) = (json!({"f:size": {}}), json!({"f:color": {}}));
        let staying = BTreeSet::from(["x.io/v2".to_owned()]);
        let both = json!({"f:size": {}, "f:color": {}});
        for (first, second) in [(early, late), (late, early)] {
            let entries = [update("x.io/v1", first, size.clone()), update("x.io/v2", second, color.clone())];
            assert_eq!(moved(&entries, &staying, "x.io/v2"), Some(vec![update("x.io/v2", late, both.clone())]));
        }
        let (field, child) = (json!({"f:labels": {}}), json!({"f:labels": {"f:a": {}}}));
        let field_and_child = json!({"f:labels": {".": {}, "f:a": {}}});
        for (first, second) in [(&field, &child), (&child, &field)] {
            let entries = [update("x.io/v1", early, first.clone()), update("x.io/v2", late, second.clone())];
            let united = update("x.io/v2", late, field_and_child.clone());
            assert_eq!(moved(&entries, &staying, "x.io/v2"), Some(vec![united]), "the field itself stays owned");
        }
        let status = json!({"manager": "a", "operation": "Update", "apiVersion": "x.io/v2", "subresource": "status"});
        assert_eq!(moved(&[update("x.io/v1", early, size), status], &staying, "x.io/v2").unwrap().len(), 2);
    }
}
