//! What serves one definition on this server, and how it is exchanged when the definition changes.

use crate::apiextensions::definition::Definition;
use crate::apiextensions::kind::Kind;
use crate::crd::CustomResources;
use crate::crd::resources::{self, Making};
use crate::crd::version_in_force::{self, InForce};
use crate::error::ApiError;
use crate::resource::{Fence, Membership, Resource, Storage};
use arc_swap::ArcSwap;
use restow_store::{Compare, Entry, StoreExt, Txn, TxnOutcome};
use std::sync::Arc;

/// What serves one definition.
#[derive(Clone)]
pub(crate) struct Handler {
    /// The definition that it was made of.
    pub(crate) definition: Arc<Definition>,
    pub(crate) storage: Arc<Storage>,
    kind: Arc<ArcSwap<Kind>>,
    /// What is served, by version.
    pub(crate) resources: Vec<Arc<Resource>>,
    /// All versions at once, as they are reported to the other servers.
    pub(crate) whole: Arc<Resource>,
}

/// What to do about a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It serves the definition as it is.
    Keep,
    /// It has to be made, or made anew.
    Make,
    /// There must be none.
    Remove,
}

impl Handler {
    /// What to do, given what serves a definition now.
    pub(crate) fn step(current: Option<&Handler>, definition: &Definition) -> Step {
        let names = &definition.status.accepted_names;
        if !definition.holds("Established") || names.plural != definition.spec.names.plural || names.kind.is_empty() {
            return if current.is_some() { Step::Remove } else { Step::Keep };
        }
        let same = |handler: &Handler| {
            let built = &handler.definition;
            built.metadata.uid == definition.metadata.uid
                && built.metadata.generation == definition.metadata.generation
                && built.spec == definition.spec
                && built.status.accepted_names == *names
                && built.is_terminating() == definition.is_terminating()
        };
        if current.is_some_and(same) { Step::Keep } else { Step::Make }
    }

    /// Makes a handler. When it is there, writes go on in the definition's storage version; those that were on their way
    /// in another one are done, and those that came meanwhile have waited. `None` when the definition has changed
    /// since, which this server is about to hear of.
    pub(crate) async fn make(
        custom: &CustomResources,
        definition: &Arc<Definition>,
        entry: &Entry,
        before: Option<&Handler>,
    ) -> Result<Option<Handler>, ApiError> {
        let internal = |error: &dyn std::fmt::Display| ApiError::Internal(error.to_string());
        let Some(wanted) = InForce::of(definition) else { return Ok(None) };
        let Some((says, fence)) = read_in_force(custom, definition, &wanted, entry).await? else { return Ok(None) };
        if says != wanted {
            return Ok(None);
        }
        let location = resources::group_resource(definition).map_err(|error| internal(&error))?;
        let version = definition.group_version(&wanted.version).ok_or_else(|| internal(&"no storage version"))?;
        let decodable = resources::decodable(definition);
        let before = before.filter(|before| before.definition.metadata.uid == definition.metadata.uid);
        let storage = Arc::new(match before {
            Some(before) => before.storage.redefined(version.clone(), decodable),
            None => Storage::new(location, version.clone(), decodable),
        });
        // What is not reported yet must not be written yet; whoever writes waits for the report.
        if custom.agreement.participates() {
            storage.await_report();
        }
        // Requests and watches that hold earlier resources of this definition see the new schemas too.
        let kind = before.map_or_else(|| Arc::new(ArcSwap::from_pointee(Kind::default())), |it| it.kind.clone());
        kind.store(Arc::new(Kind::new(definition, entry.value.clone())));
        let converter = resources::converter(definition, custom.services());
        let making = Making { storage: storage.clone(), kind: kind.clone(), converter };
        let resources = resources::resources(definition, &making).map_err(|error| internal(&error))?;
        let whole = resources::whole(definition, &making).map_err(|error| internal(&error))?;
        let whole = Arc::new(whole);
        let encoding = storage.encoding();
        if wanted.terminating {
            storage.write_gate().refuse_new();
        }
        let fence = Fence::InForce(fence);
        if encoding.version != version || encoding.fences.as_slice() != [fence.clone()] {
            let _halt = storage.write_gate().halt().await;
            storage.set_encoding(version, vec![fence]);
        }
        Ok(Some(Handler { definition: definition.clone(), storage, kind, resources, whole }))
    }

    /// Reports the storage version and all others to the other servers, unless that is done; until then writes in another
    /// storage version than before wait. A server that is about to join them does it afterwards.
    pub(crate) async fn report(&self, custom: &CustomResources) {
        let agreement = &custom.agreement;
        if !agreement.participates() {
            return;
        }
        if !agreement.is_registered() {
            return agreement.announce(&self.whole);
        }
        if self.storage.encoding().membership != Membership::Pending && agreement.has_reported(&self.whole) {
            return;
        }
        if let Err(error) = agreement.report(&self.whole).await {
            tracing::warn!(resource = %self.storage.location, %error, "a storage version could not be reported yet");
        }
    }
}

/// What the store says is in force, and the comparison that holds as long as it says so. A definition from before there
/// were such keys gets one.
async fn read_in_force(
    custom: &CustomResources,
    definition: &Definition,
    wanted: &InForce,
    stored: &Entry,
) -> Result<Option<(InForce, Compare)>, ApiError> {
    let key =
        version_in_force::key(&definition.metadata.name).map_err(|error| ApiError::Internal(error.to_string()))?;
    let store = custom.core.objects().store();
    if let Some(entry) = store.get(&key).await? {
        let fence = Compare::mod_revision(&key, entry.mod_revision);
        return Ok(InForce::parse(&entry.value).map(|says| (says, fence)));
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
