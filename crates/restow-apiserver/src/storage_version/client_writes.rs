//! Identity leases and StorageVersions that clients write through the API, as aggregated servers do.
//!
//! An aggregated server cannot compare the list of leases in the transaction that writes its report, so the status of the
//! StorageVersion is computed here. Nor can it update the key that marks that a server has joined, so that is done for it.

use super::Agreement;
use super::keys;
use super::lease_watch::{IDENTITY_LABEL, ServerList};
use crate::error::ApiError;
use crate::resource::{Origin, Resource};
use restow_api::internal_apiserver::StorageVersion;
use restow_apimachinery::object::Object;
use restow_rules::set_common_encoding_version;
use restow_store::{Compare, Key, Mutation, Put};

/// What is written together with a lease: when it becomes an identity lease, a server joins, and the key that marks that changes.
pub(crate) fn mark_server_joined(old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
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
    /// Computes the status of a StorageVersion that a client writes from its entries and the identity leases, whatever the
    /// client has set. Returns the comparisons that the write needs for that. Other objects stay as they are.
    pub(crate) async fn recompute_status(
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
        // An object that cannot be decoded was refused before; the stored one may be damaged.
        let Some(mut written) = read(object) else { return Ok(Vec::new()) };
        let known = before.and_then(read).map(|known| known.status).unwrap_or_default();
        (written.status.common_encoding_version, written.status.conditions) =
            (known.common_encoding_version, known.conditions);
        let servers = ServerList::read_or_unknown(self.store.as_ref()).await;
        set_common_encoding_version(
            &mut written.status,
            written.metadata.generation,
            &servers.participants,
            restow_host::now(),
        );
        object.set("status", serde_json::to_value(&written.status).ok());
        Ok(servers.no_server_joined.into_iter().collect())
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
    fn a_lease_that_becomes_an_identity_lease_marks_that_a_server_joined() {
        let (plain, garden) = (lease("kube-system", None), lease("kube-system", Some("garden")));
        let other_namespace = lease("default", Some("garden"));
        for (old, new, expected) in [
            (None, Some(&garden), 1),
            (Some(&plain), Some(&garden), 1),
            (Some(&garden), Some(&garden), 0),
            (Some(&garden), Some(&lease("kube-system", Some("orchard"))), 1),
            (Some(&garden), Some(&plain), 0),
            (Some(&garden), None, 0),
            (None, Some(&plain), 0),
            (None, Some(&other_namespace), 0),
        ] {
            assert_eq!(mark_server_joined(old, new).len(), expected, "{old:?} {new:?}");
        }
    }
}
