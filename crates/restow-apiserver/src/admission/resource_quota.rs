//! Quotas: how many objects a namespace may hold, and how much they may ask for.
//!
//! Whoever makes an object in a namespace with a quota, or changes one so that it takes more, writes what is used then into
//! the quota in the same transaction, so that two who do it at the same time cannot both be the last one. What was removed
//! since is reckoned up from time to time. What an object takes is decided in `usage`, and which quotas are about it in `scope`.

mod scope;
mod usage;

use crate::admission::compute::written;
use crate::admission::plugins::forbidden;
use crate::admission::{Admission, AdmissionCall};
use crate::core::Core;
use crate::core::reflector::ReflectedStore;
use crate::error::ApiError;
use crate::flow_control::fair_queue::{self, PermitsByName};
use crate::resource::ObjectRef;
use crate::resource::codec;
use crate::resource::{Origin, Resource, Scope, Storage};
use crate::storage::key_pages::{name_of, namespace_of};
use crate::storage::object_store::{Change, Decision, EncodedBy};
use crate::storage::watch_cache::CacheEvent;
use async_trait::async_trait;
use restow_api::{GroupResource, GroupVersion};
use restow_apimachinery::object::Object;
use restow_apimachinery::types::Amount;
use restow_store::{At, Compare, Entry, Mutation, RangeRequest, Revision, StoreExt, Txn};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use usage::Usage;

/// How often what was removed is counted off.
const RECOUNT: Duration = Duration::from_secs(2);

/// The quotas that this server knows of.
pub(crate) struct Quotas {
    /// Namespaces and names.
    known: Mutex<BTreeSet<(String, String)>>,
    /// Who counts in a namespace on this server waits for who counted there before, instead of counting again when that one
    /// was faster. Nobody waits for those in other namespaces.
    turns: PermitsByName,
}

impl Default for Quotas {
    fn default() -> Self {
        Quotas { known: Mutex::default(), turns: PermitsByName::new(1) }
    }
}

impl Quotas {
    fn change(&self, change: impl FnOnce(&mut BTreeSet<(String, String)>)) {
        change(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn known(&self) -> Vec<(String, String)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Waits for the turn to count in a namespace. The semaphores are never closed.
    pub(super) async fn turn(&self, namespace: &str) -> Option<OwnedSemaphorePermit> {
        self.turns.of(namespace).acquire_owned().await.ok()
    }

    pub(super) fn bound(&self, namespace: &str) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(bound, _)| bound == namespace)
    }
}

/// What making an object takes from the quotas of its namespace.
#[derive(Default)]
pub(crate) struct Charge {
    /// What must hold of the quotas.
    pub(crate) conditions: Vec<Compare>,
    /// The quotas afterwards.
    pub(crate) mutations: Vec<Mutation>,
    /// How they are encoded.
    pub(crate) encoded_by: Option<EncodedBy>,
    /// Given back when the object is made, or is not.
    turn: Option<OwnedSemaphorePermit>,
}

/// Takes from the quotas what an object takes, or what it takes more than `old` whose place it takes, or refuses it. What
/// was charged before for the same object is handed back to be charged anew.
pub(crate) async fn charge(
    call: &AdmissionCall<'_>,
    object: &Object,
    old: Option<&Object>,
    before: Charge,
) -> Result<Charge, ApiError> {
    let quotas = &call.admission.quotas;
    let namespace = &call.target.namespace;
    let storage = call.resource.storage.as_ref().filter(|_| call.resource.scope == Scope::Namespaced);
    let concerned = quotas.bound(namespace) && old.is_none_or(|old| may_take_more(call, object, old));
    let Some(storage) = storage.filter(|_| concerned) else { return Ok(Charge::default()) };
    // Whoever waits for this namespace must not wait for the heavy work of others, too.
    fair_queue::relieve();
    let turn = match before.turn {
        Some(turn) => Some(turn),
        None => quotas.turn(namespace).await,
    };
    let mut charge = Charge { turn, ..Charge::default() };
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
            let unsaid = usage::unsaid(object, limits.keys());
            if !unsaid.is_empty() {
                return Err(refused(format!("failed quota: {}: must specify {}", quota.name(), unsaid.join("; "))));
            }
        }
        let taken = taken(&quota, &call.resource.group_resource, object, old);
        let grows = |name: &String| amount(&taken, name) > Amount::default();
        if old.is_some() && !limits.keys().any(grows) {
            continue;
        }
        let remembered = remembered(&quota, &call.resource.group_resource, &limits);
        let used =
            match remembered.filter(|_| !is_touched(&call.admission.core, [storage], namespace, entry.mod_revision)) {
                Some(used) => used,
                None => reckon(&call.admission.core, &call.resource, namespace, &quota, &limits).await?,
            };
        let after: Usage = used.iter().map(|(name, used)| (name.clone(), *used + amount(&taken, name))).collect();
        let exceeded: Vec<&String> = after.keys().filter(|name| grows(name) && after[*name] > limits[*name]).collect();
        if !exceeded.is_empty() {
            let told = |amounts: &Usage| {
                let told = exceeded.iter().map(|name| format!("{name}={}", written(name, amount(amounts, name))));
                told.collect::<Vec<_>>().join(",")
            };
            let (quota, requested) = (quota.name(), told(&taken));
            let (used, limited) = (told(&used), told(&limits));
            let why = format!("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}");
            return Err(refused(why));
        }
        set_used(&mut quota, after);
        // Quotas are objects like others: this server writes them only in a version that it has reported.
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

