//! A resource in aggregated discovery, as other API servers describe theirs. It has the types that clients decode: one value of
//! another type in the document would make it unreadable as a whole.

use restow_api::GroupVersion;
use serde::{Deserialize, Deserializer, Serialize};

/// A resource (APIResourceDiscovery).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DiscoveredResource {
    /// The plural.
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) resource: String,
    /// The kind of its objects. Some clients cannot read a resource without one.
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) response_kind: DiscoveredKind,
    /// `Namespaced` or `Cluster`.
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) scope: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) singular_resource: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) verbs: Vec<String>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) short_names: Vec<String>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) categories: Vec<String>,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) subresources: Vec<DiscoveredSubresource>,
}

/// A subresource (APISubresourceDiscovery).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DiscoveredSubresource {
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) subresource: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) response_kind: DiscoveredKind,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub(crate) accepted_types: Vec<DiscoveredKind>,
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) verbs: Vec<String>,
}

/// A kind (GroupVersionKind).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct DiscoveredKind {
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) group: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) version: String,
    #[serde(deserialize_with = "null_as_default")]
    pub(crate) kind: String,
}

/// A resource or a subresource in the older form of discovery (APIResource).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ListedResource {
    #[serde(deserialize_with = "null_as_default")]
    name: String,
    #[serde(deserialize_with = "null_as_default")]
    singular_name: String,
    #[serde(deserialize_with = "null_as_default")]
    namespaced: bool,
    #[serde(deserialize_with = "null_as_default")]
    group: String,
    #[serde(deserialize_with = "null_as_default")]
    version: String,
    #[serde(deserialize_with = "null_as_default")]
    kind: String,
    #[serde(deserialize_with = "null_as_default")]
    verbs: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    short_names: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    categories: Vec<String>,
}

impl DiscoveredResource {
    /// Whether it has a verb.
    pub(crate) fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }
}

/// The resources of a group-version in the form of aggregated discovery.
pub(crate) fn converted(list: Vec<ListedResource>, version: &GroupVersion) -> Vec<DiscoveredResource> {
    let mut found: Vec<DiscoveredResource> = Vec::new();
    let mut subresources: Vec<(String, DiscoveredSubresource)> = Vec::new();
    for entry in list {
        let or = |text: String, default: &str| if text.is_empty() { default.to_string() } else { text };
        let response_kind = DiscoveredKind {
            group: or(entry.group, version.group()),
            version: or(entry.version, version.version()),
            kind: entry.kind,
        };
        if let Some((resource, subresource)) = entry.name.split_once('/') {
            let (subresource, verbs) = (subresource.to_string(), entry.verbs);
            let shown = DiscoveredSubresource { subresource, response_kind, accepted_types: Vec::new(), verbs };
            subresources.push((resource.to_string(), shown));
            continue;
        }
        found.push(DiscoveredResource {
            resource: entry.name,
            response_kind,
            scope: if entry.namespaced { "Namespaced" } else { "Cluster" }.to_string(),
            singular_resource: entry.singular_name,
            verbs: entry.verbs,
            short_names: entry.short_names,
            categories: entry.categories,
            subresources: Vec::new(),
        });
    }
    for (resource, subresource) in subresources {
        let parent = found.iter_mut().find(|shown| shown.resource == resource);
        parent.into_iter().for_each(|parent| parent.subresources.push(subresource.clone()));
    }
    found
}

/// Go writes an empty list as `null`, and reads `null` as the zero value.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_older_form_of_discovery_is_converted() {
        let version: GroupVersion = "garden.example/v1".parse().unwrap();
        let list = json!([
            {"name": "plants", "singularName": "plant", "namespaced": true, "kind": "Plant", "verbs": ["get"],
             "shortNames": ["pl"], "categories": null, "storageVersionHash": "x"},
            {"name": "plants/scale", "namespaced": true, "kind": "Scale", "group": "autoscaling", "version": "v1",
             "verbs": ["get", "update"]},
        ]);
        let expected = json!([{
            "resource": "plants", "scope": "Namespaced", "singularResource": "plant", "verbs": ["get"], "shortNames": ["pl"],
            "responseKind": {"group": "garden.example", "version": "v1", "kind": "Plant"},
            "subresources": [{
                "subresource": "scale", "verbs": ["get", "update"],
                "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
            }],
        }]);
        let found = converted(serde_json::from_value(list).unwrap(), &version);
        assert_eq!(serde_json::to_value(found).unwrap(), expected);
    }

    #[test]
    fn a_value_of_a_wrong_type_is_refused_and_null_is_empty() {
        let check = |field: &str, value: Value, expected: bool| {
            let read = serde_json::from_value::<DiscoveredResource>(json!({"resource": "plants", field: value}));
            assert_eq!(read.is_ok(), expected, "{field}");
        };
        check("verbs", json!("get"), false);
        check("verbs", json!(["get", 1]), false);
        check("shortNames", json!(7), false);
        check("responseKind", json!("Plant"), false);
        check("subresources", json!([{"subresource": "scale", "verbs": "get"}]), false);
        check("subresources", json!(["scale"]), false);
        for field in ["verbs", "shortNames", "categories", "responseKind", "subresources", "scope", "singularResource"]
        {
            check(field, Value::Null, true);
        }
        assert!(serde_json::from_value::<DiscoveredResource>(json!("plants")).is_err());
    }
}
