//! Which storage version of a custom resource is in force, as a small key beside its definition.
//!
//! The transaction that changes a definition's storage version, begins its deletion or removes it also writes this key.
//! Every write of an object compares the key's revision with the one that its handler was built from. So a server that
//! has not heard of the change yet cannot write in the version of before.

use crate::apiextensions::definition::Definition;
use bytes::Bytes;
use restow_apimachinery::object::Object;
use restow_store::{InvalidKey, Key, Mutation, Put};
use serde::{Deserialize, Serialize};

/// Where the keys are. No resource lies there: a group of custom resources has a dot in its name.
const FOLDER: &str = "/restow/storage-versions-in-force/";

/// What a key says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct InForce {
    /// The definition's unique id.
    pub(crate) uid: String,
    /// The storage version.
    pub(crate) version: String,
    /// Whether new objects can be created, or everything is about to go.
    pub(crate) terminating: bool,
}

impl InForce {
    /// What the key of this definition has to say.
    pub(crate) fn of(definition: &Definition) -> Option<Self> {
        Some(InForce {
            uid: definition.metadata.uid.clone(),
            version: definition.storage_version()?.to_string(),
            terminating: definition.is_terminating(),
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

/// The key of the definition of this name.
pub(crate) fn key(name: &str) -> Result<Key, InvalidKey> {
    Key::try_from(format!("{FOLDER}{name}"))
}

/// What changes beside a definition that is created, changed or removed.
pub(crate) fn alongside(old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
    let says = |object: Option<&Object>| object.and_then(Definition::of).and_then(|found| InForce::of(&found));
    let Some(key) = new.or(old).and_then(|object| key(object.name()).ok()) else { return Vec::new() };
    match (says(old), says(new)) {
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

    fn definition(storage: &str, deleted: bool, labels: &str) -> Object {
        let versions = ["v1", "v2"].map(|name| json!({"name": name, "served": true, "storage": name == storage}));
        let mut metadata = json!({"name": "as.example.com", "uid": "u", "labels": {"x": labels}});
        if deleted {
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        Object::from_value(json!({"metadata": metadata, "spec": {"group": "example.com", "versions": versions}}))
            .unwrap()
    }

    fn check(old: Option<Object>, new: Option<Object>, expected: Option<Option<(&str, bool)>>) {
        let found = alongside(old.as_ref(), new.as_ref());
        let found = found.into_iter().next().map(|mutation| match mutation {
            Mutation::Put(put) => InForce::parse(&put.value).map(|says| (says.version, says.terminating)),
            Mutation::Delete(_) => None,
        });
        let found = found.as_ref().map(|says| says.as_ref().map(|(version, gone)| (version.as_str(), *gone)));
        assert_eq!(found, expected);
    }

    #[test]
    fn the_key_changes_with_the_storage_version_and_with_nothing_else() {
        check(None, Some(definition("v1", false, "a")), Some(Some(("v1", false))));
        check(Some(definition("v1", false, "a")), Some(definition("v1", false, "b")), None);
        check(Some(definition("v1", false, "a")), Some(definition("v2", false, "a")), Some(Some(("v2", false))));
        check(Some(definition("v1", false, "a")), Some(definition("v1", true, "a")), Some(Some(("v1", true))));
        check(Some(definition("v1", true, "a")), None, Some(None));
    }
}
