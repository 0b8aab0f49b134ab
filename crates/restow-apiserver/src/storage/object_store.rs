//! Objects in the store: reading them in any version, and writing them in the one that is in force.

mod remembered;
mod unreadable;

use crate::error::ApiError;
use crate::error::corrupt::{CorruptObject, MOST_NAMED};
use crate::flow_control::fair_queue::{self, YieldBudget};
use crate::request::options::DryRun;
use crate::resource::codec;
use crate::resource::write_gate::passes_barrier;
use crate::resource::{Encoding, Fence, Membership, ObjectRef, Resource, Storage};
use crate::storage::fence_alarm::FenceAlarm;
use async_trait::async_trait;
use bytes::Bytes;
use remembered::Remembered;
use restow_api::GroupVersion;
use restow_apimachinery::go_syntax::quote;
use restow_apimachinery::names::NameRule;
use restow_apimachinery::object::Object;
use restow_store::{Compare, Entry, Key, Mutation, Revision, Store, StoreError, StoreExt, Txn, TxnOutcome};
use std::sync::Arc;
use std::time::Duration;

/// How often a change is tried again when others change the same object.
const ATTEMPTS: usize = 100;
/// How long a write waits for this server to be allowed to write (again) before the client is told to try later.
const PATIENCE: Duration = Duration::from_secs(5);

/// The objects of a store.
#[derive(Clone)]
pub struct ObjectStore {
    store: Arc<dyn Store>,
    alarm: Arc<FenceAlarm>,
    remembered: Arc<Remembered>,
}

/// The entry that a change begins with.
struct Start {
    entry: Option<Entry>,
    /// Whether it is only remembered. What it says may be out of date, so nothing is refused or left alone because of it.
    guessed: bool,
}

/// What becomes of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It is written as this.
    Write(Object),
    /// It stays as it is.
    Keep,
    /// It is removed.
    Remove,
}

/// Says what shall become of an object. It is asked again when somebody else changed the object meanwhile.
#[async_trait]
pub trait Decision: Send {
    /// What to begin with. Whoever expects no object is asked first as if there were none, which saves a read.
    fn begin(&self) -> Begin {
        Begin::Read
    }

    /// Decides, given the object as it is; `None` when there is none.
    async fn decide(&mut self, before: Option<&Object>) -> Result<Change, ApiError>;

    /// What else must hold in the store for what was decided last. When it does not, it is asked again.
    fn conditions(&self) -> Vec<Compare> {
        Vec::new()
    }

    /// What else is written in the transaction that writes what was decided last.
    fn alongside(&self) -> Vec<Mutation> {
        Vec::new()
    }

    /// How other objects among these are encoded. What a write of them depends on is compared as well.
    fn beside(&self) -> Option<EncodedBy> {
        None
    }
}

/// The encoding in which an object was prepared to be written, and where it is in force.
#[derive(Clone)]
pub struct EncodedBy {
    /// How objects of that kind are stored.
    pub storage: Arc<Storage>,
    /// The encoding.
    pub encoding: Arc<Encoding>,
}

/// What is written in one transaction with an object.
#[derive(Default)]
struct Extra {
    conditions: Vec<Compare>,
    alongside: Vec<Mutation>,
    beside: Option<EncodedBy>,
}

/// What is known of an object before it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Nothing: it has to be read.
    Read,
    /// There is probably none; the transaction that writes it finds out.
    Absent,
}

/// What was done.
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    /// A new object was written; this is it.
    Created(Written),
    /// The object was written, or stayed as it was; this is it.
    Updated(Written),
    /// The object was removed; this is what it last was, with the revision of its removal.
    Removed(Object),
    /// There was no object, and there is none.
    Absent,
}

/// An object as it is after a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// The object, with whatever resource version it had.
    object: Object,
    /// Its resource version now.
    pub revision: Revision,
    /// What lies in the store, where that is what was just decided.
    pub stored: Option<Bytes>,
}

