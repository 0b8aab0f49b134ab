//! Reads objects from the store in any version, and writes them in the storage version in force.

mod recent_writes;
mod unreadable;

use crate::error::ApiError;
use crate::error::corrupt::{CorruptObject, MAX_REPORTED};
use crate::flow_control::fair_queue::{self, YieldBudget};
use crate::request::options::DryRun;
use crate::resource::codec;
use crate::resource::write_gate::passes_barrier;
use crate::resource::{Encoding, Fence, Membership, ObjectRef, Resource, Storage};
use crate::storage::fence_alarm::FenceAlarm;
use async_trait::async_trait;
use bytes::Bytes;
use recent_writes::RecentWrites;
use restow_api::GroupVersion;
use restow_apimachinery::go_syntax::quote;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use restow_store::{Compare, Entry, Key, Mutation, Revision, Store, StoreError, StoreExt, Txn, TxnOutcome};
use std::sync::Arc;
use std::time::Duration;

/// The number of attempts to change an object that other clients change at the same time.
const ATTEMPTS: usize = 100;
/// How long a write waits until this server may write (again), before the client gets a 503.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The objects of a store.
#[derive(Clone)]
pub struct ObjectStore {
    store: Arc<dyn Store>,
    alarm: Arc<FenceAlarm>,
    recent_writes: Arc<RecentWrites>,
}

/// The entry that the first attempt of a change is based on.
struct Start {
    entry: Option<Entry>,
    /// Whether the entry comes from the cache of recent writes. It may be stale, so a refusal or a no-op based on it is
    /// tried again with the stored entry.
    cached: bool,
}

/// The result of an [`ObjectDecision`].
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectChange {
    /// Write this object.
    Write(Object),
    /// Do not change the object.
    Keep,
    /// Remove the object.
    Remove,
}

/// Decides how to change an object. It decides again if another client changed the object meanwhile.
#[async_trait]
pub trait ObjectDecision: Send {
    /// What to base the first decision on. A create first assumes that the object does not exist, which saves a read.
    fn begin(&self) -> Begin {
        Begin::Read
    }

    /// Decides, given the current object; `None` if it does not exist.
    async fn decide(&mut self, before: Option<&Object>) -> Result<ObjectChange, ApiError>;

    /// Additional conditions of the transaction for the last decision. If one fails, the decision is made again.
    fn conditions(&self) -> Vec<Compare> {
        Vec::new()
    }

    /// Additional mutations of the transaction for the last decision.
    fn additional_mutations(&self) -> Vec<Mutation> {
        Vec::new()
    }

    /// The encoding of other objects among these mutations. Its fences are compared as well.
    fn mutations_encoded_by(&self) -> Option<EncodedBy> {
        None
    }
}

/// The encoding of an object that is about to be written, and the storage that it belongs to.
#[derive(Clone)]
pub struct EncodedBy {
    /// The storage of the objects of that kind.
    pub storage: Arc<Storage>,
    /// The encoding.
    pub encoding: Arc<Encoding>,
}

/// The additional conditions and mutations of the transaction that writes an object.
#[derive(Default)]
struct Extra {
    conditions: Vec<Compare>,
    additional_mutations: Vec<Mutation>,
    encoded_by: Option<EncodedBy>,
}

/// The assumption about an object before the first attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The object has to be read.
    Read,
    /// The object probably does not exist; the transaction that writes it checks that.
    Absent,
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    /// A new object was written.
    Created(Written),
    /// The object was written, or did not change.
    Updated(Written),
    /// The object was removed. This is its last state, with the revision of its removal.
    Removed(Object),
    /// The object does not exist.
    Absent,
}

/// An object after a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// The object, with the resource version from before the change.
    object: Object,
    /// Its resource version after the change.
    pub revision: Revision,
    /// The stored bytes, if the change wrote them.
    pub stored: Option<Bytes>,
}

impl Written {
    /// An object that a dry run did not write. Its resource version does not change.
    pub(crate) fn not_stored(object: Object) -> Self {
        Written { object, revision: Revision::ZERO, stored: None }
    }

    /// The object, in the version of its reference.
    pub fn into_object(self) -> Object {
        match self.revision {
            Revision::ZERO => self.object,
            revision => with_revision(self.object, revision),
        }
    }
}

