//! ResourceQuota: limits on the number of objects of a namespace, and on their resources.
//!
//! A request that creates an object, or changes one so that it uses more, writes the new `status.used` of the quotas in the
//! same transaction, so that concurrent requests cannot exceed them. Deletions are counted by a periodic recount. `usage`
//! computes what an object uses, `scope` which quotas cover it.

mod scope;
mod usage;

use crate::admission::compute::written;
use crate::admission::plugins::forbidden;
use crate::admission::{Admission, AdmissionCall};
use crate::core::Core;
use crate::core::reflector::ReflectedStore;
use crate::error::ApiError;
use crate::flow_control::fair_queue::{self, KeyedSemaphore};
use crate::resource::ObjectRef;
use crate::resource::codec;
use crate::resource::{Origin, Resource, Scope, Storage};
use crate::storage::key_pages::{name_of, namespace_of};
use crate::storage::object_store::{EncodedBy, ObjectChange, ObjectDecision};
use crate::storage::watch_cache::CacheEvent;
use async_trait::async_trait;
use restow_api::{GroupResource, GroupVersion};
use restow_apimachinery::object::Object;
use restow_apimachinery::types::Amount;
use restow_store::{At, Compare, Entry, Mutation, RangeRequest, Revision, StoreExt, Txn};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use usage::Usage;

/// The interval of recounts, which count deletions.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(2);

/// The quotas of the cluster, by name.
pub(crate) struct Quotas {
    /// Namespaces and names.
    known: Mutex<BTreeSet<(String, String)>>,
    /// A lock for each namespace: requests on this server are charged one after the other, instead of retrying on
    /// conflict. Namespaces do not wait for each other.
    locks: KeyedSemaphore,
}

impl Default for Quotas {
    fn default() -> Self {
        Quotas { known: Mutex::default(), locks: KeyedSemaphore::new(1) }
    }
}

impl Quotas {
    fn change(&self, change: impl FnOnce(&mut BTreeSet<(String, String)>)) {
        change(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn known(&self) -> Vec<(String, String)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Locks a namespace. The semaphores are never closed.
    pub(super) async fn lock(&self, namespace: &str) -> Option<OwnedSemaphorePermit> {
        self.locks.get(namespace).acquire_owned().await.ok()
    }

    pub(super) fn has_quota(&self, namespace: &str) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(bound, _)| bound == namespace)
    }
}

/// The quota updates for one object.
#[derive(Default)]
pub(crate) struct Charge {
    /// The quotas are unchanged.
    pub(crate) conditions: Vec<Compare>,
    /// The updated quotas.
    pub(crate) mutations: Vec<Mutation>,
    /// How they are encoded.
    pub(crate) encoded_by: Option<EncodedBy>,
    /// The lock of the namespace, held until the object is written.
    lock: Option<OwnedSemaphorePermit>,
}

