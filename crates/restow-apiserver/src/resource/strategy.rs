//! The rules of a kind: what the server sets and what it checks when objects are created and changed.

use restow_apimachinery::field::FieldError;
use restow_apimachinery::managed_fields::Ownership;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::FieldProblem;
use restow_store::Mutation;
use std::sync::Arc;

/// The rules of one kind. The defaults are those of a plain kind: everything but `metadata` and `status` is the
/// specification, and whatever the schema allows is valid.
pub trait Strategy: Send + Sync {
    /// What an object may be called.
    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    /// Reads an object that a client gave as the kind's schema says; tells which of its fields are unknown. Kinds whose
    /// type is in the table of types have been read already.
    fn read(&self, _object: &mut Object) -> Vec<FieldProblem> {
        Vec::new()
    }

    /// Sets what a client left open, in whatever version the object is. It is called for every object that is written,
    /// before anything else looks at it, and changes nothing when it is called again.
    fn default(&self, _object: &mut Object) {}

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

    /// Checks what has changed in an object. `granted` is the object before, but for what the subresource in question may
    /// change at will, which is as it is in `object`.
    fn validate_change(&self, _object: &Object, _granted: &Object) -> Vec<FieldError> {
        Vec::new()
    }

    /// Completes an object that is deleted for the first time. What then holds it keeps it until that is taken off.
    fn prepare_deletion(&self, _object: &mut Object) {}

    /// How many seconds a deleted object has to end what it does, given what was asked for.
    fn grace_period(&self, _object: &Object, _requested: Option<i64>) -> i64 {
        0
    }

    /// Whether something beside finalizers and grace keeps a deleted object.
    fn is_occupied(&self, _object: &Object) -> bool {
        false
    }

    /// Whether the dependents of an object stay when nobody says what shall become of them.
    fn orphans_dependents(&self) -> bool {
        false
    }

    /// Whether a deletion is answered with the object that was deleted.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// Where the `scale` subresource finds its numbers in this version, for kinds that have one.
    fn scale(&self, _api_version: &str) -> Option<ScaleFields> {
        None
    }

    /// How the fields of a custom kind are owned in this version; without it, objects are owned by field and lists as a
    /// whole.
    fn ownership(&self, _api_version: &str) -> Option<Arc<Ownership>> {
        None
    }

    /// What else is changed in the transaction that puts `new` in the place of `old`; `None` stands for no object.
    fn alongside(&self, _old: Option<&Object>, _new: Option<&Object>) -> Vec<Mutation> {
        Vec::new()
    }

    /// Whether replacing an object that does not exist creates it.
    fn create_on_update(&self) -> bool {
        false
    }

    /// Whether who writes the status has no say in labels, annotations, finalizers and owners.
    fn status_alone(&self) -> bool {
        false
    }

    /// Whether an object can be replaced by one that does not say which state of it is meant. Where it cannot, whoever
    /// replaces an object has seen what is lost.
    fn unconditional_update(&self) -> bool {
        false
    }

    /// Whether the kind counts its changes in `metadata.generation`.
    fn has_generation(&self) -> bool {
        true
    }
}

/// Where the numbers of a scale lie in an object, as paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleFields {
    /// How many there shall be.
    pub replicas: Vec<String>,
    /// How many there are.
    pub status_replicas: Vec<String>,
    /// Which ones they are.
    pub selector: ScaleSelector,
}

/// Where it is said which pods are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleSelector {
    /// Nowhere.
    None,
    /// As text.
    Text(Vec<String>),
    /// As a map of labels.
    Labels(Vec<String>),
    /// As a label selector.
    Selector(Vec<String>),
}

/// A kind without rules of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Strategy for Plain {}
