//! The rules of a kind: what the server sets and checks when objects are created, changed and deleted. Verbs and stores call
//! these hooks instead of asking for a kind by name.

use crate::resource::Verb;
use jiff::Timestamp;
use restow_apimachinery::field::FieldError;
use restow_apimachinery::managed_fields::Ownership;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use restow_apimachinery::types::FieldProblem;
use restow_store::Mutation;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The rules of one kind. The defaults are those of a plain kind: everything but `metadata` and `status` is the
/// specification, and whatever the schema allows is valid.
pub trait Strategy: Send + Sync {
    /// The rule that names follow.
    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    /// Reads an object that a client sent by the kind's schema, and returns its unknown fields. Kinds whose type is in the
    /// table of types have been read already.
    fn read(&self, _object: &mut Object) -> Vec<FieldProblem> {
        Vec::new()
    }

    /// Sets defaults, in whatever version the object is. It is called for every object that is written, before any check,
    /// and changes nothing when it is called again.
    fn default(&self, _object: &mut Object) {}

    /// The status of a new object, which a client does not set; `None` for the empty status of its type.
    fn initial_status(&self, _object: &Object) -> Option<Value> {
        None
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

    /// Checks what has changed in an object. `granted` is the stored object, in which the changes that only the subresource
    /// may make are already (see [`Strategy::granted`]).
    fn validate_change(&self, _object: &Object, _granted: &Object) -> Vec<FieldError> {
        Vec::new()
    }

    /// Completes an object that is marked as deleted. A finalizer that this adds keeps the object.
    fn prepare_deletion(&self, _object: &mut Object) {}

    /// The grace period of a deletion in seconds, given the one that the client requested.
    fn grace_period(&self, _object: &Object, _requested: Option<i64>) -> i64 {
        0
    }

    /// Whether something else than finalizers and the grace period keeps a deleted object.
    fn is_occupied(&self, _object: &Object) -> bool {
        false
    }

    /// Whether the dependents of a deleted object stay when the client sets no propagation policy.
    fn orphans_dependents(&self) -> bool {
        false
    }

    /// Whether a deletion is answered with the object that was deleted.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// The warning for a deletion without a propagation policy.
    fn deletion_warning(&self) -> Option<&'static str> {
        None
    }

    /// Completes a deleted object for the answer to its deletion.
    fn finish_deletion(&self, _object: &mut Object, _now: Timestamp) {}

    /// How long an object is kept after it was written; `None` for ever.
    fn time_to_live(&self) -> Option<Duration> {
        None
    }

    /// The fields that a write through this subresource takes from what was sent; the rest stays as stored. `None` when the
    /// subresource is not written like its object.
    fn subresource_fields(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        (subresource == "status").then_some(&[&["status"], &["metadata"]])
    }

    /// Undoes what a write of the object itself may not change, because only a subresource may.
    fn restore_on_update(&self, _object: &mut Object, _old: &Object) {}

    /// Completes an object that a write through this subresource made of `old` and `sent`, or undoes what it may not change.
    fn prepare_subresource(&self, _subresource: &str, _object: &mut Object, _sent: &Object, _old: &Object) {}

    /// The stored object with those changes of `object` that only this subresource may make; `None` when there are none.
    fn granted(&self, _subresource: &str, _object: &Object, _old: &Object) -> Option<Object> {
        None
    }

    /// The action of a subresource, or with an empty name of a kind that is not stored; `None` when it has no action.
    fn subresource_action(&self, _subresource: &str) -> Option<SubresourceAction> {
        None
    }

    /// The answer to a subresource with the action [`SubresourceAction::Connect`].
    fn connection(&self, _subresource: &str, _verb: Verb, _object: &Object) -> Connection {
        Connection::no_nodes()
    }

    /// The fields of the `scale` subresource in this version, for kinds that have one.
    fn scale(&self, _api_version: &str) -> Option<ScaleFields> {
        None
    }

    /// How the fields of a custom kind are owned in this version; without it, objects are owned by field and lists as a
    /// whole.
    fn ownership(&self, _api_version: &str) -> Option<Arc<Ownership>> {
        None
    }

    /// What else the transaction writes that replaces `old` by `new`; `None` stands for no object.
    fn alongside(&self, _old: Option<&Object>, _new: Option<&Object>) -> Vec<Mutation> {
        Vec::new()
    }

    /// Whether replacing an object that does not exist creates it.
    fn create_on_update(&self) -> bool {
        false
    }

    /// Whether a write of the status leaves all metadata as stored.
    fn status_alone(&self) -> bool {
        false
    }

    /// Whether an update may leave out the resource version. Where it may not, a client has read what it replaces.
    fn unconditional_update(&self) -> bool {
        false
    }

    /// Whether `metadata.generation` counts changes.
    fn has_generation(&self) -> bool {
        true
    }
}

/// What a subresource does that is not written like its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubresourceAction {
    /// Assigns a pod to a node.
    Bind,
    /// Deletes a pod as far as its disruption budget allows.
    Evict,
    /// Issues a token for a service account.
    IssueToken,
    /// Connects to what runs on a node.
    Connect,
}

/// The answer to a request to connect to what runs on a node. This server never connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// There is nothing to send.
    Empty,
    /// The object cannot be connected to.
    BadRequest(String),
    /// Nothing answers now.
    Unavailable(String),
}

impl Connection {
    /// This server does not connect to nodes.
    pub fn no_nodes() -> Self {
        Connection::Unavailable("this server does not connect to nodes".into())
    }
}

/// The fields of a scale, as paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleFields {
    /// The desired number of replicas.
    pub replicas: Vec<String>,
    /// The current number of replicas.
    pub status_replicas: Vec<String>,
    /// The selector of the pods.
    pub selector: ScaleSelector,
}

/// The form of the selector of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleSelector {
    /// There is none.
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