impl ObjectStore {
    /// Objects in this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        ObjectStore { store, alarm: Arc::default(), recent_writes: Arc::default() }
    }

    /// Signals that a fence refused a write.
    pub(crate) fn alarm(&self) -> &Arc<FenceAlarm> {
        &self.alarm
    }

    /// The underlying store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Clears the cache of recent writes, because the store was reset to an earlier state.
    pub(crate) fn clear_recent_writes(&self) {
        self.recent_writes.clear();
    }

    /// Reads one object.
    pub async fn get(&self, object_ref: ObjectRef<'_>) -> Result<Option<Entry>, ApiError> {
        Ok(self.store.get(&object_ref.key()?).await?)
    }

    /// Reads the object, decides, and commits the decision in a transaction. If another client changed the object
    /// meanwhile, it starts again. An update that would store the same bytes is not written.
    pub async fn change(
        &self,
        object_ref: ObjectRef<'_>,
        decision: &mut dyn ObjectDecision,
    ) -> Result<Changed, ApiError> {
        let key = object_ref.key()?;
        let mut current = match decision.begin() {
            Begin::Read => self.start(&key).await?,
            Begin::Absent => Start { entry: None, cached: false },
        };
        for _ in 0..ATTEMPTS {
            // Reserve memory for the stored object: a small request can change a large object.
            let _room =
                fair_queue::acquire_stored_memory(current.entry.as_ref().map_or(0, |entry| entry.value.len())).await;
            let before = match &current.entry {
                Some(entry) => Some(object_ref.resource.decode(entry, object_ref.version).await?),
                None => None,
            };
            let decided = decision.decide(before.as_ref()).await;
            if current.cached && !matches!(decided, Ok(ObjectChange::Write(_) | ObjectChange::Remove)) {
                current = Start { entry: self.store.get(&key).await?, cached: false };
                continue;
            }
            let attempt = match (decided?, before) {
                (ObjectChange::Keep, None) | (ObjectChange::Remove, None) => return Ok(Changed::Absent),
                (ObjectChange::Keep, Some(object)) => {
                    let revision = current.entry.map_or(Revision::ZERO, |entry| entry.mod_revision);
                    return Ok(Changed::Updated(Written { object, revision, stored: None }));
                }
                (ObjectChange::Write(object), before) => {
                    let mut additional_mutations =
                        object_ref.resource.strategy.additional_mutations(before.as_ref(), Some(&object));
                    additional_mutations.extend(decision.additional_mutations());
                    let extra = Extra {
                        conditions: decision.conditions(),
                        additional_mutations,
                        encoded_by: decision.mutations_encoded_by(),
                    };
                    self.write(object_ref, &key, &current, object, extra).await?
                }
                (ObjectChange::Remove, Some(before)) => {
                    let additional_mutations = object_ref.resource.strategy.additional_mutations(Some(&before), None);
                    let extra = Extra { conditions: decision.conditions(), additional_mutations, encoded_by: None };
                    self.remove(object_ref, &key, current.entry.as_ref(), before, extra).await?
                }
            };
            match attempt {
                Attempt::Done(changed) => return Ok(changed),
                Attempt::Overtaken(entry) => {
                    self.recent_writes.forget(&key);
                    current = Start { entry, cached: false };
                }
                Attempt::Fenced(by) => {
                    self.alarm.ring();
                    wait_for_change(&by.storage, &by.encoding).await?;
                    current = Start { entry: self.store.get(&key).await?, cached: false };
                }
                Attempt::Outdated(by) => wait_for_change(&by.storage, &by.encoding).await?,
            }
        }
        Err(ApiError::Timeout(format!("the object was changed by others {ATTEMPTS} times in a row; try again")))
    }

    /// Commits a decision, or computes its result in a dry run. This is the only place where a dry run differs from a
    /// real request.
    pub(crate) async fn commit(
        &self,
        object: ObjectRef<'_>,
        decision: &mut dyn ObjectDecision,
        dry_run: DryRun,
    ) -> Result<Changed, ApiError> {
        if dry_run == DryRun::No {
            return self.change(object, decision).await;
        }
        let entry = self.store.get(&object.key()?).await?;
        let before = match &entry {
            Some(entry) => Some(object.resource.decode(entry, object.version).await?),
            None => None,
        };
        Ok(match (decision.decide(before.as_ref()).await?, before) {
            (ObjectChange::Keep | ObjectChange::Remove, None) => Changed::Absent,
            (ObjectChange::Keep, Some(before)) => Changed::Updated(Written::not_stored(before)),
            (ObjectChange::Remove, Some(before)) => Changed::Removed(before),
            (ObjectChange::Write(object), None) => Changed::Created(Written::not_stored(object)),
            (ObjectChange::Write(object), Some(_)) => Changed::Updated(Written::not_stored(object)),
        })
    }

    /// The entry of a key: from the cache of recent writes if possible.
    async fn start(&self, key: &Key) -> Result<Start, ApiError> {
        match self.recent_writes.get(key) {
            Some(entry) => Ok(Start { entry: Some(entry), cached: true }),
            None => Ok(Start { entry: self.store.get(key).await?, cached: false }),
        }
    }

    async fn write(
        &self,
        object_ref: ObjectRef<'_>,
        key: &Key,
        start: &Start,
        object: Object,
        extra: Extra,
    ) -> Result<Attempt, ApiError> {
        let current = start.entry.as_ref();
        let by = object_ref.admitted().await?;
        let (object, stored) = object_ref.as_stored(object, &by.encoding.version).await?;
        // A change of the encoding waits for writes in flight. They must not wait in the fair queue.
        fair_queue::end_heavy_work();
        let storage = &by.storage;
        let Some(_pass) = storage.write_gate().enter(&by.encoding).await? else {
            return Ok(Attempt::Outdated(by.clone()));
        };
        let _other_pass = match &extra.encoded_by {
            None => None,
            Some(by) => match by.storage.write_gate().enter(&by.encoding).await? {
                Some(pass) => Some(pass),
                None => return Ok(Attempt::Outdated(by.clone())),
            },
        };
        if current.is_none() && !storage.write_gate().allows_create() {
            return Err(ApiError::MethodNotAllowed);
        }
        if let Some(entry) = current.filter(|entry| entry.value == stored) {
            // A migration relies on the response that an object is up to date. So an unchanged object needs the fences
            // too: a server that may not write may not confirm this either.
            let unchanged = Written { object, revision: entry.mod_revision, stored: Some(stored) };
            if by.encoding.comparisons().is_empty() && !start.cached {
                return Ok(Attempt::Done(Changed::Updated(unchanged)));
            }
            let nothing = Txn::new();
            return self.transact(key, current, &[&by], nothing, |_| Changed::Updated(unchanged)).await;
        }
        let lasting = object_ref.resource.strategy.time_to_live().is_none();
        let mut txn = match object_ref.resource.strategy.time_to_live() {
            Some(time) => Txn::new().put_for(key, stored.clone(), time),
            None => Txn::new().put(key, stored.clone()),
        };
        txn.when = extra.conditions;
        txn.then.extend(extra.additional_mutations);
        let encoded: Vec<&EncodedBy> = std::iter::once(&by).chain(&extra.encoded_by).collect();
        self.transact(key, current, &encoded, txn, |revision| {
            if lasting {
                self.recent_writes.put(written(key, stored.clone(), revision, current));
            }
            let written = Written { object, revision, stored: Some(stored) };
            if current.is_some() { Changed::Updated(written) } else { Changed::Created(written) }
        })
        .await
    }

    async fn remove(
        &self,
        object_ref: ObjectRef<'_>,
        key: &Key,
        current: Option<&Entry>,
        before: Object,
        extra: Extra,
    ) -> Result<Attempt, ApiError> {
        let by = object_ref.admitted().await?;
        let Some(_pass) = by.storage.write_gate().enter(&by.encoding).await? else {
            return Ok(Attempt::Outdated(by.clone()));
        };
        let mut txn = Txn::new().delete(key);
        txn.when = extra.conditions;
        txn.then.extend(extra.additional_mutations);
        self.recent_writes.forget(key);
        self.transact(key, current, &[&by], txn, |revision| Changed::Removed(with_revision(before, revision))).await
    }

    async fn transact(
        &self,
        key: &Key,
        current: Option<&Entry>,
        encoded: &[&EncodedBy],
        mut txn: Txn,
        done: impl FnOnce(Revision) -> Changed,
    ) -> Result<Attempt, ApiError> {
        // The lease at the main API server is in another store, so the transaction cannot compare it. Check it right
        // before.
        let registered = |by: &&EncodedBy| matches!(by.encoding.membership, Membership::Registered(_));
        if let Some(by) = encoded.iter().copied().find(registered).filter(|_| self.alarm.is_overdue()) {
            return Ok(Attempt::Fenced(by.clone()));
        }
        let expected = current.map_or(Revision::ZERO, |entry| entry.mod_revision);
        let conditions = txn.when.clone();
        txn.when.push(Compare::mod_revision(key, expected));
        let mut fences: Vec<(Fence, &EncodedBy)> = Vec::new();
        for (fence, by) in encoded.iter().flat_map(|by| by.encoding.comparisons().into_iter().map(move |it| (it, *by)))
        {
            if !fences.iter().any(|(known, _)| *known == fence) {
                fences.push((fence, by));
            }
        }
        let leased = fences.iter().find(|(fence, _)| matches!(fence, Fence::Lease(_))).map(|(_, by)| *by);
        if let Some((by, renewal)) = leased.zip(self.alarm.renewal()) {
            fences.push((Fence::Lease(renewal), by));
        }
        let compared = conditions.iter().chain(fences.iter().map(|(fence, _)| fence.compare()));
        txn = compared.fold(txn.otherwise_get(key), |txn, compared| txn.otherwise_get(&compared.key));
        txn.when.extend(fences.iter().map(|(fence, _)| fence.compare().clone()));
        let doubt = UnknownOutcome(encoded);
        let outcome = self.store.txn(txn).await;
        if !matches!(outcome, Err(StoreError::OutcomeUnknown(_))) {
            doubt.resolve();
        }
        match outcome? {
            TxnOutcome::Committed { revision } => Ok(Attempt::Done(done(revision))),
            TxnOutcome::Refused { found, .. } => {
                let mut found = found.into_iter();
                let current = found.next().flatten();
                let unchanged = current.as_ref().map_or(Revision::ZERO, |entry| entry.mod_revision) == expected;
                let as_expected = conditions.iter().all(|it| it.holds(found.next().flatten().as_ref()));
                if !unchanged || !as_expected {
                    return Ok(Attempt::Overtaken(current));
                }
                // The object and the conditions were as expected, so a fence refused the write.
                let broken =
                    fences.iter().zip(found).find(|((fence, _), found)| !fence.compare().holds(found.as_ref()));
                Ok(match broken {
                    Some(((Fence::InForce(_), by), _)) => Attempt::Outdated((*by).clone()),
                    Some(((Fence::Selected(_) | Fence::Lease(_), by), _)) => Attempt::Fenced((*by).clone()),
                    // The comparison that failed holds again.
                    None => Attempt::Overtaken(current),
                })
            }
        }
    }
}

