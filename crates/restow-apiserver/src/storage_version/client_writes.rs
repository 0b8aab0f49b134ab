//! Identity leases and StorageVersions that clients write through the API, as aggregated servers do.
//!
//! An aggregated server cannot compare the list of leases in the transaction that writes its report, so the status of the
//! StorageVersion is computed here. Nor can it update the key that marks that a server has joined, so that is done for it.
//! The entries of servers that report for themselves cannot be changed or removed by clients (`restow_rules::client_entries`).

use super::Agreement;
use super::keys;
use super::lease_watch::{COMPONENT, IDENTITY_LABEL, ServerList};
use crate::error::ApiError;
use crate::resource::{Origin, Resource};
use restow_api::internal_apiserver::StorageVersion;
use restow_apimachinery::object::Object;
use restow_rules::collect::CONTROL_PLANE_LABEL;
use restow_rules::{client_entries, own_reporters, set_common_encoding_version};
use restow_store::{Compare, Key, Mutation, Put};
use std::time::Duration;

/// When a client may try again if the identity leases cannot be read.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is written together with a lease: when it becomes an identity lease, a server joins, and the key that marks that changes.
pub(crate) fn mark_server_joined(old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
    let label = |object: &Object, name: &str| object.text(&["metadata", "labels", name]).to_string();
    let identity = |object: &Object| (label(object, IDENTITY_LABEL), label(object, CONTROL_PLANE_LABEL));
    let Some(new) = new.filter(|lease| lease.namespace() == "kube-system" && !identity(lease).0.is_empty()) else {
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
        // An object that cannot be decoded was refused before; the stored one may be damaged.
        let Some(mut written) = read(object) else { return Ok(Vec::new()) };
        let known = before.and_then(read).map(|known| known.status).unwrap_or_default();
        (written.status.common_encoding_version, written.status.conditions) =
            (known.common_encoding_version, known.conditions);
        let servers = self.servers_for_client().await?;
        let entries = std::mem::take(&mut written.status.storage_versions);
        written.status.storage_versions =
            client_entries(entries, &known.storage_versions, &servers.participants, COMPONENT);
        set_common_encoding_version(
            &mut written.status,
            written.metadata.generation,
            &servers.participants,
            restow_host::now(),
        );
        object.set("status", serde_json::to_value(&written.status).ok());
        Ok(servers.no_server_joined.into_iter().collect())
    }

    /// Refuses the deletion of a StorageVersion while servers that reported themselves in it can write: they would write what
    /// is not reported.
    pub(crate) async fn check_report_deletion(&self, object: &Object) -> Result<(), ApiError> {
        let Some(report) = read(object) else { return Ok(()) };
        if report.status.storage_versions.is_empty() {
            return Ok(());
        }
        let servers = self.servers_for_client().await?;
        let reporting = own_reporters(&report.status.storage_versions, &servers.participants, COMPONENT);
        if reporting.is_empty() {
            return Ok(());
        }
        let message = format!(
            "it contains the reports of API servers that can write ({}); it is deleted when they no longer serve the resource",
            reporting.join(", ")
        );
        Err(ApiError::ConflictOn { kind: StorageVersion::KIND.into(), name: object.name().into(), message })
    }

    /// The servers, for the write of a client: nothing is written if they cannot be read.
    async fn servers_for_client(&self) -> Result<ServerList, ApiError> {
        ServerList::read(self.store.as_ref()).await.map_err(|error| ApiError::Unavailable {
            message: format!("the identity leases of the API servers cannot be read: {}", error.chain()),
            retry_after: RETRY_AFTER,
        })
    }
}

fn read(object: &Object) -> Option<StorageVersion> {
    serde_json::from_value(object.clone().into_value()).ok()
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
