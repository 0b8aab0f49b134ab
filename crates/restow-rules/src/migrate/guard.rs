//! The guard: whether a CRD may be changed while its objects are migrated.
//!
//! This is the rule of the webhook, for clusters without admission policies; `manifests/guard.yaml` of restow-migrate is
//! the same in CEL.

use super::stored_versions::MIGRATING_ANNOTATION;
use serde_json::Value;

/// Why a change is refused; `None` if it is allowed.
///
/// Only the old CRD decides whether objects are being migrated: the mark and the storage version cannot be changed in one
/// request.
pub fn refusal(old: &Value, new: &Value) -> Option<String> {
    let is_marked = old["metadata"]["annotations"][MIGRATING_ANNOTATION] == "true";
    if !is_marked || storage_versions(old) == storage_versions(new) {
        return None;
    }
    Some(format!(
        "the storage version cannot be changed while the stored objects are being migrated; wait until the annotation \
         {MIGRATING_ANNOTATION} is gone, or remove it if no migration is under way"
    ))
}

fn storage_versions(crd: &Value) -> Vec<&str> {
    let versions = crd["spec"]["versions"].as_array().into_iter().flatten();
    versions.filter(|version| version["storage"] == true).filter_map(|version| version["name"].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crd(stored: &str, mark: Option<&str>) -> Value {
        let version = |name: &str| json!({"name": name, "storage": name == stored});
        let mut crd = json!({"metadata": {}, "spec": {"versions": [version("v1"), version("v2")]}});
        if let Some(mark) = mark {
            crd["metadata"]["annotations"] = json!({ MIGRATING_ANNOTATION: mark });
        }
        crd
    }

    #[test]
    fn only_the_storage_version_of_a_marked_crd_is_guarded() {
        let marked = crd("v1", Some("true"));
        assert!(refusal(&marked, &crd("v2", Some("true"))).is_some());
        assert!(refusal(&marked, &crd("v2", None)).is_some(), "taking the mark away at the same time does not help");
        let mut described = marked.clone();
        described["spec"]["versions"][1]["deprecated"] = json!(true);
        assert_eq!(refusal(&marked, &described), None);
        described["spec"]["versions"] = json!([{"name": "v1", "storage": true}, {"name": "v3", "storage": false}]);
        assert_eq!(refusal(&marked, &described), None, "another version may be added");
        assert_eq!(refusal(&marked, &crd("v1", None)), None, "the mark can be lifted");
        for mark in [None, Some("false")] {
            assert_eq!(refusal(&crd("v1", mark), &crd("v2", mark)), None);
        }
    }
}
