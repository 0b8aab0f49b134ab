//! The built-in kinds that have a write hook.

use crate::builtin::kinds::service::ServiceAddresses;
use crate::builtin::kinds::storage_version::CommonEncodingVersion;
use crate::core::{Core, WriteHook};
use crate::storage_version::Agreement;
use restow_api::GroupResource;
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