/// Charges the quotas for an object, or for what it uses more than `old`; refuses it if a quota is exceeded. On a retry,
/// `before` is the earlier charge of the same object.
pub(crate) async fn charge(
    call: &AdmissionCall<'_>,
    object: &Object,
    old: Option<&Object>,
    before: Charge,
) -> Result<Charge, ApiError> {
    let quotas = &call.admission.quotas;
    let namespace = &call.target.namespace;
    let storage = call.resource.storage.as_ref().filter(|_| call.resource.scope == Scope::Namespaced);
    let concerned = quotas.has_quota(namespace) && old.is_none_or(|old| may_use_more(call, object, old));
    let Some(storage) = storage.filter(|_| concerned) else { return Ok(Charge::default()) };
    // Waiting for the namespace must not depend on the heavy work of others.
    fair_queue::end_heavy_work();
    let lock = match before.lock {
        Some(lock) => Some(lock),
        None => quotas.lock(namespace).await,
    };
    let mut charge = Charge { lock, ..Charge::default() };
    let (resource, version) = resource_of(&call.admission.core)?;
    let Some(stored) = resource.storage.as_ref() else { return Ok(charge) };
    let entries =
        call.admission.core.objects().store().range(RangeRequest::new(stored.range(namespace))).await?.entries;
    for entry in entries {
        let mut quota = resource.decode(&entry, &version).await?;
        let limits = limits(&quota, &call.resource.group_resource);
        if limits.is_empty() || !scope::covers(&quota, &call.resource.group_resource, object) {
            continue;
        }
        let refused = |why: String| forbidden(call, object.name(), why);
        if call.resource.names.kind == "Pod" {
            let missing = usage::unspecified(object, limits.keys());
            if !missing.is_empty() {
                return Err(refused(format!("failed quota: {}: must specify {}", quota.name(), missing.join("; "))));
            }
        }
        let taken = taken(&quota, &call.resource.group_resource, object, old);
        let grows = |name: &String| amount(&taken, name) > Amount::default();
        if old.is_some() && !limits.keys().any(grows) {
            continue;
        }
        let recorded = recorded_usage(&quota, &call.resource.group_resource, &limits);
        let used =
            match recorded.filter(|_| !is_touched(&call.admission.core, [storage], namespace, entry.mod_revision)) {
                Some(used) => used,
                None => count_usage(&call.admission.core, &call.resource, namespace, &quota, &limits).await?,
            };
        let after: Usage = used.iter().map(|(name, used)| (name.clone(), *used + amount(&taken, name))).collect();
        let exceeded: Vec<&String> = after.keys().filter(|name| grows(name) && after[*name] > limits[*name]).collect();
        if !exceeded.is_empty() {
            let list = |amounts: &Usage| {
                let parts = exceeded.iter().map(|name| format!("{name}={}", written(name, amount(amounts, name))));
                parts.collect::<Vec<_>>().join(",")
            };
            let (quota, requested) = (quota.name(), list(&taken));
            let (used, limited) = (list(&used), list(&limits));
            let why = format!("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}");
            return Err(refused(why));
        }
        set_used(&mut quota, after);
        // Quotas are objects, too: this server writes them only in a version that it has reported.
        let by = match &charge.encoded_by {
            Some(by) => by.clone(),
            None => {
                ObjectRef { resource: &resource, version: &version, namespace, name: quota.name() }.admitted().await?
            }
        };
        let value = codec::encode(&resource.convert(quota, &by.encoding.version).await?)?;
        charge.encoded_by = Some(by);
        charge.conditions.push(Compare::mod_revision(&entry.key, entry.mod_revision));
        charge.mutations.extend(Txn::new().put(&entry.key, value).then);
    }
    Ok(charge)
}

/// Whether an update may use more: pods by `resize` or another scope; claims and services by their spec.
fn may_use_more(call: &AdmissionCall<'_>, object: &Object, old: &Object) -> bool {
    if call.resource.origin != Origin::Builtin {
        return false;
    }
    match (call.resource.names.kind.as_str(), call.target.subresource.as_str()) {
        ("Pod", "resize") => true,
        ("Pod", "") => {
            let deadline = ["spec", "activeDeadlineSeconds"];
            object.at(&deadline) != old.at(&deadline)
        }
        ("PersistentVolumeClaim" | "Service", "") => {
            let resource = &call.resource.group_resource;
            let before = usage::usage(resource, old);
            usage::usage(resource, object).iter().any(|(name, taken)| *taken > amount(&before, name))
        }
        _ => false,
    }
}

/// What an object uses of a quota, minus what `old` used if it was in scope.
fn taken(quota: &Object, resource: &GroupResource, object: &Object, old: Option<&Object>) -> Usage {
    let before = old.filter(|old| scope::covers(quota, resource, old));
    let before = before.map(|old| usage::usage(resource, old)).unwrap_or_default();
    let more = |(name, taken): (String, Amount)| {
        let grown = (taken - amount(&before, &name)).max(Amount::default());
        (name, grown)
    };
    usage::usage(resource, object).into_iter().map(more).collect()
}

