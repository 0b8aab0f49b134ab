//! NamespaceLifecycle: the system namespaces cannot be deleted. Its check on create, which needs a condition on the
//! namespace in the transaction, is `Namespaces::check_namespace`.

use crate::admission::AdmissionCall;
use crate::admission::plugins::forbidden;
use crate::error::ApiError;
use crate::resource::Origin;
use restow_apimachinery::object::Object;

/// The namespaces that nobody can delete.
const IMMORTAL_NAMESPACES: [&str; 3] = ["default", "kube-public", "kube-system"];

/// Refuses to delete a system namespace.
pub(super) fn check_delete(call: &AdmissionCall<'_>, old: &Object) -> Result<(), ApiError> {
    let namespace = call.resource.origin == Origin::Builtin && call.resource.names.kind == "Namespace";
    match namespace && IMMORTAL_NAMESPACES.contains(&old.name()) {
        true => Err(forbidden(call, old.name(), "this namespace may not be deleted".into())),
        false => Ok(()),
    }
}
