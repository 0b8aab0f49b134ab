//! Where leases and StorageVersions lie in the store, and how they are read and written there.

use super::AgreementError;
use crate::resource::codec;
use bytes::Bytes;
use restow_api::GroupResource;
use restow_api::internal_apiserver::StorageVersion;
use restow_apimachinery::object::Object;
use restow_store::{Entry, Key};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Where the leases of the system lie.
pub(super) const LEASES: &str = "/coordination.k8s.io/leases/kube-system/";
/// The collection that they are part of.
pub(super) const LEASE_FOLDER: &str = "/coordination.k8s.io/leases/";
/// Where StorageVersions lie.
pub(super) const STORAGE_VERSIONS: &str = "/internal.apiserver.k8s.io/storageversions/";

/// The key that changes whenever a server takes its identity lease, so that whoever concludes something from the list of
/// leases can compare that nobody has joined since.
pub(super) const JOINED: &str = "/restow/identity-lease-taken";

/// Where the elections lie.
pub(super) const ELECTIONS: &str = "/kube-apiserver.internal.k8s.io/storageversions/";

/// The key of a lease of the system.
pub(super) fn lease_key(name: &str) -> Result<Key, AgreementError> {
    key(format!("{LEASES}{name}"))
}

/// The key of the StorageVersion about this resource.
pub(super) fn storage_version_key(resource: &GroupResource) -> Result<Key, AgreementError> {
    key(format!("{STORAGE_VERSIONS}{}", StorageVersion::name_for(resource)))
}

/// The key of the election about this resource.
pub(super) fn election_key(resource: &GroupResource) -> Result<Key, AgreementError> {
    key(format!("{ELECTIONS}{}", StorageVersion::name_for(resource)))
}

/// The resource that the StorageVersion of this name is about.
pub(super) fn resource_of(name: &str) -> Option<GroupResource> {
    let (group, resource) = name.rsplit_once('.')?;
    GroupResource::new(if group == "core" { "" } else { group }, resource).ok()
}

/// The key for a text.
pub(super) fn key(text: String) -> Result<Key, AgreementError> {
    Key::try_from(text.clone()).map_err(|error| AgreementError::Unreadable { key: text, reason: error.to_string() })
}

/// Reads a stored object as one of our types.
pub(super) fn read<T: DeserializeOwned>(entry: &Entry) -> Result<T, AgreementError> {
    let unreadable = |reason: serde_json::Error| AgreementError::Unreadable {
        key: entry.key.to_string(),
        reason: reason.to_string(),
    };
    let object = codec::decode(&entry.value, entry.mod_revision).map_err(unreadable)?;
    serde_json::from_value(object.into_value()).map_err(unreadable)
}

/// An object of ours as it is stored.
pub(super) fn written(object: Value) -> Result<Bytes, AgreementError> {
    // A value that is no object is stored as an empty one; ours always are.
    let object = Object::from_value(object).unwrap_or_default();
    codec::encode(&object).map_err(|error| AgreementError::Unstorable(format!("{}: {error}", object.name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_resource() {
        for resource in ["pods", "endpointslices.discovery.k8s.io", "widgets.example.com"] {
            let resource: GroupResource = resource.parse().unwrap();
            assert_eq!(resource_of(&StorageVersion::name_for(&resource)), Some(resource));
        }
        assert_eq!(resource_of("nonsense"), None);
    }
}