/// A write that was sent and has no known outcome yet. If it is dropped in this state (the client may have closed the
/// request), the outcome stays unknown.
struct UnknownOutcome<'a>(&'a [&'a EncodedBy]);

impl UnknownOutcome<'_> {
    fn resolve(mut self) {
        self.0 = &[];
    }
}

impl Drop for UnknownOutcome<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|by| by.storage.write_gate().record_unknown_outcome(&by.encoding));
    }
}

enum Attempt {
    Done(Changed),
    /// Another client changed the object; this is the current entry.
    Overtaken(Option<Entry>),
    /// This server may no longer write in this encoding.
    Fenced(EncodedBy),
    /// Another storage version is in force. The reflector of this server will see it soon.
    Outdated(EncodedBy),
}

/// Waits until the encoding changes. The component that sets the encoding was notified, or notices soon.
async fn wait_for_change(storage: &Storage, known: &Arc<Encoding>) -> Result<(), ApiError> {
    tokio::time::timeout(REGISTRATION_TIMEOUT, storage.changed_from(known)).await.map_err(|_| ApiError::Unavailable {
        message: "this API server has to register its storage versions again before it may write; try again".into(),
        retry_after: Duration::from_secs(1),
    })
}

impl ObjectRef<'_> {
    fn key(&self) -> Result<Key, ApiError> {
        // A name is one segment of a path and of a key; so is a namespace.
        for (what, text) in [("Name", self.name), ("Namespace", self.namespace)] {
            let problems = NameRule::PathSegment.check(text);
            if !problems.is_empty() {
                let message = format!("{what} parameter invalid: {}: {}", quote(text), problems.join(";"));
                return Err(ApiError::BadRequest(message));
            }
        }
        let key = self.storage()?.key(self.namespace, self.name);
        key.map_err(|error| ApiError::BadRequest(format!("the name cannot be stored: {error}")))
    }

    /// The encoding in which this server may write now; waits for it if a registration is pending.
    pub(crate) async fn admitted(&self) -> Result<EncodedBy, ApiError> {
        let storage = self.resource.storage.as_ref().ok_or(ApiError::MethodNotAllowed)?;
        loop {
            let encoding = storage.encoding();
            match &encoding.membership {
                Membership::Unmanaged | Membership::Registered(_) => {
                    return Ok(EncodedBy { storage: storage.clone(), encoding });
                }
                Membership::Pending if passes_barrier(&self.resource.group_resource, self.namespace) => {
                    return Ok(EncodedBy { storage: storage.clone(), encoding });
                }
                Membership::Pending => wait_for_change(storage, &encoding).await?,
                Membership::Refused(reason) => {
                    let retry_after = Duration::from_secs(10);
                    return Err(ApiError::Unavailable { message: reason.clone(), retry_after });
                }
            }
        }
    }

    /// The object and its stored bytes. If it is stored in another version that lacks some fields, the returned object
    /// lacks them too, so that the response shows it.
    async fn as_stored(&self, object: Object, version: &GroupVersion) -> Result<(Object, Bytes), ApiError> {
        let converted = self.resource.convert(object.clone(), version).await?;
        let stored = codec::encode(&converted)?;
        if version == self.version || self.resource.custom.is_none() {
            return Ok((object, stored));
        }
        Ok((self.resource.convert(converted, self.version).await?, stored))
    }

    fn storage(&self) -> Result<&Storage, ApiError> {
        self.resource.storage.as_deref().ok_or(ApiError::MethodNotAllowed)
    }
}

