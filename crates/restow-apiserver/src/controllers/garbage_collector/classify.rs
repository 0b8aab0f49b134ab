//! Classifies the owner references of a dependent: what to do with it, and the preconditions in the store.
//!
//! The key of an owner follows from the CRD of its kind, and this server may not have seen the latest one. So an owner counts as
//! dangling only as long as that CRD is in force. The transaction compares that, together with the owner's own key.

use crate::controllers::garbage_collector::graph::{DependentAction, Graph, Node, Owner, OwnerState, action};
use crate::error::ApiError;
use crate::handlers::Handlers;
use crate::resource::{Fence, Scope};
use restow_api::GroupVersion;
use restow_store::{Compare, Revision, StoreExt};

/// What to do with a dependent.
pub(super) struct Classification {
    /// The dependent.
    pub(super) node: Node,
    pub(super) action: DependentAction,
    /// What was found of the owners that count as gone.
    pub(super) preconditions: Vec<Compare>,
}

/// The state of an owner, and the comparisons that hold as long as it is in that state.
struct CheckedOwner {
    state: OwnerState,
    preconditions: Vec<Compare>,
}

impl Classification {
    /// Checks the owners, or some of very many.
    pub(super) async fn of(handlers: &Handlers, graph: &Graph, node: Node, namespace: &str) -> Result<Self, ApiError> {
        let owners = graph.owners_to_check(&node);
        let mut found = Vec::new();
        for owner in &owners {
            found.push(check_owner(handlers, owner, namespace).await?);
        }
        let states: Vec<OwnerState> = found.iter().map(|found| found.state).collect();
        let action = action(&node, &owners, &states, graph.has_dependents(&node.uid));
        let counts = |owner: &Owner| match &action {
            DependentAction::Keep => false,
            DependentAction::RemoveOwners(lost) => lost.contains(&owner.uid),
            DependentAction::Delete(_) => true,
        };
        let mut preconditions: Vec<Compare> = Vec::new();
        let lost = owners.iter().zip(found).filter(|(owner, _)| counts(owner));
        for precondition in lost.flat_map(|(_, found)| found.preconditions) {
            if !preconditions.contains(&precondition) {
                preconditions.push(precondition);
            }
        }
        Ok(Classification { node, action, preconditions })
    }
}

/// Checks an owner. If its kind is not served here, or it cannot be decoded, its state is unknown; that is an error, and is
/// retried later.
async fn check_owner(handlers: &Handlers, owner: &Owner, namespace: &str) -> Result<CheckedOwner, ApiError> {
    let version = owner.api_version.parse::<GroupVersion>().map_err(|_| ApiError::NoSuchResource)?;
    let proxied = handlers.aggregator.is_proxied(&version);
    if proxied.map_err(|error| ApiError::Internal(error.to_string()))? {
        return Err(ApiError::Internal(format!("the owner {} {} is on another API server", owner.kind, owner.name)));
    }
    let registry = handlers.registry();
    let resources = registry.in_version(&version).into_iter().flat_map(|resources| resources.values());
    let resources = resources.filter(|resource| resource.names.kind == owner.kind);
    let mut places = resources.filter_map(|resource| Some((resource.scope, resource.storage.as_ref()?)));
    let (scope, storage) = places.next().ok_or(ApiError::NoSuchResource)?;
    if places.any(|(_, other)| other.location != storage.location) {
        return Err(ApiError::Internal(format!("the kind {} is ambiguous: several resources have it", owner.kind)));
    }
    let namespace = match (scope, namespace) {
        (Scope::Cluster, _) => "",
        // A cluster-scoped object cannot have a namespaced owner: the namespace is unknown.
        (Scope::Namespaced, "") => return Ok(CheckedOwner { state: OwnerState::Solid, preconditions: Vec::new() }),
        (Scope::Namespaced, namespace) => namespace,
    };
    // The fences are read before the owner, so that they were in force then.
    let encoding = storage.encoding();
    let key = storage.key(namespace, &owner.name).map_err(|error| ApiError::BadRequest(error.to_string()))?;
    let entry = handlers.objects().store().get(&key).await?;
    let state = OwnerState::of(owner, entry.as_ref().map(|entry| entry.value.as_ref())).ok_or_else(|| {
        ApiError::Internal(format!("the owner {} {} cannot be read, so its dependents stay", owner.kind, owner.name))
    })?;
    let in_force = encoding.fences.iter().filter(|fence| matches!(fence, Fence::InForce(_)));
    let mut preconditions: Vec<Compare> = in_force.map(|fence| fence.compare().clone()).collect();
    // An existing owner may change meanwhile, but must not be replaced.
    preconditions.push(Compare::create_revision(&key, entry.map_or(Revision::ZERO, |entry| entry.create_revision)));
    Ok(CheckedOwner { state, preconditions })
}
