//! The rules of a kind: what the server sets and checks when objects are created, changed and deleted. Verbs and stores call
//! these hooks instead of asking for a kind by name.

use crate::resource::Verb;
use jiff::Timestamp;
use restow_apimachinery::field::{FieldError, FieldProblem};
use restow_apimachinery::managed_fields::Ownership;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use restow_store::Mutation;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The rules of one kind. The defaults are those of a plain kind: the specification is everything except `metadata` and
/// `status`, and every object that the schema allows is valid.
pub trait Strategy: Send + Sync {
    /// The validation rule of names.
    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    /// Prunes and defaults an object from a request by the kind's schema, and returns its unknown fields. Built-in kinds are
    /// decoded by the table of types before.
    fn read(&self, _object: &mut Object) -> Vec<FieldProblem> {
        Vec::new()
    }

    /// Sets defaults, in the version of the object. It is called for every object that is written, before validation. It
    /// must be idempotent.
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

    /// Checks the changes of an object. `baseline` is the stored object with those changes that only the subresource of this
    /// request may make (see [`Strategy::with_permitted_changes`]).
    fn validate_change(&self, _object: &Object, _baseline: &Object) -> Vec<FieldError> {
        Vec::new()
    }

    /// Completes an object that is marked as deleted. A finalizer that this adds keeps the object.
    fn prepare_deletion(&self, _object: &mut Object) {}

    /// The grace period of a deletion in seconds, given the one that the client requested.
    fn grace_period(&self, _object: &Object, _requested: Option<i64>) -> i64 {
        0
    }

    /// Whether a condition of the kind, other than finalizers and the grace period, keeps a deleted object.
    fn is_occupied(&self, _object: &Object) -> bool {
        false
    }

    /// Whether the dependents of a deleted object stay when the client sets no propagation policy.
    fn orphans_dependents(&self) -> bool {
        false
    }

    /// Whether the response to a deletion is the deleted object, and not a `Status`.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// The warning for a deletion without a propagation policy.
    fn deletion_warning(&self) -> Option<&'static str> {
        None
    }

    /// Completes a deleted object for the response to its deletion.
    fn finish_deletion(&self, _object: &mut Object, _now: Timestamp) {}

    /// How long an object is stored after it was written; `None` means forever.
    fn time_to_live(&self) -> Option<Duration> {
        None
    }

    /// The fields that a write of this subresource takes from the request; the others stay as stored. `None` when the
    /// subresource is not written like its object.
    fn subresource_fields(&self, subresource: &str) -> Option<&'static [&'static [&'static str]]> {
        (subresource == "status").then_some(&[&["status"], &["metadata"]])
    }

    /// Restores the fields that only a subresource may change, after a write of the object itself.
    fn restore_on_update(&self, _object: &mut Object, _old: &Object) {}

    /// Completes an object that a write of this subresource made of `old` and `sent`, or restores fields that it may not change.
    fn prepare_subresource(&self, _subresource: &str, _object: &mut Object, _sent: &Object, _old: &Object) {}

    /// The stored object with those changes of `object` that only this subresource may make; `None` when there are none.
    fn with_permitted_changes(&self, _subresource: &str, _object: &Object, _old: &Object) -> Option<Object> {
        None
    }

    /// The action of a subresource, or of a create of a kind that is not stored (then `subresource` is empty); `None` when
    /// there is no action.
    fn subresource_action(&self, _subresource: &str) -> Option<SubresourceAction> {
        None
    }

    /// The response of a subresource with the action [`SubresourceAction::Connect`].
    fn connection(&self, _subresource: &str, _verb: Verb, _object: &Object) -> Connection {
        Connection::no_nodes()
    }

    /// The message for a field label in a field selector that this kind, which has selectable fields, does not support.
    fn unsupported_field_label(&self, field: &str) -> String {
        format!("field label not supported: {field}")
    }

    /// The fields of the `scale` subresource in this version, for kinds that have one.
    fn scale(&self, _api_version: &str) -> Option<ScaleFields> {
        None
    }

    /// The ownership of fields (`managedFields`) of a custom kind in this version. Without it, maps are owned by field and
    /// lists as a whole.
    fn ownership(&self, _api_version: &str) -> Option<Arc<Ownership>> {
        None
    }

    /// Other keys to write in the transaction that replaces `old` by `new`; `None` means that the object does not exist.
    fn additional_mutations(&self, _old: Option<&Object>, _new: Option<&Object>) -> Vec<Mutation> {
        Vec::new()
    }

    /// Whether an update of an object that does not exist creates it.
    fn create_on_update(&self) -> bool {
        false
    }

    /// Whether a write of the status leaves all metadata as stored.
    fn status_update_keeps_metadata(&self) -> bool {
        false
    }

    /// Whether an update may omit the resource version. If not, a client must have read the object that it replaces.
    fn unconditional_update(&self) -> bool {
        false
    }

    /// Whether `metadata.generation` counts the changes of the specification.
    fn has_generation(&self) -> bool {
        true
    }
}

/// The action of a subresource that is not written like its object, or of a kind that is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubresourceAction {
    /// Assigns a pod to a node.
    Bind,
    /// Deletes a pod as far as its disruption budget allows.
    Evict,
    /// Issues a token for a service account.
    IssueToken,
    /// Connects to a container or server on a node.
    Connect,
    /// Evaluates a review, which is not stored.
    Review(ReviewKind),
}

/// The reviews of authentication and authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewKind {
    /// A SubjectAccessReview.
    SubjectAccess,
    /// A SelfSubjectAccessReview.
    SelfSubjectAccess,
    /// A LocalSubjectAccessReview.
    LocalSubjectAccess,
    /// A SelfSubjectRulesReview.
    SelfSubjectRules,
    /// A SelfSubjectReview.
    SelfSubject,
    /// A TokenReview.
    Token,
}

/// The response to a request for a connection to a node. This server never connects to nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// An empty body.
    Empty,
    /// The object cannot be connected to.
    BadRequest(String),
    /// The server on the node is not available.
    Unavailable(String),
}

impl Connection {
    /// This server does not connect to nodes.
    pub fn no_nodes() -> Self {
        Connection::Unavailable("this server does not connect to nodes".into())
    }
}

/// The fields of the `scale` subresource, as paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleFields {
    /// The desired number of replicas.
    pub replicas: Vec<String>,
    /// The current number of replicas.
    pub status_replicas: Vec<String>,
    /// The selector of the pods.
    pub selector: ScaleSelector,
}

/// The selector of the pods, and its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScaleSelector {
    /// No selector.
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
