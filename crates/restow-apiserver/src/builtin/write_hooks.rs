//! The write hooks of built-in kinds: cluster IPs and node ports of Services, and what StorageVersions conclude.

use crate::builtin::addresses;
use crate::core::{Core, WriteHook};
use crate::error::ApiError;
use crate::request::Request;
use crate::storage_version::Agreement;
use async_trait::async_trait;
use restow_api::GroupResource;
use restow_apimachinery::object::Object;
use restow_store::Compare;
use std::collections::HashMap;
use std::sync::Arc;

/// The hooks by resource.
pub(crate) fn write_hooks(core: &Arc<Core>, agreement: &Arc<Agreement>) -> HashMap<GroupResource, Arc<dyn WriteHook>> {
    let mut hooks: HashMap<GroupResource, Arc<dyn WriteHook>> = HashMap::new();
    if let Ok(services) = GroupResource::new("", "services") {
        hooks.insert(services, Arc::new(ServiceAddresses(core.clone())));
    }
    if let Ok(storage_versions) = GroupResource::new("internal.apiserver.k8s.io", "storageversions") {
        hooks.insert(storage_versions, Arc::new(CommonEncodingVersion(agreement.clone())));
    }
    hooks
}

/// Assigns cluster IPs and node ports that no other Service has.
struct ServiceAddresses(Arc<Core>);

#[async_trait]
impl WriteHook for ServiceAddresses {
    async fn claim(
        &self,
        request: &Request,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<Vec<Compare>, ApiError> {
        match old {
            Some(old) if old.get("spec") == object.get("spec") => Ok(Vec::new()),
            _ => addresses::assign(&self.0, request, object, old).await,
        }
    }
}

/// Sets the common encoding version of a StorageVersion that a client updates.
struct CommonEncodingVersion(Arc<Agreement>);

#[async_trait]
impl WriteHook for CommonEncodingVersion {
    async fn claim(
        &self,
        request: &Request,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<Vec<Compare>, ApiError> {
        match old {
            Some(_) => Ok(self.0.conclude(&request.resource, object, old).await?),
            None => Ok(Vec::new()),
        }
    }
}
