//! What clients write about identities and storage versions: aggregated servers take their leases and report through the API.
//!
//! Such a server cannot compare the list of leases in the transaction that writes its report, so what follows from its report is
//! concluded here, where that can be done; and it cannot tell that it joins, so that is told for it.

use super::Agreement;
use super::keys;
use super::lease_watch::{IDENTITY_LABEL, Roll};
use crate::error::ApiError;
use crate::resource::{Origin, Resource};
use jiff::Timestamp;
use restow_api::internal_apiserver::StorageVersion;
use restow_apimachinery::object::Object;
use restow_rules::set_common_encoding_version;
use restow_store::{Compare, Key, Mutation, Put};

/// What is written beside a lease: one that becomes the identity of a server, which joins by it, is told of.
pub(crate) fn joining(old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
    let identity = |object: &Object| object.text(&["metadata", "labels", IDENTITY_LABEL]).to_string();
    let Some(new) = new.filter(|lease| lease.namespace() == "kube-system" && !identity(lease).is_empty()) else {
        return Vec::new();
    };
    if old.is_some_and(|old| identity(old) == identity(new)) {
        return Vec::new();
    }
    let Ok(key) = Key::try_from(keys::JOINED) else { return Vec::new() };
    vec![Mutation::Put(Put { key, value: new.name().to_string().into(), time_to_live: None })]
}

impl Agreement {
    /// Lets the status of a StorageVersion that a client writes say what the entries and the identity leases allow, whatever
    /// the client has concluded. Tells what must hold for that to be true. Other objects are left alone.
    pub(crate) async fn conclude(
        &self,
        resource: &Resource,
        object: &mut Object,
        before: Option<&Object>,
    ) -> Result<Vec<Compare>, ApiError> {
        let is_report = resource.origin == Origin::Builtin
            && resource.group_resource.group() == StorageVersion::GROUP
            && resource.group_resource.resource() == "storageversions";
        if !is_report || before.is_some_and(|before| before.get("status") == object.get("status")) {
            return Ok(Vec::new());
        }
        let read = |object: &Object| serde_json::from_value::<StorageVersion>(object.clone().into_value()).ok();
        // What cannot be understood was refused before, and what was stored before may be damaged.
        let Some(mut written) = read(object) else { return Ok(Vec::new()) };
        let known = before.and_then(read).map(|known| known.status).unwrap_or_default();
        (written.status.common_encoding_version, written.status.conditions) =
            (known.common_encoding_version, known.conditions);
        let roll = Roll::call(self.store.as_ref()).await;
        set_common_encoding_version(
            &mut written.status,
            written.metadata.generation,
            &roll.participants,
            Timestamp::now(),
        );
        object.set("status", serde_json::to_value(&written.status).ok());
        Ok(roll.nobody_joined.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lease(namespace: &str, label: Option<&str>) -> Object {
        let labels = label.map(|label| json!({IDENTITY_LABEL: label})).unwrap_or_default();
        let metadata = json!({"name": "g", "namespace": namespace, "labels": labels});
        Object::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn a_lease_that_becomes_an_identity_is_told_of() {
        let (plain, garden) = (lease("kube-system", None), lease("kube-system", Some("garden")));
        let elsewhere = lease("default", Some("garden"));
        for (old, new, expected) in [
            (None, Some(&garden), 1),
            (Some(&plain), Some(&garden), 1),
            (Some(&garden), Some(&garden), 0),
            (Some(&garden), Some(&lease("kube-system", Some("orchard"))), 1),
            (Some(&garden), Some(&plain), 0),
            (Some(&garden), None, 0),
            (None, Some(&plain), 0),
            (None, Some(&elsewhere), 0),
        ] {
            assert_eq!(joining(old, new).len(), expected, "{old:?} {new:?}");
        }
    }
}
