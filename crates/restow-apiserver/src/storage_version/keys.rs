//! The keys of leases, StorageVersions and elections, and how these objects are decoded and encoded.

use super::AgreementError;
use crate::resource::codec;
use bytes::Bytes;
use restow_api::internal_apiserver::StorageVersion;
use restow_api::{GroupResource, ResourceVersion};
use restow_apimachinery::object::Object;
use restow_store::{Entry, Key};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The leases in `kube-system`.
pub(super) const LEASES: &str = "/coordination.k8s.io/leases/kube-system/";
/// The collection of all leases.
pub(super) const LEASE_FOLDER: &str = "/coordination.k8s.io/leases/";
/// The StorageVersions.
pub(super) const STORAGE_VERSIONS: &str = "/internal.apiserver.k8s.io/storageversions/";

/// The key that changes whenever a server takes its identity lease. A transaction that relies on the list of leases compares
/// it, so that it fails if a server has joined since.
pub(super) const JOINED: &str = "/restow/identity-lease-taken";

/// The key with the id of this store, for the main API server of an aggregated server.
pub(super) const STORE_ID: &str = "/restow/store-id";

/// The elections.
pub(super) const ELECTIONS: &str = "/kube-apiserver.internal.k8s.io/storageversions/";

/// The key of a lease in `kube-system`.
pub(super) fn lease_key(name: &str) -> Result<Key, AgreementError> {
    key(format!("{LEASES}{name}"))
}

/// The key of the StorageVersion of this resource.
pub(super) fn storage_version_key(resource: &GroupResource) -> Result<Key, AgreementError> {
    key(format!("{STORAGE_VERSIONS}{}", StorageVersion::name_for(resource)))
}

/// The key of the election of this resource.
pub(super) fn election_key(resource: &GroupResource) -> Result<Key, AgreementError> {
    key(format!("{ELECTIONS}{}", StorageVersion::name_for(resource)))
}

/// The resource of the StorageVersion with this name.
pub(super) fn resource_of(name: &str) -> Option<GroupResource> {
    let (group, resource) = name.rsplit_once('.')?;
    GroupResource::new(if group == "core" { "" } else { group }, resource).ok()
}

/// The key for a text.
pub(super) fn key(text: String) -> Result<Key, AgreementError> {
    Key::try_from(text.clone()).map_err(|error| AgreementError::Unreadable { key: text, reason: error.to_string() })
}

/// Decodes a stored object, without its resource version.
pub(super) fn read<T: DeserializeOwned>(entry: &Entry) -> Result<T, AgreementError> {
    serde_json::from_slice(&entry.value)
        .map_err(|reason| AgreementError::Unreadable { key: entry.key.to_string(), reason: reason.to_string() })
}

/// Decodes a stored StorageVersion, with its resource version.
pub(super) fn read_with_revision(entry: &Entry) -> Result<StorageVersion, AgreementError> {
    let mut object: StorageVersion = read(entry)?;
    object.metadata.resource_version = Some(ResourceVersion::new(entry.mod_revision.to_string()));
    Ok(object)
}

/// Encodes an object for the store.
pub(super) fn encode(object: Value) -> Result<Bytes, AgreementError> {
    // The callers pass objects only.
    let object = Object::from_value(object).unwrap_or_default();
    codec::encode(&object).map_err(|error| AgreementError::Unstorable(format!("{}: {error}", object.name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_version_name_is_parsed_to_its_resource() {
        for resource in ["pods", "endpointslices.discovery.k8s.io", "widgets.example.com"] {
            let resource: GroupResource = resource.parse().unwrap();
            assert_eq!(resource_of(&StorageVersion::name_for(&resource)), Some(resource));
        }
        assert_eq!(resource_of("nonsense"), None);
    }
}
