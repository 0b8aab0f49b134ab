//! The handler of one CRD on this server: the resources that it serves, and how it is replaced when the CRD changes.

use crate::apiextensions::custom_resource_definition::CustomResourceDefinition;
use crate::apiextensions::schemas::VersionSchemas;
use crate::crd::CustomResources;
use crate::crd::resources::{self, SharedParts};
use crate::crd::version_in_force::{self, InForce};
use crate::error::ApiError;
use crate::resource::{Fence, Membership, Resource, Storage};
use arc_swap::ArcSwap;
use restow_store::{Compare, Entry, StoreExt, Txn, TxnOutcome};
use std::sync::Arc;

/// Serves one CRD.
#[derive(Clone)]
pub(crate) struct Handler {
    /// The CRD that it was built from.
    pub(crate) crd: Arc<CustomResourceDefinition>,
    pub(crate) storage: Arc<Storage>,
    schemas: Arc<ArcSwap<VersionSchemas>>,
    /// What is served, by version.
    pub(crate) resources: Vec<Arc<Resource>>,
    /// A resource with all versions, as it is reported to the other servers.
    pub(crate) all_versions: Arc<Resource>,
}

/// What to do about a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandlerAction {
    /// It is up to date.
    Keep,
    /// It has to be built or rebuilt.
    Build,
    /// It has to be removed.
    Remove,
}

impl Handler {
    /// What to do about the current handler of a CRD.
    pub(crate) fn next_action(current: Option<&Handler>, crd: &CustomResourceDefinition) -> HandlerAction {
        let names = &crd.status.accepted_names;
        if !crd.holds("Established") || names.plural != crd.spec.names.plural || names.kind.is_empty() {
            return if current.is_some() { HandlerAction::Remove } else { HandlerAction::Keep };
        }
        let same = |handler: &Handler| {
            let built = &handler.crd;
            built.metadata.uid == crd.metadata.uid
                && built.metadata.generation == crd.metadata.generation
                && built.spec == crd.spec
                && built.status.accepted_names == *names
                && built.is_terminating() == crd.is_terminating()
        };
        if current.is_some_and(same) { HandlerAction::Keep } else { HandlerAction::Build }
    }

    /// Builds a handler. Writes in flight in another storage version have finished when it returns, and writes that arrived
    /// meanwhile have waited; from then on, writes use the CRD's storage version. `None` when the CRD has changed since, which
    /// this server is about to see.
    pub(crate) async fn build(
        custom: &CustomResources,
        crd: &Arc<CustomResourceDefinition>,
        entry: &Entry,
        before: Option<&Handler>,
    ) -> Result<Option<Handler>, ApiError> {
        let internal = |error: &dyn std::fmt::Display| ApiError::Internal(error.to_string());
        let Some(wanted) = InForce::of(crd) else { return Ok(None) };
        let Some((stored_in_force, fence)) = read_in_force(custom, crd, &wanted, entry).await? else { return Ok(None) };
        if stored_in_force != wanted {
            return Ok(None);
        }
        let location = resources::group_resource(crd).map_err(|error| internal(&error))?;
        let version = crd.group_version(&wanted.version).ok_or_else(|| internal(&"no storage version"))?;
        let decodable = resources::decodable(crd);
        let before = before.filter(|before| before.crd.metadata.uid == crd.metadata.uid);
        let storage = Arc::new(match before {
            Some(before) => before.storage.redefined(version.clone(), decodable),
            None => Storage::new(location, version.clone(), decodable),
        });
        // Writes wait for the report.
        if custom.agreement.participates() {
            storage.await_report();
        }
        // Requests and watches that hold earlier resources of this CRD see the new schemas too.
        let schemas =
            before.map_or_else(|| Arc::new(ArcSwap::from_pointee(VersionSchemas::default())), |it| it.schemas.clone());
        schemas.store(Arc::new(VersionSchemas::new(crd, entry.value.clone())));
        let converter = resources::converter(crd, custom.services());
        let shared = SharedParts { storage: storage.clone(), schemas: schemas.clone(), converter };
        let resources = resources::resources(crd, &shared).map_err(|error| internal(&error))?;
        let all_versions = resources::all_versions(crd, &shared).map_err(|error| internal(&error))?;
        let all_versions = Arc::new(all_versions);
        let encoding = storage.encoding();
        if wanted.terminating {
            storage.write_gate().refuse_create();
        }
        let fence = Fence::InForce(fence);
        if encoding.version != version || encoding.fences.as_slice() != [fence.clone()] {
            let _halt = storage.write_gate().halt().await;
            storage.set_encoding(version, vec![fence]);
        }
        Ok(Some(Handler { crd: crd.clone(), storage, schemas, resources, all_versions }))
    }

    /// Reports the versions to the other servers, unless that is done. Until then, writes in a new storage version wait. A server
    /// that is not registered yet reports when it registers.
    pub(crate) async fn report(&self, custom: &CustomResources) {
        let agreement = &custom.agreement;
        if !agreement.participates() {
            return;
        }
        if !agreement.is_registered() {
            return agreement.announce(&self.all_versions);
        }
        if self.storage.encoding().membership != Membership::Pending && agreement.has_reported(&self.all_versions) {
            return;
        }
        if let Err(error) = agreement.report(&self.all_versions).await {
            tracing::warn!(resource = %self.storage.location, %error, "a storage version could not be reported yet");
        }
    }
}

/// The version in force in the store, and the comparison that holds as long as it stays in force. A CRD from before there were
/// such keys gets one.
async fn read_in_force(
    custom: &CustomResources,
    crd: &CustomResourceDefinition,
    wanted: &InForce,
    stored: &Entry,
) -> Result<Option<(InForce, Compare)>, ApiError> {
    let key = version_in_force::key(&crd.metadata.name).map_err(|error| ApiError::Internal(error.to_string()))?;
    let store = custom.core.objects().store();
    if let Some(entry) = store.get(&key).await? {
        let fence = Compare::mod_revision(&key, entry.mod_revision);
        return Ok(InForce::parse(&entry.value).map(|in_force| (in_force, fence)));
    }
    let create = Txn::new()
        .when(Compare::absent(&key))
        .when(Compare::mod_revision(&stored.key, stored.mod_revision))
        .put(&key, wanted.to_bytes());
    Ok(match store.txn(create).await? {
        TxnOutcome::Committed { revision } => Some((wanted.clone(), Compare::mod_revision(&key, revision))),
        TxnOutcome::Refused { .. } => None,
    })
}