/// Whether a changed object may take more than before: pods by another size, or in another scope; claims and services by
/// what they ask for.
fn may_take_more(call: &AdmissionCall<'_>, object: &Object, old: &Object) -> bool {
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

/// What an object takes of a quota, or takes more than `old` did, if that one was in its scope.
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

/// What a quota bounds of what objects of a resource take. One with scopes bounds nothing but pods.
fn limits(quota: &Object, resource: &GroupResource) -> Usage {
    let hard = quota.at(&["spec", "hard"]).and_then(Value::as_object);
    let pods = resource.group().is_empty() && resource.resource() == "pods";
    hard.into_iter()
        .flatten()
        .filter(|(name, _)| usage::is_taken_by(resource, name) && (pods || !scope::is_scoped(quota)))
        .filter_map(|(name, limit)| Some((name.clone(), Amount::read(limit)?)))
        .collect()
}

/// What is used by what a quota says itself, which holds as long as nothing has changed since it was written; nothing where
/// it does not say it of everything that is asked for, or where counting is as easy as believing.
fn remembered(quota: &Object, resource: &GroupResource, limits: &Usage) -> Option<Usage> {
    let status = quota.get("status")?;
    let believed = limits.keys().any(|name| !usage::is_count(resource, name)) || scope::is_scoped(quota);
    if !believed || Some(&status["hard"]) != quota.at(&["spec", "hard"]) {
        return None;
    }
    limits.keys().map(|name| Some((name.clone(), Amount::read(&status["used"][name])?))).collect()
}

/// What is used of each of these by what is there now.
async fn reckon(
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

/// Says in a quota what is used of it. What nothing here counts is left alone.
fn set_used(quota: &mut Object, used: Usage) {
    let mut status = quota.get("status").cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
    status["hard"] = quota.at(&["spec", "hard"]).cloned().unwrap_or_else(|| json!({}));
    let mut all = status["used"].as_object().cloned().unwrap_or_default();
    all.retain(|name, _| status["hard"].get(name).is_some());
    all.extend(used.into_iter().map(|(name, amount)| (name.clone(), written(&name, amount).into())));
    status["used"] = Value::Object(all);
    quota.set("status", Some(status));
}

/// Follows the quotas, and keeps what they say is used in step with what is there.
pub(super) struct QuotaStore {
    admission: Arc<Admission>,
    reckoning: tokio::sync::Mutex<Reckoning>,
}

impl QuotaStore {
    pub(super) fn new(admission: Arc<Admission>) -> Self {
        QuotaStore { admission, reckoning: tokio::sync::Mutex::default() }
    }
}

#[derive(Default)]
struct Reckoning {
    last: Option<Instant>,
    /// Up to which revision each quota tells what is used.
    up_to: HashMap<(String, String), Revision>,
}

#[async_trait]
impl ReflectedStore for QuotaStore {
    fn replace(&self, entries: &[Entry]) {
        let found = entries.iter().map(|entry| (namespace_of(&entry.key).to_string(), name_of(&entry.key).to_string()));
        self.admission.quotas.change(|known| *known = found.collect());
    }

    fn apply(&self, event: &CacheEvent) {
        let place = (namespace_of(&event.key).to_string(), name_of(&event.key).to_string());
        self.admission.quotas.change(|known| match event.current {
            Some(_) => drop(known.insert(place)),
            None => drop(known.remove(&place)),
        });
    }

    async fn resync(&self) {
        let core = self.admission.core.as_ref();
        let quotas = self.admission.quotas.known();
        let mut reckoning = self.reckoning.lock().await;
        if quotas.is_empty() || reckoning.last.is_some_and(|time| time.elapsed() < RECOUNT) {
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
                Err(error) => tracing::debug!(%error, namespace, name, "a quota could not be counted"),
            }
        }
    }
}

/// Whether anything of these that is in a namespace has changed since a revision, or may have.
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

/// Counts what a quota is about, and writes it down where it has changed.
async fn recount(core: &Core, namespace: &str, name: &str) -> Result<(), ApiError> {
    let (resource, version) = resource_of(core)?;
    let place = ObjectRef { resource: &resource, version: &version, namespace, name };
    core.objects().change(place, &mut Recount { core, namespace }).await?;
    Ok(())
}

struct Recount<'a> {
    core: &'a Core,
    namespace: &'a str,
}

#[async_trait]
impl Decision for Recount<'_> {
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError> {
        let Some(quota) = before else { return Ok(Change::Keep) };
        let mut used = Usage::new();
        for resource in self.core.registry().resources() {
            if resource.storage.is_none() || resource.scope != Scope::Namespaced {
                continue;
            }
            let mut limits = limits(quota, &resource.group_resource);
            limits.retain(|name, _| !used.contains_key(name));
            if !limits.is_empty() {
                used.extend(reckon(self.core, resource, self.namespace, quota, &limits).await?);
            }
        }
        let mut counted = quota.clone();
        set_used(&mut counted, used);
        Ok(if counted == *quota { Change::Keep } else { Change::Write(counted) })
    }
}
