//! What becomes of a dependent, and what must hold in the store for that to be right.
//!
//! Where an owner lies is known from the definition of its kind, and this server may not have heard of the latest one. So
//! "it is not there" is true only as long as that definition is the one in force, which the transaction compares, together with
//! the owner's own key.

use crate::controllers::garbage_collector::graph::{Fate, Graph, Owner, Seen, Standing, fate};
use crate::error::ApiError;
use crate::handlers::Handlers;
use crate::resource::{Fence, Scope};
use restow_api::GroupVersion;
use restow_store::{Compare, Revision, StoreExt};

/// What becomes of a dependent.
pub(super) struct Judgement {
    /// The dependent that was judged.
    pub(super) seen: Seen,
    pub(super) fate: Fate,
    /// What was found of the owners that count as lost.
    pub(super) premises: Vec<Compare>,
}

/// What an owner turned out to be, and the comparisons that hold as long as it is that.
struct Found {
    standing: Standing,
    premises: Vec<Compare>,
}

impl Judgement {
    /// Looks at the owners, or at some of very many.
    pub(super) async fn of(handlers: &Handlers, graph: &Graph, seen: Seen, namespace: &str) -> Result<Self, ApiError> {
        let owners = graph.pressing(&seen);
        let mut found = Vec::new();
        for owner in &owners {
            found.push(look(handlers, owner, namespace).await?);
        }
        let standings: Vec<Standing> = found.iter().map(|found| found.standing).collect();
        let fate = fate(&seen, &owners, &standings, graph.has_dependents(&seen.uid));
        let counts = |owner: &Owner| match &fate {
            Fate::Stays => false,
            Fate::LosesOwners(lost) => lost.contains(&owner.uid),
            Fate::Goes(_) => true,
        };
        let mut premises: Vec<Compare> = Vec::new();
        let lost = owners.iter().zip(found).filter(|(owner, _)| counts(owner));
        for premise in lost.flat_map(|(_, found)| found.premises) {
            if !premises.contains(&premise) {
                premises.push(premise);
            }
        }
        Ok(Judgement { seen, fate, premises })
    }
}

/// What an owner is. Of one whose kind is not served here, or that cannot be read, it cannot be known whether it is gone;
/// that is an error, and the question is asked again later.
async fn look(handlers: &Handlers, owner: &Owner, namespace: &str) -> Result<Found, ApiError> {
    let version = owner.api_version.parse::<GroupVersion>().map_err(|_| ApiError::NoSuchResource)?;
    let registry = handlers.registry();
    let resources = registry.in_version(&version).into_iter().flat_map(|resources| resources.values());
    let resources = resources.filter(|resource| resource.names.kind == owner.kind);
    let mut places = resources.filter_map(|resource| Some((resource.scope, resource.storage.as_ref()?)));
    let (scope, storage) = places.next().ok_or(ApiError::NoSuchResource)?;
    if places.any(|(_, other)| other.location != storage.location) {
        return Err(ApiError::Internal(format!(
            "several resources are of the kind {}; nobody knows which",
            owner.kind
        )));
    }
    let namespace = match (scope, namespace) {
        (Scope::Cluster, _) => "",
        // An object without a namespace cannot have an owner in one; nobody knows which is meant.
        (Scope::Namespaced, "") => return Ok(Found { standing: Standing::Solid, premises: Vec::new() }),
        (Scope::Namespaced, namespace) => namespace,
    };
    // What is in force is taken before the owner is read, so that it was in force then.
    let encoding = storage.encoding();
    let key = storage.key(namespace, &owner.name).map_err(|error| ApiError::BadRequest(error.to_string()))?;
    let entry = handlers.objects().store().get(&key).await?;
    let standing = Standing::of(owner, entry.as_ref().map(|entry| entry.value.as_ref())).ok_or_else(|| {
        ApiError::Internal(format!("the owner {} {} cannot be read, so its dependents stay", owner.kind, owner.name))
    })?;
    let in_force = encoding.fences.iter().filter(|fence| matches!(fence, Fence::InForce(_)));
    let mut premises: Vec<Compare> = in_force.map(|fence| fence.compare().clone()).collect();
    // One that is there may be changed meanwhile; it must only not be another.
    premises.push(Compare::create_revision(&key, entry.map_or(Revision::ZERO, |entry| entry.create_revision)));
    Ok(Found { standing, premises })
}
