//! The rules of a kind: what the server sets and what it checks when objects are created and changed.

use crate::field::FieldError;
use crate::names::NameRule;
use crate::object::Object;

/// The rules of one kind. The defaults are those of a plain kind: everything but `metadata` and `status` is the
/// specification, and whatever the schema allows is valid.
pub trait Strategy: Send + Sync {
    /// What an object may be called.
    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    /// Completes an object before it is created.
    fn prepare_create(&self, _object: &mut Object) {}

    /// Completes an object before it replaces `old`.
    fn prepare_update(&self, _object: &mut Object, _old: &Object) {}

    /// Checks an object before it is created.
    fn validate_create(&self, _object: &Object) -> Vec<FieldError> {
        Vec::new()
    }

    /// Checks an object before it replaces `old`.
    fn validate_update(&self, _object: &Object, _old: &Object) -> Vec<FieldError> {
        Vec::new()
    }

    /// Whether replacing an object that does not exist creates it.
    fn create_on_update(&self) -> bool {
        false
    }

    /// Whether the kind counts its changes in `metadata.generation`.
    fn has_generation(&self) -> bool {
        true
    }
}

/// A kind without rules of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Strategy for Plain {}
