//! Webhook configurations and admission policies; `admission/validation.rs` has their rules.

use crate::admission;
use crate::resource::strategy::Strategy;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::object::Object;

/// All kinds of admissionregistration.k8s.io.
pub(super) struct Configuration;

impl Strategy for Configuration {
    fn validate_create(&self, object: &Object) -> Vec<FieldError> {
        admission::validation::problems(object)
    }
}