impl Resource {
    /// Decodes a stored object and converts it to the requested version.
    pub async fn decode(&self, entry: &Entry, version: &GroupVersion) -> Result<Object, ApiError> {
        fair_queue::wait_for_turn(entry.value.len()).await;
        let object = self.decode_as_stored(entry).map_err(ApiError::Corrupt)?;
        let converted = self.convert(object, version).await;
        match converted {
            // Without a conversion webhook, only the stored object can be the cause.
            Err(error) if !self.converter.calls_webhook() => Err(ApiError::Corrupt(CorruptObject::new(entry, &error))),
            converted => converted,
        }
    }

    /// Decodes stored objects and converts them to the requested version.
    pub async fn decode_all(&self, entries: &[Entry], version: &GroupVersion) -> Result<Vec<Object>, ApiError> {
        fair_queue::wait_for_turn(entries.iter().map(|entry| entry.value.len()).sum()).await;
        let (mut objects, mut corrupt, mut budget) =
            (Vec::with_capacity(entries.len()), Vec::new(), YieldBudget::default());
        for entry in entries {
            match self.decode_as_stored(entry) {
                Ok(object) => objects.push(object),
                Err(object) => corrupt.push(object),
            }
            if corrupt.len() >= MAX_REPORTED {
                break;
            }
            budget.spend(entry.value.len()).await;
        }
        self.readable(corrupt)?;
        let wanted = version.to_string();
        if objects.iter().all(|object| object.api_version() == wanted) {
            return Ok(objects);
        }
        let converted = self.converter.convert(objects, version).await;
        let mut converted = converted.map_err(|error| ApiError::Internal(error.to_string()))?;
        converted.iter_mut().for_each(|object| self.prune(object));
        Ok(converted)
    }