fn amount(amounts: &Usage, name: &str) -> Amount {
    amounts.get(name).copied().unwrap_or_default()
}

/// The limits of a quota that apply to a resource. A quota with scopes applies to pods only.
fn limits(quota: &Object, resource: &GroupResource) -> Usage {
    let hard = quota.at(&["spec", "hard"]).and_then(Value::as_object);
    let pods = resource.group().is_empty() && resource.resource() == "pods";
    hard.into_iter()
        .flatten()
        .filter(|(name, _)| usage::is_taken_by(resource, name) && (pods || !scope::is_scoped(quota)))
        .filter_map(|(name, limit)| Some((name.clone(), Amount::read(limit)?)))
        .collect()
}

/// The usage in `status.used`, which is valid as long as nothing has changed since it was written; `None` if it is not
/// complete, or if counting is as cheap.
fn recorded_usage(quota: &Object, resource: &GroupResource, limits: &Usage) -> Option<Usage> {
    let status = quota.get("status")?;
    let believed = limits.keys().any(|name| !usage::is_count(resource, name)) || scope::is_scoped(quota);
    if !believed || Some(&status["hard"]) != quota.at(&["spec", "hard"]) {
        return None;
    }
    limits.keys().map(|name| Some((name.clone(), Amount::read(&status["used"][name])?))).collect()
}

/// Counts the usage of the stored objects.
async fn count_usage(
    core: &Core,
    resource: &Arc<Resource>,
    namespace: &str,
    quota: &Object,
    limits: &Usage,
) -> Result<Usage, ApiError> {
    let mut used: Usage = limits.keys().map(|name| (name.clone(), Amount::default())).collect();
    let (Some(storage), Some(version)) = (&resource.storage, resource.served.first()) else { return Ok(used) };
    let store = core.objects().store();
    if !scope::is_scoped(quota) && limits.keys().all(|name| usage::is_count(&resource.group_resource, name)) {
        let count = Amount::whole(store.count(storage.range(namespace), At::Latest).await?);
        used.values_mut().for_each(|used| *used = count);
        return Ok(used);
    }
    let entries = store.range(RangeRequest::new(storage.range(namespace))).await?.entries;
    for object in resource.decode_all(&entries, version).await? {
        if scope::covers(quota, &resource.group_resource, &object) {
            let taken = usage::usage(&resource.group_resource, &object);
            used.iter_mut().for_each(|(name, used)| *used = *used + amount(&taken, name));
        }
    }
    Ok(used)
}

fn resource_of(core: &Core) -> Result<(Arc<Resource>, GroupVersion), ApiError> {
    let version = GroupVersion::new("", "v1").map_err(|error| ApiError::Internal(error.to_string()))?;
    let resource = core.registry().find(&version, "resourcequotas").cloned();
    Ok((resource.ok_or(ApiError::NoSuchResource)?, version))
}

/// Sets `status.used`. Resources that are not counted here are kept.
fn set_used(quota: &mut Object, used: Usage) {
    let mut status = quota.get("status").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    status["hard"] = quota.at(&["spec", "hard"]).cloned().unwrap_or_else(|| json!({}));
    let mut all = status["used"].as_object().cloned().unwrap_or_default();
    all.retain(|name, _| status["hard"].get(name).is_some());
    all.extend(used.into_iter().map(|(name, amount)| (name.clone(), written(&name, amount).into())));
    status["used"] = Value::Object(all);
    quota.set("status", Some(status));
}

/// Receives the quotas from a reflector, and recounts their usage.
pub(super) struct QuotaStore {
    admission: Arc<Admission>,
    reckoning: tokio::sync::Mutex<RecountState>,
}

