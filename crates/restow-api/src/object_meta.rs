//! Object metadata: the fields that our rules read; other fields are kept unchanged.

use crate::{ResourceVersion, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// An object's metadata. Other fields are kept unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// The object's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The prefix of a generated name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    /// The object's namespace; empty for cluster-scoped objects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The unique id.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The revision of this object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<ResourceVersion>,
    /// The number of changes of the specification; zero if it is not set.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// When the object was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// The object's labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The object's annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// All other fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A list's metadata. Other fields are kept unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    /// The revision at which the list was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<ResourceVersion>,
    /// The continue token of the next page; empty on the last one.
    #[serde(rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
    /// All other fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ObjectMeta {
    /// The metadata of an object with only a name.
    pub fn named(name: impl Into<String>) -> Self {
        ObjectMeta { name: name.into(), ..ObjectMeta::default() }
    }
}

/// Whether Go's `omitempty` would omit this number.
pub(crate) fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_metadata_fields_survive_a_round_trip() {
        let wire = json!({
            "name": "core.pods", "uid": "u-1", "resourceVersion": "17", "generation": 3,
            "creationTimestamp": "2026-11-15T21:34:05Z", "labels": {"a": "b"},
            "managedFields": [{"manager": "m"}], "finalizers": ["x/y"],
        });
        let read: ObjectMeta = serde_json::from_value(wire.clone()).unwrap();
        assert_eq!(read.generation, 3);
        assert_eq!(serde_json::to_value(&read).unwrap(), wire);
    }

    #[test]
    fn go_writes_null_for_a_time_that_is_not_set() {
        let read: ObjectMeta = serde_json::from_value(json!({"name": "a", "creationTimestamp": null})).unwrap();
        assert_eq!(read, ObjectMeta::named("a"));
    }
}
