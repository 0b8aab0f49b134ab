//! Leases: validation, and the key that a new API server's lease writes in the same transaction.

use crate::builtin::validation::not_negative;
use crate::resource::strategy::Strategy;
use crate::storage_version;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;
use restow_store::Mutation;

pub(super) struct Lease;

impl Strategy for Lease {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        let transitions = not_negative(object, &["spec", "leaseTransitions"]);
        positive(object, &["spec", "leaseDurationSeconds"]).into_iter().chain(transitions).collect()
    }

    fn additional_mutations(&self, old: Option<&Object>, new: Option<&Object>) -> Vec<Mutation> {
        storage_version::mark_server_joined(old, new)
    }
}

fn positive(object: &Object, path: &[&str]) -> Option<FieldError> {
    let value = object.at(path)?;
    (value.as_i64()? <= 0).then(|| FieldError::invalid(path.join("."), value, "must be greater than 0"))
}