impl Written {
    /// An object that a dry run did not write, with whatever resource version it has.
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
    /// The objects of this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        ObjectStore { store, alarm: Arc::default(), remembered: Arc::default() }
    }

    /// What is rung when a fence refuses a write.
    pub(crate) fn alarm(&self) -> &Arc<FenceAlarm> {
        &self.alarm
    }

    /// The store beneath.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Forgets what was written: the store has gone back to an earlier state.
    pub(crate) fn forget_everything(&self) {
        self.remembered.clear();
    }

    /// Reads one object.
    pub async fn get(&self, place: ObjectRef<'_>) -> Result<Option<Entry>, ApiError> {
        Ok(self.store.get(&place.key()?).await?)
    }

    /// Reads what is there, asks what shall become of it, and does that, unless somebody else was faster; then it reads
    /// and asks again. An object that is written as it was is not written at all, unless it lies in another version
    /// than the one in force.
    pub async fn change(&self, place: ObjectRef<'_>, decision: &mut dyn Decision) -> Result<Changed, ApiError> {
        let key = place.key()?;
        let mut current = match decision.begin() {
            Begin::Read => self.start(&key).await?,
            Begin::Absent => Start { entry: None, guessed: false },
        };
        for _ in 0..ATTEMPTS {
            // A few bytes can ask for a large object to be changed.
            let _room =
                fair_queue::acquire_stored_memory(current.entry.as_ref().map_or(0, |entry| entry.value.len())).await;
            let before = match &current.entry {
                Some(entry) => Some(place.resource.decode(entry, place.version).await?),
                None => None,
            };
            let decided = decision.decide(before.as_ref()).await;
            if current.guessed && !matches!(decided, Ok(Change::Write(_) | Change::Remove)) {
                current = Start { entry: self.store.get(&key).await?, guessed: false };
                continue;
            }
            let attempt = match (decided?, before) {
                (Change::Keep, None) | (Change::Remove, None) => return Ok(Changed::Absent),
                (Change::Keep, Some(object)) => {
                    let revision = current.entry.map_or(Revision::ZERO, |entry| entry.mod_revision);
                    return Ok(Changed::Updated(Written { object, revision, stored: None }));
                }
                (Change::Write(object), before) => {
                    let mut alongside = place.resource.strategy.alongside(before.as_ref(), Some(&object));
                    alongside.extend(decision.alongside());
                    let extra = Extra { conditions: decision.conditions(), alongside, beside: decision.beside() };
                    self.write(place, &key, &current, object, extra).await?
                }
                (Change::Remove, Some(before)) => {
                    let alongside = place.resource.strategy.alongside(Some(&before), None);
                    let extra = Extra { conditions: decision.conditions(), alongside, beside: None };
                    self.remove(place, &key, current.entry.as_ref(), before, extra).await?
                }
            };
            match attempt {
                Attempt::Done(changed) => return Ok(changed),
                Attempt::Overtaken(entry) => {
                    self.remembered.forget(&key);
                    current = Start { entry, guessed: false };
                }
                Attempt::Fenced(by) => {
                    self.alarm.ring();
                    wait_for_change(&by.storage, &by.encoding).await?;
                    current = Start { entry: self.store.get(&key).await?, guessed: false };
                }
                Attempt::Outdated(by) => wait_for_change(&by.storage, &by.encoding).await?,
            }
        }
        Err(ApiError::Timeout(format!("the object was changed by others {ATTEMPTS} times in a row; try again")))
    }

    /// Does what was decided, or finds out what would be done: here, and nowhere else, a dry run differs from the real request.
    pub(crate) async fn commit(
        &self,
        object: ObjectRef<'_>,
        decision: &mut dyn Decision,
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
            (Change::Keep | Change::Remove, None) => Changed::Absent,
            (Change::Keep, Some(before)) => Changed::Updated(Written::not_stored(before)),
            (Change::Remove, Some(before)) => Changed::Removed(before),
            (Change::Write(object), None) => Changed::Created(Written::not_stored(object)),
            (Change::Write(object), Some(_)) => Changed::Updated(Written::not_stored(object)),
        })
    }

    /// What is probably at a key.
    async fn start(&self, key: &Key) -> Result<Start, ApiError> {
        match self.remembered.get(key) {
            Some(entry) => Ok(Start { entry: Some(entry), guessed: true }),
            None => Ok(Start { entry: self.store.get(key).await?, guessed: false }),
        }
    }

    async fn write(
        &self,
        place: ObjectRef<'_>,
        key: &Key,
        start: &Start,
        object: Object,
        extra: Extra,
    ) -> Result<Attempt, ApiError> {
        let current = start.entry.as_ref();
        let by = place.admitted().await?;
        let (object, stored) = place.as_stored(object, &by.encoding.version).await?;
        // Whoever waits for these writes to end must not wait for turns.
        fair_queue::end_heavy_work();
        let storage = &by.storage;
        let Some(_pass) = storage.write_gate().enter(&by.encoding).await? else {
            return Ok(Attempt::Outdated(by.clone()));
        };
        let _pass_beside = match &extra.beside {
            None => None,
            Some(beside) => match beside.storage.write_gate().enter(&beside.encoding).await? {
                Some(pass) => Some(pass),
                None => return Ok(Attempt::Outdated(beside.clone())),
            },
        };
        if current.is_none() && !storage.write_gate().takes_new() {
            return Err(ApiError::MethodNotAllowed);
        }
        if let Some(entry) = current.filter(|entry| entry.value == stored) {
            // "It is current already" is an answer that a migration relies on, so it needs the fence as much as a write:
            // a server that may no longer write may not judge either.
            let unchanged = Written { object, revision: entry.mod_revision, stored: Some(stored) };
            if by.encoding.comparisons().is_empty() && !start.guessed {
                return Ok(Attempt::Done(Changed::Updated(unchanged)));
            }
            let nothing = Txn::new();
            return self.transact(key, current, &[&by], nothing, |_| Changed::Updated(unchanged)).await;
        }
        let lasting = place.resource.strategy.time_to_live().is_none();
        let mut txn = match place.resource.strategy.time_to_live() {
            Some(time) => Txn::new().put_for(key, stored.clone(), time),
            None => Txn::new().put(key, stored.clone()),
        };
        txn.when = extra.conditions;
        txn.then.extend(extra.alongside);
        let encoded: Vec<&EncodedBy> = std::iter::once(&by).chain(&extra.beside).collect();
        self.transact(key, current, &encoded, txn, |revision| {
            if lasting {
                self.remembered.put(written(key, stored.clone(), revision, current));
            }
            let written = Written { object, revision, stored: Some(stored) };
            if current.is_some() { Changed::Updated(written) } else { Changed::Created(written) }
        })
        .await
    }

    async fn remove(
        &self,
        place: ObjectRef<'_>,
        key: &Key,
        current: Option<&Entry>,
        before: Object,
        extra: Extra,
    ) -> Result<Attempt, ApiError> {
        let by = place.admitted().await?;
        let Some(_pass) = by.storage.write_gate().enter(&by.encoding).await? else {
            return Ok(Attempt::Outdated(by.clone()));
        };
        let mut txn = Txn::new().delete(key);
        txn.when = extra.conditions;
        txn.then.extend(extra.alongside);
        self.remembered.forget(key);
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
        // What was reported elsewhere cannot be compared in the transaction, so it is looked at right before it.
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
        let doubt = InDoubt(encoded);
        let outcome = self.store.txn(txn).await;
        if !matches!(outcome, Err(StoreError::OutcomeUnknown(_))) {
            doubt.ends();
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
                // All was as expected, so it was a fence that refused.
                let broken =
                    fences.iter().zip(found).find(|((fence, _), found)| !fence.compare().holds(found.as_ref()));
                Ok(match broken {
                    Some(((Fence::InForce(_), by), _)) => Attempt::Outdated((*by).clone()),
                    Some(((Fence::Selected(_) | Fence::Lease(_), by), _)) => Attempt::Fenced((*by).clone()),
                    // Whatever was in the way is gone by now.
                    None => Attempt::Overtaken(current),
                })
            }
        }
    }
}