impl QuotaStore {
    pub(super) fn new(admission: Arc<Admission>) -> Self {
        QuotaStore { admission, reckoning: tokio::sync::Mutex::default() }
    }
}

#[derive(Default)]
struct RecountState {
    last: Option<Instant>,
    /// The revision of the last recount of each quota.
    up_to: HashMap<(String, String), Revision>,
}

#[async_trait]
impl ReflectedStore for QuotaStore {
    fn replace(&self, entries: &[Entry]) {
        let found = entries.iter().map(|entry| (namespace_of(&entry.key).to_string(), name_of(&entry.key).to_string()));
        self.admission.quotas.change(|known| *known = found.collect());
    }

    fn apply(&self, event: &CacheEvent) {
        let key = (namespace_of(&event.key).to_string(), name_of(&event.key).to_string());
        self.admission.quotas.change(|known| match event.current {
            Some(_) => drop(known.insert(key)),
            None => drop(known.remove(&key)),
        });
    }

    async fn resync(&self) {
        let core = self.admission.core.as_ref();
        let quotas = self.admission.quotas.known();
        let mut reckoning = self.reckoning.lock().await;
        if quotas.is_empty() || reckoning.last.is_some_and(|time| time.elapsed() < RECOUNT_INTERVAL) {
            return;
        }
        reckoning.last = Some(Instant::now());
        reckoning.up_to.retain(|quota, _| quotas.contains(quota));
        let registry = core.registry();
        let bounded = registry.resources().iter().filter(|resource| resource.scope == Scope::Namespaced);
        let storages: Vec<_> = bounded.filter_map(|resource| resource.storage.as_ref()).collect();
        for quota in quotas {
            let (namespace, name) = &quota;
            if reckoning
                .up_to
                .get(&quota)
                .is_some_and(|since| !is_touched(core, storages.iter().copied(), namespace, *since))
            {
                continue;
            }
            let reached = core.watch_cache().reached();
            match recount(core, namespace, name).await {
                Ok(()) => drop(reckoning.up_to.insert(quota, reached)),
                Err(error) => tracing::debug!(%error, namespace, name, "cannot recount a quota"),
            }
        }
    }
}

/// Whether any of these resources may have changed in a namespace since a revision.
fn is_touched<'a>(
    core: &Core,
    storages: impl IntoIterator<Item = &'a Arc<Storage>>,
    namespace: &str,
    since: Revision,
) -> bool {
    let mut storages = storages.into_iter();
    storages.any(|storage| {
        let changes = core.watch_cache().subscribe(&storage.folder(), storage.range(namespace), since);
        changes.and_then(|mut changes| changes.take()).map_or(true, |(changes, _)| !changes.is_empty())
    })
}

/// Recounts the usage of a quota, and writes it if it has changed.
async fn recount(core: &Core, namespace: &str, name: &str) -> Result<(), ApiError> {
    let (resource, version) = resource_of(core)?;
    let reference = ObjectRef { resource: &resource, version: &version, namespace, name };
    core.objects().change(reference, &mut Recount { core, namespace }).await?;
    Ok(())
}

struct Recount<'a> {
    core: &'a Core,
    namespace: &'a str,
}

#[async_trait]
impl ObjectDecision for Recount<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError> {
        let Some(quota) = before else { return Ok(ObjectChange::Keep) };
        let mut used = Usage::new();
        for resource in self.core.registry().resources() {
            if resource.storage.is_none() || resource.scope != Scope::Namespaced {
                continue;
            }
            let mut limits = limits(quota, &resource.group_resource);
            limits.retain(|name, _| !used.contains_key(name));
            if !limits.is_empty() {
                used.extend(count_usage(self.core, resource, self.namespace, quota, &limits).await?);
            }
        }
        let mut counted = quota.clone();
        set_used(&mut counted, used);
        Ok(if counted == *quota { ObjectChange::Keep } else { ObjectChange::Write(counted) })
    }
}

#[cfg(test)]
mod tests;
