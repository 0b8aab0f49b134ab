//! The storage version in force of a custom resource: a small key beside its CRD.
//!
//! The transaction that changes the storage version of a CRD, begins its deletion or deletes it also writes this key.
//! Every write of an object compares the key's revision with the one that its handler was built from. So a server that has
//! not seen the change yet cannot write in the previous version.

use crate::apiextensions::custom_resource_definition::CustomResourceDefinition;
use bytes::Bytes;
use restow_apimachinery::object::Object;
use restow_store::{InvalidKey, Key, Mutation, Put};
use serde::{Deserialize, Serialize};

/// The prefix of the keys. It is no group of custom resources, because these have a dot in their names.
const FOLDER: &str = "/restow/storage-versions-in-force/";

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct InForce {
    /// The uid of the CRD.
    pub(crate) uid: String,
    /// The storage version.
    pub(crate) version: String,
    /// Whether the CRD is being deleted, so that no new objects can be created.
    pub(crate) terminating: bool,
}

impl InForce {
    /// The value for this CRD.
    pub(crate) fn of(crd: &CustomResourceDefinition) -> Option<Self> {
        Some(InForce {
            uid: crd.metadata.uid.clone(),
            version: crd.storage_version()?.to_string(),
            terminating: crd.is_terminating(),
        })
    }

    /// Reads a key's value.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }

    /// The value to store.
    pub(crate) fn to_bytes(&self) -> Bytes {
        // Writing text and a truth value as JSON cannot fail.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// The key for the CRD of this name.
pub(crate) fn key(name: &str) -> Result<Key, InvalidKey> {
    Key::try_from(format!("{FOLDER}{name}"))
}

/// The mutations of the key when a CRD is created, changed or deleted.
pub(crate) fn additional_mutations(old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
    let in_force =
        |object: Option<&Object>| object.and_then(CustomResourceDefinition::of).and_then(|found| InForce::of(&found));
    let Some(key) = new.or(old).and_then(|object| key(object.name()).ok()) else { return Vec::new() };
    match (in_force(old), in_force(new)) {
        (before, Some(after)) if before.as_ref() != Some(&after) => {
            vec![Mutation::Put(Put { key, value: after.to_bytes(), time_to_live: None })]
        }
        (_, None) if new.is_none() => vec![Mutation::Delete(key)],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crd(storage: &str, deleted: bool, labels: &str) -> Object {
        let versions = ["v1", "v2"].map(|name| json!({"name": name, "served": true, "storage": name == storage}));
        let mut metadata = json!({"name": "as.example.com", "uid": "u", "labels": {"x": labels}});
        if deleted {
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        Object::from_value(json!({"metadata": metadata, "spec": {"group": "example.com", "versions": versions}}))
            .unwrap()
    }

    fn check(old: Option<Object>, new: Option<Object>, expected: Option<Option<(&str, bool)>>) {
        let found = additional_mutations(old.as_ref(), new.as_ref());
        let found = found.into_iter().next().map(|mutation| match mutation {
            Mutation::Put(put) => InForce::parse(&put.value).map(|says| (says.version, says.terminating)),
            Mutation::Delete(_) => None,
        });
        let found = found.as_ref().map(|says| says.as_ref().map(|(version, gone)| (version.as_str(), *gone)));
        assert_eq!(found, expected);
    }

    #[test]
    fn the_key_changes_with_the_storage_version_and_with_nothing_else() {
        check(None, Some(crd("v1", false, "a")), Some(Some(("v1", false))));
        check(Some(crd("v1", false, "a")), Some(crd("v1", false, "b")), None);
        check(Some(crd("v1", false, "a")), Some(crd("v2", false, "a")), Some(Some(("v2", false))));
        check(Some(crd("v1", false, "a")), Some(crd("v1", true, "a")), Some(Some(("v1", true))));
        check(Some(crd("v1", true, "a")), None, Some(None));
    }
}