/// A write that was sent and is not answered. Unless that ends, nobody knows what became of it: also where whoever wanted
/// it waits no longer, and this is dropped.
struct InDoubt<'a>(&'a [&'a EncodedBy]);

impl InDoubt<'_> {
    fn ends(mut self) {
        self.0 = &[];
    }
}

impl Drop for InDoubt<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|by| by.storage.write_gate().doubt(&by.encoding));
    }
}

enum Attempt {
    Done(Changed),
    /// Somebody else was faster; this is what is there now.
    Overtaken(Option<Entry>),
    /// A write in this encoding is not allowed any more.
    Fenced(EncodedBy),
    /// Another version than this one is in force, which this server is about to hear of.
    Outdated(EncodedBy),
}

/// Waits until another encoding is in force. Whoever is in charge of this one was told, or is about to find out.
async fn wait_for_change(storage: &Storage, known: &Arc<Encoding>) -> Result<(), ApiError> {
    tokio::time::timeout(PATIENCE, storage.changed_from(known)).await.map_err(|_| ApiError::Unavailable {
        message: "this API server has to register its storage versions again before it may write; try again".into(),
        retry_after: Duration::from_secs(1),
    })
}

impl ObjectRef<'_> {
    fn key(&self) -> Result<Key, ApiError> {
        // A name is one part of a path, as it is one part of a key; so is a namespace.
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

    /// The encoding in which this server may write now; waits for it where it is about to come.
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

    /// The object as it will be stored, and as whoever reads it in the version of this place will see it. A version that
    /// is stored in another one may lose what that one does not know, and who writes it is told so.
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
    /// A stored object in the version asked for.
    pub async fn decode(&self, entry: &Entry, version: &GroupVersion) -> Result<Object, ApiError> {
        fair_queue::wait_for_turn(entry.value.len()).await;
        let object = self.decode_as_stored(entry).map_err(ApiError::Corrupt)?;
        let converted = self.convert(object, version).await;
        match converted {
            // Nobody else is to blame for it.
            Err(error) if !self.converter.asks_others() => Err(ApiError::Corrupt(CorruptObject::new(entry, &error))),
            converted => converted,
        }
    }

    /// Stored objects in the version asked for.
    pub async fn decode_all(&self, entries: &[Entry], version: &GroupVersion) -> Result<Vec<Object>, ApiError> {
        fair_queue::wait_for_turn(entries.iter().map(|entry| entry.value.len()).sum()).await;
        let (mut objects, mut corrupt, mut breath) =
            (Vec::with_capacity(entries.len()), Vec::new(), YieldBudget::default());
        for entry in entries {
            match self.decode_as_stored(entry) {
                Ok(object) => objects.push(object),
                Err(object) => corrupt.push(object),
            }
            if corrupt.len() >= MOST_NAMED {
                break;
            }
            breath.spend(entry.value.len()).await;
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

    /// Refuses to go on where objects cannot be read.
    pub(crate) fn readable(&self, corrupt: Vec<CorruptObject>) -> Result<(), ApiError> {
        match corrupt.is_empty() {
            true => Ok(()),
            false => Err(ApiError::CorruptList { resource: self.group_resource.clone(), objects: corrupt }),
        }
    }

    /// An object in the version asked for.
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

    /// Drops what a conversion has left behind and the version does not know.
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

/// What lies at a key after it was written.
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