    /// Returns an error if objects cannot be decoded.
    pub(crate) fn readable(&self, corrupt: Vec<CorruptObject>) -> Result<(), ApiError> {
        match corrupt.is_empty() {
            true => Ok(()),
            false => Err(ApiError::CorruptList { resource: self.group_resource.clone(), objects: corrupt }),
        }
    }

    /// Converts an object to the requested version.
    pub async fn convert(&self, object: Object, version: &GroupVersion) -> Result<Object, ApiError> {
        if object.api_version() == version.to_string() {
            return Ok(object);
        }
        let converted = self.converter.convert(vec![object], version).await;
        let converted = converted.map_err(|error| ApiError::Internal(error.to_string()))?.pop();
        let mut converted = converted.ok_or_else(|| ApiError::Internal("the conversion lost the object".into()))?;
        self.prune(&mut converted);
        Ok(converted)
    }

    /// Removes fields that a conversion left behind and that the version does not have.
    fn prune(&self, object: &mut Object) {
        if let Some(custom) = &self.custom {
            custom.schemas.load().prune(object);
        }
    }

    fn decode_as_stored(&self, entry: &Entry) -> Result<Object, CorruptObject> {
        let mut object =
            codec::decode(&entry.value, entry.mod_revision).map_err(|error| CorruptObject::new(entry, &error))?;
        if let Some(custom) = &self.custom {
            custom.schemas.load().prune_and_default(&mut object);
        }
        Ok(object)
    }
}

/// The entry of a key after a write.
fn written(key: &Key, value: Bytes, revision: Revision, before: Option<&Entry>) -> Entry {
    Entry {
        key: key.clone(),
        value,
        create_revision: before.map_or(revision, |entry| entry.create_revision),
        mod_revision: revision,
        version: before.map_or(1, |entry| entry.version + 1),
    }
}

fn with_revision(mut object: Object, revision: Revision) -> Object {
    object.set_meta("resourceVersion", &revision.to_string());
    object
}

#[cfg(test)]
mod tests;
